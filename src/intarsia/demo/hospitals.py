"""Three hospitals that hold different columns of the same people, and what is true about them.

An imaging centre has a small functional connectome (correlations between 23 regions), a laboratory has blood markers and
one response, a memory clinic has clinical scores and the other responses. A few connections, two markers and one score
act on the responses through two latent abilities.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from intarsia.demo.connectome import Region, connectivity, edge_names, regions

Array = NDArray[np.float64]

SITES = ("imaging", "laboratory", "clinic")
CODES = ("DCaud", "vrPUT", "VSs", "lPMC", "IPL", "M1", "aINS", "dlPFC", "PHG")
MIDLINE = ("PCC", "RSC", "mPFC", "dACC", "SMA")
RESPONSES = {"clinic": ("MoCA", "Pegboard", "Grip", "DigitSymbol"), "laboratory": ("NfL",)}
MARKERS = ("crp", "il6", "tnf", "hba1c", "ldl", "hdl", "ferritin", "b12", "tsh", "creatinine", "vitamin_d", "albumin")
SCORES = ("education", "sleep", "gait", "grip_left", "mood", "bmi", "pulse", "pressure")
_ABILITY = np.array([[1.0, 0.1], [0.35, 1.0], [0.0, 0.9], [1.0, 0.45], [-0.7, -0.25]])


@dataclass(frozen=True)
class Hospitals:
    """Tables by site (ids, column names, values), and the standardised truth by (feature, response)."""

    ids: dict[str, list[str]]
    columns: dict[str, list[str]]
    values: dict[str, Array]
    truth: dict[tuple[str, str], float]
    regions: list[Region]
    common: int

    @property
    def features(self) -> int:
        return sum(len(c) for c in self.columns.values()) - sum(len(r) for r in RESPONSES.values())


def simulate(n: int = 2000, extra: int = 40, explained: float = 0.8, seed: int = 7) -> Hospitals:
    """n people whom all three know, and `extra` whom one of them does not; rows in a different order everywhere."""
    rng = np.random.default_rng(seed)
    N = n + len(SITES) * extra
    places = [r for r in regions() if r.code.removeprefix("L_").removeprefix("R_") in (*CODES, *MIDLINE)]
    codes = [r.code for r in places]
    X = {
        "imaging": connectivity(N, places, rng, length=120),
        "laboratory": np.exp(0.3 * _correlated(N, len(MARKERS), 0.3, rng)) * 5,
        "clinic": 50 + 10 * _correlated(N, len(SCORES), 0.25, rng),
    }
    names = {"imaging": edge_names(codes), "laboratory": list(MARKERS), "clinic": list(SCORES)}
    active = {
        "imaging": [
            "L_DCaud--dACC",
            "L_vrPUT--L_lPMC",
            "R_VSs--mPFC",
            "L_IPL--PCC",
            "PCC--R_PHG",
            "L_M1--SMA",
            "dACC--L_aINS",
        ],
        "laboratory": ["il6", "vitamin_d"],
        "clinic": ["gait"],
    }
    B = {site: np.zeros((len(names[site]), 2)) for site in SITES}
    for site, wanted in active.items():
        for name in wanted:
            i = _find(names[site], name)
            B[site][i] = rng.choice([-1.0, 1.0], 2) * rng.uniform(0.7, 1.3, 2)
    Z = {site: (x - x.mean(axis=0)) / x.std(axis=0) for site, x in X.items()}
    C = {site: b @ _ABILITY.T for site, b in B.items()}
    signal = np.sum([Z[site] @ C[site] for site in SITES], axis=0)
    scale = signal.std(axis=0) / np.sqrt(explained)
    Y = signal / scale + np.sqrt(1 - explained) * rng.standard_normal(signal.shape)
    people = [f"P{i:05d}" for i in rng.permutation(90_000)[:N]]
    away = {site: set(range(n + k * extra, n + (k + 1) * extra)) for k, site in enumerate(SITES)}
    everyone = [q for held in RESPONSES.values() for q in held]
    ids, columns, values = {}, {}, {}
    for site in SITES:
        keep = rng.permutation([i for i in range(N) if i not in away[site]])
        own = RESPONSES.get(site, ())
        outcome = np.column_stack([20 + 6 * Y[:, everyone.index(q)] for q in own]) if own else np.empty((N, 0))
        ids[site], columns[site] = [people[i] for i in keep], [*names[site], *own]
        values[site] = np.hstack([X[site], outcome])[keep]
    sd = Y[:n].std(axis=0)
    truth = {
        (names[site][p], everyone[q]): float(C[site][p, q] / scale[q] / sd[q] * Z[site][:n, p].std())
        for site in SITES for p in np.flatnonzero(B[site].any(axis=1)) for q in range(len(everyone))
    }  # fmt: skip
    return Hospitals(ids, columns, values, truth, places, n)


def _correlated(n: int, p: int, rho: float, rng: np.random.Generator) -> Array:
    return np.sqrt(rho) * rng.standard_normal((n, 1)) + np.sqrt(1 - rho) * rng.standard_normal((n, p))


def _find(names: list[str], wanted: str) -> int:
    """An edge's place, whichever end comes first."""
    a, _, b = wanted.partition("--")
    for name in (wanted, f"{b}--{a}"):
        if name in names:
            return names.index(name)
    raise KeyError(wanted)


def write_table(path: Path, ids: list[str], columns: list[str], values: Array) -> None:
    """A hospital's table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", *columns])
        writer.writerows([[i, *(f"{v:.6g}" for v in row)] for i, row in zip(ids, values)])


def write_truth(path: Path, truth: dict[tuple[str, str], float]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["feature", "response", "value"])
        writer.writerows([[p, q, f"{v:.6g}"] for (p, q), v in truth.items()])


def write_regions(path: Path, found: list[Region]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["code", "network", "x", "y", "z"])
        writer.writerows([[r.code, r.network, r.x, r.y, r.z] for r in found])
