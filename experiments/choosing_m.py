"""What a sketch of m rows finds, beside what the theory expects: `python -m experiments.choosing_m`.

Six features act, two each with an effect of .15, .25 and .35 standard deviations of a response. `independent`: 500 subjects, 60
features, one response. `correlated`: 600 subjects, 200 features in blocks of ten that correlate by .5, three responses whose
noise correlates by .5, each effect on one of them. The same data are fitted pooled (m = n − 1, a rotation) and sketched. Rows
go to experiments/results/choosing_m.json.
"""

import argparse
import json
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.kept import keep
from intarsia.privacy.precision import interval_ratio, power
from intarsia.server.assess.findings import select
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings

TARGET = Path(__file__).parent / "results" / "choosing_m.json"
EFFECTS = (0.15, 0.25, 0.35)
ACTIVE = 2 * len(EFFECTS)
BLOCK = 10
RUN = Settings(draws=400, warmup=300, chains=1, thin=2, workers=1)


@dataclass(frozen=True)
class Design:
    """Subjects, features, responses; correlation of features within a block and of the noise between responses."""

    name: str
    n: int
    P: int
    Q: int
    rho: float
    sizes: tuple[int, ...]
    data_sets: int

    def truth(self) -> np.ndarray:
        """B (P, Q): one acting feature per block, its effect on one response; without blocks, the first features."""
        B = np.zeros((self.P, self.Q))
        apart = BLOCK if self.rho else 1
        for i, effect in enumerate(np.repeat(EFFECTS, 2)):
            B[i * apart, i % self.Q] = effect
        return B

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Features and responses side by side, standardised."""
        B = self.truth()
        X = rng.standard_normal((self.n, self.P))
        if self.rho:
            common = np.repeat(rng.standard_normal((self.n, self.P // BLOCK)), BLOCK, axis=1)
            X = np.sqrt(self.rho) * common + np.sqrt(1 - self.rho) * X
        noise = rng.standard_normal((self.n, self.Q))
        if self.Q > 1:
            noise = np.sqrt(0.5) * rng.standard_normal((self.n, 1)) + np.sqrt(0.5) * noise
        # one acting feature per block, so that the variances of their parts add up
        columns = np.column_stack([X, X @ B + np.sqrt(1 - (B**2).sum(axis=0)) * noise])
        return (columns - columns.mean(axis=0)) / columns.std(axis=0)

    def own_share(self) -> float:
        """√(1 − R²) of a feature on all the others: the part of an effect that counts."""
        others = BLOCK - 1
        return float(np.sqrt(1 - others * self.rho**2 / (1 + (others - 1) * self.rho)))


DESIGNS = (
    Design("independent", 500, 60, 1, 0.0, (50, 125, 250, 499), 40),
    Design("correlated", 600, 200, 3, 0.5, (60, 150, 300, 599), 40),
)


def rotation(n: int, rng: np.random.Generator) -> np.ndarray:
    """Orthonormal rows (n − 1, n), random but for being orthogonal to the constant vector: the first m of them are a sketch."""
    G = rng.standard_normal((n, n))
    G[:, 0] = 1.0
    return np.linalg.qr(G)[0][:, 1:].T


def measure(design: Design) -> list[dict[str, Any]]:
    n, P, Q = design.n, design.P, design.Q
    B = design.truth()
    acts = B.any(axis=1)
    found: dict[int, dict[str, Any]] = {m: {"selected": [], "false": 0, "findings": 0, "width": []} for m in design.sizes}
    for number in range(design.data_sets):
        rng = np.random.default_rng([11, number])
        columns = design.draw(rng)
        rows = rotation(n, rng) @ columns
        for m, cell in found.items():
            draws = sample(rows[:m, :P], rows[:m, P:], settings=replace(RUN, seed=number))
            chosen = select(draws)
            cell["selected"].append(chosen.selected[acts].tolist())
            cell["findings"] += int(chosen.selected.sum())
            cell["false"] += int(chosen.selected[~acts].sum())
            lower, upper = np.quantile(draws.C.reshape(-1, P, Q), [0.025, 0.975], axis=0)
            cell["width"].append(float((upper - lower)[max(EFFECTS) == B].mean()))
    pooled = np.mean(found[max(design.sizes)]["width"])
    out = []
    for m, cell in found.items():
        hit = np.array(cell["selected"], dtype=float).reshape(design.data_sets, len(EFFECTS), 2).mean(axis=(0, 2))
        out.append({
            "design": design.name, "m": m, "data_sets": design.data_sets,
            "width": round(float(np.mean(cell["width"]) / pooled), 3),
            "width_expected": round(min(interval_ratio(n, m, P, ACTIVE), 99.0), 3),
            **{f"power_{e:g}": round(float(h), 3) for e, h in zip(EFFECTS, hit, strict=True)},
            **{f"expected_{e:g}": round(power(m, e * design.own_share(), P, ACTIVE), 3) for e in EFFECTS},
            "findings": cell["findings"], "false": cell["false"],
        })  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--designs", nargs="*", default=[d.name for d in DESIGNS], help="which designs (the others' rows stay)")
    wanted = parser.parse_args().designs
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    rows = (
        [row for row in json.loads(TARGET.read_text(encoding="utf-8")) if row["design"] not in wanted] if TARGET.exists() else []
    )
    for design in DESIGNS:
        if design.name in wanted:
            rows += measure(design)
    order = [design.name for design in DESIGNS]
    rows.sort(key=lambda row: (order.index(row["design"]), row["m"]))
    for row in rows:
        print(json.dumps(row), flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    keep(TARGET, rows)


if __name__ == "__main__":
    main()
