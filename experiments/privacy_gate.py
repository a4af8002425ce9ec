"""What passes the privacy gate, and what the attacks get out of it.

    python -m experiments.privacy_gate [cells] [limits] [elsewhere]

Sizes × kinds of columns × attacks, on the real steps: the gate is `preflight`, the attacks are those a site runs on its own
sketch. Attacks without the key: blind (independent component analysis), rare columns, pairs of similar columns, membership
(sketch only). With the key: decoding. `limits` measures where the blind attack begins to work, for the rule that knows the
columns' shape; `elsewhere` what a server gains where two sites hold nearly the same columns. The result is
experiments/results/privacy_gate.json; docs/privacy.md shows it. Some minutes on one core.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.kept import keep
from intarsia.privacy.blind import Shape, blind_phi, danger, matched
from intarsia.privacy.differences import difference_search
from intarsia.privacy.policy import Policy
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.preflight import SiteRules, preflight
from intarsia.site.rank_normal import ScoredTable
from intarsia.site.self_attack import attack_as_server, real_phi
from intarsia.site.sketch.terms import SketchTerms
from intarsia.wire.study import Study

RESULTS = Path(__file__).parent / "results" / "privacy_gate.json"
SIZES = ((200, 50, 300), (200, 50, 3000), (1000, 100, 300), (1000, 100, 3000))  # n, m, columns
KINDS = (
    "normal", "lognormal", "lognormal, rank-normal", "binary 30 %", "binary 10 %", "binary 2 %", "genotypes", "near-duplicates",
)  # fmt: skip
RUN = "ab" * 16
MEMBERSHIP_SUCCEEDS = 0.65
ATTACK_SECONDS = 6.0
EVERYWHERE = "similar-elsewhere"  # the warning that every study of several sites gets; the table of cells leaves it out
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
    check = preflight(table, key, study, site="clinic", own=SiteRules({"attack_seconds": ATTACK_SECONDS}))
    gate_seconds = time.monotonic() - began
    attacks = attack_as_server(table, SketchTerms("gate", RUN, m).design(key, n), None, "float32")
    found = {
        "blind": attacks.blind or 0,
        "rare columns": attacks.singletons or 0,
        "similar columns": attacks.differences or 0,
        "membership": attacks.membership_sketch_only,
        "decoding": sum(c.attacked == "exact" for c in check.facts.own_columns),
    }
    refused = sorted({f.rule for f in check.verdict.refused})
    warned = sorted({f.rule for f in check.verdict.warnings} - {EVERYWHERE})
    succeeded = [name for name in found if succeeds(name, found[name])]
    return {
        "kind": kind, "n": n, "m": m, "columns": X.shape[1], "refused": refused, "warned": warned, "found": found,
        "danger": check.verdict.blind, "gate_seconds": round(gate_seconds, 1),
        "unnamed": [name for name in succeeded if not set(NAMED_BY[name]) & {*refused, *warned}],
    }  # fmt: skip


def pairs_elsewhere(n: int, m: int, count: int, seed: int = 2) -> dict[str, Any]:
    """Two sites whose columns are the same but for one person each: what each site's gate says, and what the server finds."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, count // 2))
    other = X.copy()
    other[rng.integers(0, n, count // 2), np.arange(count // 2)] += 2.0
    roster = [{"name": "clinic", "features": ["a*"], "responses": ["y"]}, {"name": "lab", "features": ["b*"]}]
    content = {"id": "gate", "run": RUN, "sketch": {"m": m, "precision": "float32"}, "site": roster}
    study, key = Study.from_dict(content), SketchKey(bytes(range(32)))
    said = []
    for name, letter, values in (("clinic", "a", X), ("lab", "b", other)):
        cells = {f"{letter}{j}": values[:, j] for j in range(values.shape[1])}
        table = Table.open({"id": np.arange(n).astype(str)} | cells, id="id")
        verdict = preflight(table, key, study, site=name, own=SiteRules({"attack_seconds": ATTACK_SECONDS})).verdict
        said.append({"refused": sorted({f.rule for f in verdict.refused}), "warned": sorted({f.rule for f in verdict.warnings})})
    Phi = real_phi(SketchTerms("gate", RUN, m).design(key, n))
    both = np.hstack([X, other])
    sent = (Phi @ ((both - both.mean(axis=0)) / both.std(axis=0, ddof=1))).astype(np.float32)
    found = int(matched(difference_search(sent.astype(float)), Phi).size)
    return {"n": n, "m": m, "columns": count, "people": count // 2, "gates": said, "found": found}


def elsewhere_lines(found: list[dict[str, Any]]) -> list[str]:
    """The table of docs/privacy.md: pairs of which each site holds one."""
    lines = ["| n, m, columns at both sites | both gates | columns of Φ found |", "|---|---|---|"]
    for c in found:
        rules = ", ".join(sorted({rule for gate in c["gates"] for rule in gate["warned"]}))
        lines.append(f"| {c['n']:,}, {c['m']}, {c['columns']:,} | warn: {rules} | {c['found']} of {c['n']:,} |")
    return lines


LIMIT_SIZES = ((100, 25), (200, 50), (200, 20))  # n, m
LIMIT_KINDS = ("lognormal", "lognormal, signs at random", "exponential", "binary 10 %", "uniform")
DANGERS = (0.3, 1.0, 3.0)
MOST_VALUES = 800_000  # of a sketch; beyond, a cell takes too long


def limit(kind: str, n: int, m: int, target: float, rng: np.random.Generator) -> dict[str, Any] | None:
    """The blind attack on as many columns as the rule gives this danger to; None when they are too many or too few to try."""
    trial = standardised(kind, n, 2000, rng)
    each = rule(trial, m) / trial.shape[1]
    count = round(target / each) if each > 0 else 0
    if count < 60 or count * m > MOST_VALUES:
        return None
    X = standardised(kind, n, 2 * count, rng)[:, :count]
    G = rng.standard_normal((m, n))
    Phi = np.linalg.qr((G - G.mean(axis=1, keepdims=True)).T)[0].T
    found = matched(blind_phi(Phi @ X, rng), Phi).size
    return {"kind": kind, "n": n, "m": m, "columns": X.shape[1], "target": target, "danger": rule(X, m), "found": int(found)}


def rule(X: np.ndarray, m: int) -> float:
    return danger(Shape.of((X**3).mean(axis=0), (X**4).mean(axis=0) - 3, len(X)), len(X), m)


def standardised(kind: str, n: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Columns without those that the gate refuses one by one (constant, or dominated by one subject)."""
    if kind == "exponential":
        X = rng.exponential(size=(n, count))
    elif kind == "uniform":
        X = rng.random((n, count))
    else:
        X = columns(kind, n, count, rng)
        X = X * rng.choice([-1, 1], X.shape[1]) if kind.endswith("at random") else X
    X = X - X.mean(axis=0)
    X = X / X.std(axis=0, ddof=1)
    return X[:, np.square(X).max(axis=0) < Policy.max_dominance * (n - 1)]


def limit_lines(limits: list[dict[str, Any]]) -> list[str]:
    """The table of docs/privacy.md: columns of Φ found, per danger."""
    lines = ["| columns | n, m | " + " | ".join(f"{d:g}" for d in DANGERS) + " |", "|---|---|" + "---|" * len(DANGERS)]
    for kind in LIMIT_KINDS:
        for n, m in LIMIT_SIZES:
            row = {c["target"]: str(c["found"]) for c in limits if (c["kind"], c["n"], c["m"]) == (kind, n, m)}
            if row:
                lines.append(f"| {kind} | {n}, {m} | " + " | ".join(row.get(d, "") for d in DANGERS) + " |")
    return lines


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


def measure(part: str) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(3)
    if part == "cells":
        yield from (cell(kind, *size) for size in SIZES for kind in KINDS)
    elif part == "elsewhere":
        yield from (pairs_elsewhere(*size) for size in SIZES)
    else:
        tried = (limit(kind, n, m, target, rng) for kind in LIMIT_KINDS for n, m in LIMIT_SIZES for target in DANGERS)
        yield from (found for found in tried if found is not None)


def main() -> None:
    kept: dict[str, Any] = {}
    for part in sys.argv[1:] or ("cells", "limits", "elsewhere"):
        measured = []
        for found in measure(part):
            measured.append(found)
            print(json.dumps(found), flush=True)
        kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        kept[part] = measured
        keep(RESULTS, kept)
    tables = (table_lines(kept.get("cells", [])), limit_lines(kept.get("limits", [])), elsewhere_lines(kept.get("elsewhere", [])))
    print("\n\n".join("\n".join(lines) for lines in tables))


if __name__ == "__main__":
    main()
