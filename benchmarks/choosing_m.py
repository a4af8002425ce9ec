"""What a sketch of m rows finds, beside what the theory expects: `python -m benchmarks.choosing_m`.

500 subjects, 60 features of which six act on one response, two each with an effect of .15, .25 and .35 standard deviations. The
same data are fitted pooled (m = n − 1, a rotation) and sketched. Rows go to benchmarks/results/choosing_m.json.
"""

import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.privacy.precision import interval_ratio, power
from intarsia.server.results.selection import select
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings

TARGET = Path(__file__).parent / "results" / "choosing_m.json"
N, P, DATA_SETS = 500, 60, 40
EFFECTS = (0.15, 0.25, 0.35)
SIZES = (50, 125, 250, N - 1)
RUN = Settings(draws=400, warmup=300, chains=1, thin=2, workers=1)


def truth() -> np.ndarray:
    b = np.zeros(P)
    b[: 2 * len(EFFECTS)] = np.repeat(EFFECTS, 2)
    return b


def rotation(n: int, rng: np.random.Generator) -> np.ndarray:
    """Orthonormal rows (n − 1, n), random but for being orthogonal to the constant vector: the first m of them are a sketch."""
    G = rng.standard_normal((n, n))
    G[:, 0] = 1.0
    return np.linalg.qr(G)[0][:, 1:].T


def measure(data_sets: int = DATA_SETS, sizes: tuple[int, ...] = SIZES, n: int = N) -> list[dict[str, Any]]:
    b = truth()
    noise = 1 - float(b @ b)
    found: dict[int, dict[str, Any]] = {m: {"selected": [], "false": 0, "findings": 0, "width": []} for m in sizes}
    for number in range(data_sets):
        rng = np.random.default_rng([11, number])
        X = rng.standard_normal((n, P))
        y = X @ b + np.sqrt(noise) * rng.standard_normal(n)
        columns = np.column_stack([X, y])
        columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
        rows = rotation(n, rng) @ columns
        for m, cell in found.items():
            draws = sample(rows[:m, :-1], rows[:m, -1:], settings=replace(RUN, seed=number))
            chosen = select(draws)
            true = b != 0
            cell["selected"].append(chosen.selected[true].tolist())
            cell["findings"] += int(chosen.selected.sum())
            cell["false"] += int(chosen.selected[~true].sum())
            C = draws.C.reshape(-1, P)
            lower, upper = np.quantile(C, [0.025, 0.975], axis=0)
            cell["width"].append(float((upper - lower)[b == max(EFFECTS)].mean()))
    pooled = np.mean(found[max(sizes)]["width"])
    out = []
    for m, cell in found.items():
        hit = np.array(cell["selected"], dtype=float).reshape(data_sets, len(EFFECTS), 2).mean(axis=(0, 2))
        s = int((b != 0).sum())
        out.append({
            "m": m, "data_sets": data_sets,
            "width": round(float(np.mean(cell["width"]) / pooled), 3),
            "width_expected": round(min(interval_ratio(n, m, P, s), 99.0), 3),
            **{f"power_{e:g}": round(float(h), 3) for e, h in zip(EFFECTS, hit, strict=True)},
            **{f"expected_{e:g}": round(power(m, e, P, s), 3) for e in EFFECTS},
            "findings": cell["findings"], "false": cell["false"],
        })  # fmt: skip
    return out


def main() -> None:
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    rows = measure()
    for row in rows:
        print(json.dumps(row), flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    TARGET.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
