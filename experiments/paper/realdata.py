"""Real data of the paper's kind (§4): loaders, out-of-sample comparison, and the analysis of a connectome.

A data folder has one sub-folder for each set: X.csv.gz and Y.csv.gz (first column id) and sites.csv (column, role,
site, block). Its path comes from `--data` or the environment variable INTARSIA_DATA. The set `connectome` is
simulated at the paper's size and needs no files.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from intarsia.demo.connectome import Region, simulate_connectome
from intarsia.errors import InputError

Array = NDArray[np.float64]

PUBLIC = ("devfmri_basc64", "yeast_cellcycle", "wheat_cimmyt", "fate_motor_hetero")
SIMULATED = ("connectome", "connectome-small")
SETS = (*SIMULATED, *PUBLIC)


@dataclass(frozen=True)
class RealData:
    """A data set with its labels; `regions` where the features are edges between brain regions."""

    name: str
    X: Array
    Y: Array
    features: list[str]
    responses: list[str]
    feature_sites: NDArray[np.int64]
    response_sites: NDArray[np.int64]
    site_names: list[str]
    regions: list[Region] | None = None

    def edges(self) -> list[tuple[int, int]]:
        """The pair of regions of each feature."""
        if self.regions is None:
            raise InputError(f"The features of {self.name!r} are not edges between regions.")
        place = {region.code: i for i, region in enumerate(self.regions)}
        pairs = [feature.split("--") for feature in self.features]
        return [(place[a], place[b]) for a, b in pairs]


def data_folder(given: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of public data sets: the argument, else INTARSIA_DATA, else None."""
    text = given or os.environ.get("INTARSIA_DATA")
    return Path(text) if text else None


def available(folder: str | os.PathLike[str] | None = None) -> list[str]:
    """The sets that can be loaded here; the simulated connectome always can."""
    where = data_folder(folder)
    here = [name for name in PUBLIC if where is not None and (where / name / "X.csv.gz").exists()]
    return [*SIMULATED, *here]


def load(name: str, folder: str | os.PathLike[str] | None = None, seed: int = 0) -> RealData:
    """Load a data set by name; the imaging and the behaviour columns lie at different sites."""
    if name not in SETS:
        raise InputError(f"Data set {name!r} is not known; use one of {', '.join(SETS)}.")
    if name in SIMULATED:
        small = {"every": 5, "active": 8} if name == "connectome-small" else {}
        study = simulate_connectome(seed=seed, **small)
        P, Q = study.C.shape
        return RealData(
            name, study.X, study.Y, study.features, list(study.responses), np.zeros(P, dtype=np.int64),
            np.ones(Q, dtype=np.int64), ["imaging", "behaviour"], study.regions,
        )  # fmt: skip
    where = data_folder(folder)
    if where is None:
        raise InputError(f"Data set {name!r} is read from a folder: give --data FOLDER or set INTARSIA_DATA.")
    return _load_folder(name, where / name)


def _load_folder(name: str, folder: Path) -> RealData:
    import pandas as pd

    missing = [file for file in ("X.csv.gz", "Y.csv.gz", "sites.csv") if not (folder / file).exists()]
    if missing:
        raise InputError(f"Data set {name!r}: {', '.join(missing)} not found in the data folder.")
    X, Y = (pd.read_csv(folder / f"{part}.csv.gz", index_col=0) for part in "XY")
    sites = pd.read_csv(folder / "sites.csv").set_index("column")["site"]
    shared = Y.index.intersection(X.index)
    if len(shared) < 10:
        raise InputError(f"Data set {name!r}: X and Y share {len(shared)} subjects; at least 10 are needed.")
    X, Y = X.loc[shared], Y.loc[shared]
    absent = [column for column in [*X.columns, *Y.columns] if column not in sites.index]
    if absent:
        raise InputError(f"Data set {name!r}: {len(absent)} columns have no row in sites.csv, the first {absent[0]!r}.")
    names = sorted(set(sites[[*X.columns, *Y.columns]]))
    place = {site: i for i, site in enumerate(names)}
    regions = None
    features = list(X.columns)
    if (folder / "rois.csv").exists():
        table = pd.read_csv(folder / "rois.csv")
        regions = [Region(row.label, str(row.power_network), row.x_mni, row.y_mni, row.z_mni) for row in table.itertuples()]
        label = dict(zip(table["roi"], table["label"]))
        features = ["--".join(label[part] for part in column.split("-")) for column in X.columns]
    return RealData(
        name, X.to_numpy(float), Y.to_numpy(float), features, list(Y.columns),
        np.array([place[sites[c]] for c in X.columns]), np.array([place[sites[c]] for c in Y.columns]), names, regions,
    )  # fmt: skip


@dataclass(frozen=True)
class Analysis:
    """The chosen edges of a connectome, as Figure 6 draws them."""

    m: int
    selected: NDArray[np.bool_]
    evidence: Array
    strength: Array  # row means of the posterior mean of C, as in the paper's Figure 6
    signal: Array  # largest |mean|/sd over the responses: orders the edges where no evidence tells them apart


def analyse(data: RealData, m: int, draws: int = 500, warmup: int = 500, chains: int = 2, seed: int = 0) -> Analysis:
    """Fit our default to an m-row sketch of all subjects (standardised columns) and choose the edges."""
    from experiments.rivals.horseshoe import Horseshoe
    from intarsia.server.assess.findings import select

    X = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0)
    Y = (data.Y - data.Y.mean(axis=0)) / data.Y.std(axis=0)
    model = Horseshoe(
        m=min(m, len(X) - 2), draws=draws, warmup=warmup, chains=chains, seed=seed, response_sites=data.response_sites
    )
    model.fit(X, Y, sites=data.feature_sites)
    chosen = select(model.C_)
    mean, sd = model.C_.mean(axis=(0, 1)), model.C_.std(axis=(0, 1))
    signal = np.abs(mean / np.maximum(sd, 1e-300)).max(axis=1)
    return Analysis(m, np.asarray(chosen.selected), np.asarray(chosen.pip), mean.mean(axis=1), signal)
