"""A simulated study of the paper's size (§4): 126 subjects, 69 regions, 2,346 edges, 6 cognitive and motor responses.

The paper's data are private. Here each subject's 69×69 correlation matrix is estimated from simulated time series
with six networks, Fisher-transformed and unfolded; a few dozen edges, most of them at striatal and parietal hubs, act
on the responses through two latent abilities. Region codes are those of the paper's appendix, completed to 69; the
coordinates are round MNI positions for drawing, good to about a centimetre.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.report.brain import Region

Array = NDArray[np.float64]

RESPONSES = ("MoCA", "Pegboard.Both", "Pegboard.Right", "Pegboard.Left", "Grip", "Digit.Symbol.Coding")

# code: network, x, y, z (mm). Hemispheric pairs are written once, with |x|.
_PAIRS: dict[str, tuple[str, int, int, int]] = {
    "IPL": ("default", 46, -62, 38), "LPC": ("default", 48, -66, 30), "PHG": ("default", 24, -26, -18),
    "PHC": ("default", 28, -38, -12), "ITL": ("default", 58, -20, -22),
    "dlPFC": ("frontoparietal", 42, 34, 28), "lPFC": ("frontoparietal", 44, 44, 12),
    "aPFC": ("frontoparietal", 32, 56, 6), "IPS": ("frontoparietal", 34, -56, 46),
    "SFC": ("frontoparietal", 22, 30, 50), "FG": ("frontoparietal", 50, 16, 24),
    "aINS": ("control", 36, 20, 0), "PCun": ("control", 10, -66, 46),
    "AMYG": ("emotion", 22, -4, -18), "OFC": ("emotion", 26, 32, -14), "VSi": ("emotion", 9, 9, -8),
    "M1": ("motor", 38, -22, 56), "SMC": ("motor", 46, -16, 44), "lPMC": ("motor", 48, 2, 42),
    "dlPMC": ("motor", 30, -4, 60), "vlPMC": ("motor", 56, 6, 22),
    "VSs": ("cerebellar-basal", 10, 15, 0), "DCaud": ("cerebellar-basal", 13, 15, 9),
    "vrPUT": ("cerebellar-basal", 20, 12, -3), "drPUT": ("cerebellar-basal", 25, 8, 6),
    "dcPUT": ("cerebellar-basal", 28, 1, 3), "Cereb_V": ("cerebellar-basal", 14, -50, -20),
    "Cereb_VI": ("cerebellar-basal", 24, -62, -26), "CrusI": ("cerebellar-basal", 38, -70, -32),
    "CrusII": ("cerebellar-basal", 30, -76, -42),
}  # fmt: skip
_MIDLINE: dict[str, tuple[str, int, int, int]] = {
    "PCC": ("default", 0, -52, 26), "PCC_2": ("default", 0, -40, 34), "RSC": ("default", 0, -56, 12),
    "vmPFC": ("default", 0, 46, -10), "amPFC": ("default", 0, 56, 14), "mPFC": ("default", 0, 50, 30),
    "dACC": ("control", 0, 22, 34), "sgACC": ("emotion", 0, 24, -8), "SMA": ("motor", 0, -4, 60),
}  # fmt: skip


def regions() -> list[Region]:
    """The 69 regions, left, midline and right of each network together."""
    found = []
    for code, (network, x, y, z) in _PAIRS.items():
        found += [Region(f"L_{code}", network, -x, y, z), Region(f"R_{code}", network, x, y, z)]
    found += [Region(code, network, x, y, z) for code, (network, x, y, z) in _MIDLINE.items()]
    order = {network: i for i, network in enumerate(dict.fromkeys(region.network for region in found))}
    return sorted(found, key=lambda region: (order[region.network], region.x))


def edge_names(codes: list[str]) -> list[str]:
    """`A--B` for each pair, in the order of the upper triangle."""
    rows, columns = np.triu_indices(len(codes), 1)
    return [f"{codes[i]}--{codes[j]}" for i, j in zip(rows, columns)]


def connectivity(n: int, places: list[Region], rng: np.random.Generator, length: int = 150) -> Array:
    """n subjects' Fisher-transformed correlations (n × edges) from time series with network and subject structure."""
    networks = sorted({region.network for region in places})
    member = np.array([[region.network == network for network in networks] for region in places], dtype=float)
    R = len(places)
    # Mirror regions move together, as they do in resting brains.
    base = [region.code.removeprefix("L_").removeprefix("R_") for region in places]
    mirror = np.array([[a == b for b in sorted(set(base))] for a in base], dtype=float)
    loading = np.concatenate([0.7 * member, 0.5 * mirror], axis=1)
    upper = np.triu_indices(R, 1)
    out = np.empty((n, len(upper[0])))
    for i in range(n):
        own = loading + 0.25 * rng.standard_normal(loading.shape) * (loading != 0)
        extra = 0.3 * rng.standard_normal((R, 4))
        series = rng.standard_normal((length, own.shape[1])) @ own.T + rng.standard_normal((length, 4)) @ extra.T
        series += rng.standard_normal((length, R))
        out[i] = np.arctanh(np.clip(np.corrcoef(series.T)[upper], -0.999, 0.999))
    return out


def effects(places: list[Region], active: int, rng: np.random.Generator) -> Array:
    """Coefficients (edges × 6) of rank two: motor and cognitive abilities, most edges at the hubs the paper names."""
    codes = [region.code for region in places]
    hubs = {"L_DCaud", "L_vrPUT", "L_drPUT", "R_VSs", "dACC", "L_lPMC", "L_dlPMC", "L_IPL", "R_LPC", "PCC", "RSC"}
    rows, columns = np.triu_indices(len(codes), 1)
    touching = np.array([(codes[i] in hubs) + (codes[j] in hubs) for i, j in zip(rows, columns)])
    weight = np.where(touching == 2, 12.0, np.where(touching == 1, 3.0, 0.2))
    chosen = rng.choice(len(rows), size=active, replace=False, p=weight / weight.sum())
    B = np.zeros((len(rows), 2))
    B[chosen] = rng.normal(0, 1, (active, 2)) + rng.choice([-1, 1], (active, 2))
    A = np.array([[1.0, 0.1], [0.4, 1.0], [0.3, 1.0], [0.3, 0.9], [0.0, 0.7], [1.0, 0.4]])
    return B @ A.T


@dataclass(frozen=True)
class Connectome:
    X: Array
    Y: Array
    C: Array
    regions: list[Region]
    features: list[str]
    responses: tuple[str, ...] = RESPONSES


def simulate_connectome(n: int = 126, active: int = 30, explained: float = 0.6, seed: int = 0, every: int = 1) -> Connectome:
    """The study; `explained` is the share of each response's variance that the edges explain.

    `every=5` keeps each fifth region only: a small study for a quick look.
    """
    rng = np.random.default_rng(seed)
    places = regions()[::every]
    X = connectivity(n, places, rng)
    C = effects(places, active, rng)
    signal = (X - X.mean(axis=0)) @ C
    scale = signal.std(axis=0)
    C = C / scale
    Y = signal / scale + np.sqrt((1 - explained) / explained) * rng.standard_normal(signal.shape)
    return Connectome(X, Y, C, places, edge_names([region.code for region in places]))
