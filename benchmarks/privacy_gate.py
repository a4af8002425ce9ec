"""What passes the privacy gate, and what the attacks get out of it.   python -m benchmarks.privacy_gate [sizes]

Sizes × kinds of columns × attacks, on the real steps: the gate is `preflight`, the attacks are those a site runs on its own
sketch. Attacks without the key: blind (independent component analysis), rare columns, pairs of similar columns, membership
(sketch only). With the key: decoding. The result is benchmarks/results/privacy_gate.json; docs/privacy.md shows it.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.preflight import preflight
from intarsia.site.rank_normal import ScoredTable
from intarsia.site.self_attack import attack_as_server
from intarsia.site.sketch.sketch import design
from intarsia.wire.study import Study

RESULTS = Path(__file__).parent / "results" / "privacy_gate.json"
SIZES = ((200, 50, 300), (200, 50, 3000), (1000, 100, 300), (1000, 100, 3000))  # n, m, columns
KINDS = (
    "normal", "lognormal", "lognormal, rank-normal", "binary 30 %", "binary 10 %", "binary 2 %", "genotypes", "near-duplicates",
)  # fmt: skip
RUN = "ab" * 16
MEMBERSHIP_SUCCEEDS = 0.65
ATTACK_SECONDS = 6.0
# Which rule names an attack: a refusal or a warning of one of these covers its success.
NAMED_BY = {
    "blind": ("blind", "dominant"),
    "rare columns": ("rare-level", "blind"),
    "similar columns": ("near-duplicate", "duplicate", "rare-level", "blind"),
    "membership": ("membership",),
    "decoding": ("decodable", "self-attack"),
}


def columns(kind: str, n: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """n × count values of one kind, none constant."""
    if kind == "normal":
        X = rng.standard_normal((n, count))
    elif kind.startswith("lognormal"):
        X = np.exp(rng.standard_normal((n, count)))
    elif kind.startswith("binary"):
        X = (rng.random((n, count)) < float(kind.split()[1]) / 100).astype(float)
    elif kind == "genotypes":
        X = rng.binomial(2, rng.uniform(0.05, 0.5, count), (n, count)).astype(float)
    else:
        half = (rng.random((n, count // 2)) < 0.3).astype(float)
        other = half.copy()
        who = rng.integers(0, n, count // 2)
        other[who, np.arange(count // 2)] = 1 - half[who, np.arange(count // 2)]
        X = np.hstack([half, other])
    return X[:, X.std(axis=0) > 0]


def cell(kind: str, n: int, m: int, count: int, seed: int = 1) -> dict[str, Any]:
    """One kind of columns at one size: what the gate says and what the attacks get."""
    rng = np.random.default_rng(seed)
    X = columns(kind, n, count, rng)
    table = Table.open({"id": np.arange(n).astype(str)} | {f"c{j}": X[:, j] for j in range(X.shape[1])}, id="id")
    if kind.endswith("rank-normal"):
        table = ScoredTable.of(table)
    content = {"id": "gate", "run": RUN, "sketch": {"m": m, "precision": "float32"}}
    sites = [{"name": "clinic", "features": ["*"]}, {"name": "lab", "responses": ["y"]}]
    study, key = Study.from_dict(content | {"site": sites}), SketchKey(bytes(range(32)))
    began = time.monotonic()
    check = preflight(table, key, study, site="clinic", own_policy={"attack_seconds": ATTACK_SECONDS})
    gate_seconds = time.monotonic() - began
    attacks = attack_as_server(table, design(key, study="gate", run=RUN, n=n, m=m), None, "float32")
    found = {
        "blind": attacks.blind or 0,
        "rare columns": attacks.singletons or 0,
        "similar columns": attacks.differences or 0,
        "membership": attacks.membership_sketch_only,
        "decoding": sum(c.attacked == "exact" for c in check.facts.own_columns),
    }
    refused = sorted({f.rule for f in check.verdict.refused})
    warned = sorted({f.rule for f in check.verdict.warnings})
    succeeded = [name for name in found if succeeds(name, found[name])]
    return {
        "kind": kind, "n": n, "m": m, "columns": X.shape[1], "refused": refused, "warned": warned, "found": found,
        "danger": check.verdict.blind, "gate_seconds": round(gate_seconds, 1),
        "unnamed": [name for name in succeeded if not set(NAMED_BY[name]) & {*refused, *warned}],
    }  # fmt: skip


def succeeds(attack: str, found: float | None) -> bool:
    return found is not None and (found > MEMBERSHIP_SUCCEEDS if attack == "membership" else found > 0)


def table_lines(cells: list[dict[str, Any]]) -> list[str]:
    """The table of docs/privacy.md."""
    lines = [
        "| columns | n, m, columns | gate | blind | rare | similar | membership AUC | decoded with the key |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in cells:
        f = c["found"]
        gate = "refuses: " + ", ".join(c["refused"]) if c["refused"] else "warns: " + (", ".join(c["warned"]) or "nothing")
        auc = "-" if f["membership"] is None else f"{f['membership']:.2f}"
        sizes = f"{c['n']:,}, {c['m']}, {c['columns']:,}"
        counts = [str(f[name]) for name in ("blind", "rare columns", "similar columns")]
        lines.append(f"| {' | '.join([c['kind'], sizes, gate, *counts, auc, str(f['decoding'])])} |")
    return lines


def main() -> None:
    wanted = [int(a) for a in sys.argv[1:]] or range(len(SIZES))
    cells = []
    for k in wanted:
        for kind in KINDS:
            cells.append(cell(kind, *SIZES[k]))
            print(json.dumps(cells[-1]), flush=True)
    if len(cells) == len(SIZES) * len(KINDS):
        RESULTS.write_text(json.dumps({"cells": cells}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(table_lines(cells)))


if __name__ == "__main__":
    main()
