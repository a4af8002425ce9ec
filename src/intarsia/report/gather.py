"""Everything the page speaks of, gathered once from what the server has: the posterior, the study, the sketches."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError, MessageError
from intarsia.files import json_lines
from intarsia.report.brain import Region
from intarsia.server.assess.assessment import Assessment, assess, kept
from intarsia.server.assess.criticism import Residuals, residuals
from intarsia.server.assess.findings import Findings
from intarsia.server.assess.leave_one_out import LeaveOneOut, Rows
from intarsia.server.pseudo_rows import check_rows
from intarsia.wire.bounded import read_file
from intarsia.wire.changes import Changes
from intarsia.wire.cohort_groups import Group

Array = NDArray[np.float64]

MOST_ROWS = 500  # features in the table, whatever P
NEXT = 15  # features listed after the selected ones


@dataclass
class Material:
    """What a report is made of. `shown` are the listed features in order; `quantiles` (5, shown, Q) are theirs."""

    title: str
    posterior: Any
    assessment: Assessment
    mean: Array
    sd: Array
    shown: NDArray[np.intp]
    quantiles: Array
    probability: float
    features: list[str]
    responses: list[str]
    feature_sites: list[str]
    response_sites: list[str]
    attrs: dict[str, Any]
    study: Any = None
    joined: Any = None
    card: Mapping[str, Any] | None = None
    truth: Array | None = None
    regions: dict[str, Region] = field(default_factory=dict)
    site_bytes: dict[str, int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    seed: int = 0
    residuals: Residuals | None = None
    refits: dict[str, Any] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    dropped: int = 0
    listed: dict[str, int] = field(default_factory=dict)  # subjects each site listed, where lists were compared
    left: tuple[str, ...] = ()
    changes: Changes | None = None

    @property
    def diagnosis(self) -> Any:
        return self.assessment.diagnosis

    @property
    def findings(self) -> Findings:
        return self.assessment.findings

    @property
    def loo(self) -> LeaveOneOut | None:
        return self.assessment.loo

    @property
    def P(self) -> int:
        return len(self.features)

    @property
    def Q(self) -> int:
        return len(self.responses)

    @property
    def n(self) -> int | None:
        return _whole(self.attrs.get("n") or getattr(self.joined, "n", None))

    @property
    def m(self) -> int | None:
        return _whole(self.attrs.get("m") or getattr(self.joined, "m", None))

    @property
    def gram(self) -> bool:
        """Whether the study made an exact Gram matrix in place of a sketch: of all columns, or of those that a screen kept."""
        return self.study is not None and self.study.sketch.shares

    @cached_property
    def covariate_sites(self) -> list[str]:
        """The site of every covariate; empty without covariates."""
        return list(self.posterior.covariate_sites)

    @property
    def scales(self) -> dict[str, float]:
        """The responses' standard deviations, where their owners share them; else empty."""
        return dict(self.posterior.response_scales)

    @cached_property
    def languages(self) -> list[Any]:
        """How effects on each response are told (`report.language`)."""
        from intarsia.report.language import languages

        return languages(self)

    @cached_property
    def sites(self) -> list[str]:
        if self.study is not None:
            return [name for name in self.study.names if name not in self.left]
        return list(dict.fromkeys([*self.feature_sites, *self.response_sites]))

    @property
    def chosen(self) -> NDArray[np.intp]:
        """The selected features among the shown, in order."""
        return self.shown[self.findings.selected[self.shown]]

    @property
    def count(self) -> int:
        return int(self.findings.selected.sum())

    def strongest(self, p: int) -> int:
        """The response at which feature p shows most: least local fdr, then largest mean in its own sd."""
        fdr = self.findings.local_fdr_by_response[p]
        z = np.abs(self.mean[p]) / np.where(self.sd[p] > 0, self.sd[p], np.inf)
        return int(np.lexsort((-z, fdr))[0])


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


@dataclass(frozen=True)
class Beside:
    """What the server has besides the posterior: the study, its joined sketches, its card, and a assessment made already."""

    study: Any = None
    joined: Any = None
    card: Mapping[str, Any] | None = None
    assessment: Assessment | None = None

    @classmethod
    def out_of(cls, options: dict[str, Any]) -> "Beside":
        """These four taken out of a report's options."""
        return cls(**{item.name: options.pop(item.name) for item in fields(cls) if item.name in options})


def gather(
    posterior: Any,
    beside: Beside | None = None,
    *,
    title: str | None = None,
    truth: Any = None,
    regions: Any = None,
    probability: float | None = None,
    top: int = MOST_ROWS,
) -> Material:
    """Take the assessment that was kept with the draws, or make one; compute the quantiles of the listed features."""
    if top < 1:
        raise InputError(f"top is {top}; expected the number of features to list, at least 1.")
    beside = beside or Beside()
    study, joined, card = beside.study, beside.joined, beside.card
    fit = getattr(study, "fit", None)
    rows = rows_of(posterior, joined)
    assessment = beside.assessment or kept(posterior)
    if assessment is None:
        how: dict[str, Any] = {"method": fit.select, "fdr": fit.fdr} if fit is not None else {}
        assessment = assess(posterior, rows, X=None if rows is None else rows.X, **how)
    findings = assessment.findings
    checked = None
    if rows is not None and assessment.loo is not None and len(assessment.loo.mean) == len(rows.Y):
        checked = residuals(posterior, rows, assessment.loo)
    mean, sd = posterior.draws.mean(), posterior.draws.sd()
    z = (np.abs(mean) / np.where(sd > 0, sd, np.inf)).max(axis=1)
    order = np.lexsort((-z, -findings.pip, ~findings.selected))
    count = int(findings.selected.sum())
    shown = order[: min(max(count + NEXT, 25), top, len(order))]
    p = probability or (study.deliver.interval if study is not None else 0.95)
    P, Q = mean.shape
    return Material(
        title=title or (study.title or study.id if study is not None else posterior.attrs.get("study", "posterior")),
        posterior=posterior, assessment=assessment, residuals=checked, mean=mean, sd=sd, shown=shown,
        quantiles=_quantiles(posterior, shown, p), probability=p,
        features=posterior.features, responses=posterior.responses,
        feature_sites=posterior.feature_sites or ["data"] * P,
        response_sites=posterior.response_sites or ["data"] * Q,
        attrs=dict(posterior.attrs),
        study=study, joined=joined, card=card, truth=_truth(truth, posterior), regions=read_regions(regions),
    )  # fmt: skip


def rows_of(posterior: Any, joined: Any) -> Rows | None:
    """The sketches' rows, when they are at hand and belong to this posterior."""
    if joined is None or np.asarray(joined.X).shape[1] != len(posterior.features):
        return None
    if np.asarray(joined.Y).shape[1] != len(posterior.responses):
        return None
    rows = check_rows(joined)
    return rows if rows is not None and rows.Z.shape[1] == len(posterior.covariates) else None


def from_folder(folder: str | Path, **options: Any) -> Material:
    """The material of a study folder at the server: study.toml, sketches, posterior.nc, events."""
    from intarsia.errors import StudyError
    from intarsia.privacy.card import study_card
    from intarsia.server.posterior.posterior import Posterior
    from intarsia.server.study.check import read as read_checks
    from intarsia.server.study.comparison import read_changes
    from intarsia.server.study.folder import StudyFolder
    from intarsia.server.study.kept import FIT, POSTERIOR, posterior_file
    from intarsia.server.study.kept import read_fit as read_summary
    from intarsia.server.study.screened import counted

    where = StudyFolder.open(folder)
    if not (where.path / POSTERIOR).is_file():
        raise StudyError(f"{where.path} has no posterior.nc yet: the study is not fitted. Run `intarsia fit` first.")
    beside = replace(Beside.out_of(options), study=where.study, joined=None)
    cards = options.pop("cards", ())
    if where.collected:
        joined = where.joined()
        sizes: dict[str, Any] = {"n": joined.n, "columns": joined.columns, "key_fingerprint": joined.key_fingerprint}
        if where.study.sketch.screened:
            sizes["screen"] = counted(where)
        card = beside.card or study_card(where.study, **sizes, site_cards=read_cards(cards, where.study))
        beside = replace(beside, joined=joined, card=card)
    if options.get("regions") is None and (where.path / "regions.csv").is_file():
        options["regions"] = where.path / "regions.csv"
    material = gather(Posterior.load(posterior_file(where.path)), beside, **options)
    material.site_bytes = {name: where.file("sketch", name).stat().st_size for name in where.present("sketch")}
    material.events = read_events(where.path)
    material.refits = read_checks(where)
    if where.study.sketch.by_sketch and (where.path / FIT).is_file():
        material.refits["confirmation"] = read_summary(where.path).get("confirmation", [])
    material.groups, material.dropped = where.groups()
    material.listed = where.listed() if where.study.alignment.mode != "strict" else {}
    material.left, material.changes = where.left, read_changes(where)
    return material


def read_fit(source: Path) -> tuple[Any, Assessment, Any]:
    """Posterior, assessment and study (None for a posterior alone) of a study folder or a posterior.nc."""
    from intarsia.server.posterior.posterior import Posterior

    if source.is_dir():
        material = from_folder(source)
        return material.posterior, material.assessment, material.study
    posterior = Posterior.load(source)
    return posterior, kept(posterior) or assess(posterior), None


def read_cards(paths: Sequence[Path], study: Any) -> list[Mapping[str, Any]]:
    """The sites' own cards of this study."""
    from intarsia.privacy.card import LARGEST_CARD_BYTES, card_of

    found: list[Mapping[str, Any]] = []
    for path in paths:
        raw = read_file(path, LARGEST_CARD_BYTES)
        try:
            found.append(card_of(raw, study))
        except MessageError as error:
            raise MessageError(f"{path}: {error} A site's card is card.json in the folder of the run at the site.") from None
    return found


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The study folder's log; a half-written last line is left out."""
    return json_lines(folder / "events.jsonl")


def _quantiles(posterior: Any, shown: NDArray[np.intp], probability: float) -> Array:
    ends = [(1 - probability) / 2, 0.25, 0.5, 0.75, (1 + probability) / 2]
    return np.asarray(posterior.draws.quantile(ends, shown))


def _truth(truth: Any, posterior: Any) -> Array | None:
    """The true coefficients of a simulated study (P × Q), or a table feature,response,value."""
    if truth is None:
        return None
    P, Q = len(posterior.features), len(posterior.responses)
    if isinstance(truth, str | Path):
        out = np.zeros((P, Q))
        at_p = {name: i for i, name in enumerate(posterior.features)}
        at_q = {name: i for i, name in enumerate(posterior.responses)}
        for row in _rows(truth, ("feature", "response", "value")):
            if row["feature"] in at_p and row["response"] in at_q:
                out[at_p[row["feature"]], at_q[row["response"]]] = float(row["value"])
        return out
    found = np.asarray(truth, dtype=np.float64)
    if found.shape != (P, Q):
        raise InputError(f"truth has shape {found.shape}; expected {(P, Q)}, features × responses.")
    return found


_NAMES = {"code": ("code", "roi", "name", "region", "label"), "network": ("network", "power_network", "group", "lobe")}
_NAMES |= {axis: (axis, f"{axis}_mni", f"mni_{axis}") for axis in "xyz"}


def read_regions(source: Any) -> dict[str, Region]:
    """Regions by code, from a CSV file (code, network, x, y, z in MNI millimetres) or a sequence of regions."""
    if source is None:
        return {}
    if isinstance(source, str | Path):
        rows: Sequence[Mapping[str, str]] = _rows(source, ())
        if not rows:
            raise InputError(f"{source} lists no regions.")
        column = {key: name for key, names in _NAMES.items() for name in names[::-1] if name in rows[0]}
        if any(key not in column for key in ("code", "x", "y", "z")):
            raise InputError(f"{source} needs the columns code, x, y, z (and network, if you like).")
        try:
            found = []
            for row in rows:
                x, y, z = (float(row[column[axis]]) for axis in "xyz")
                network = row[column["network"]] if "network" in column else "regions"
                found.append(Region(row[column["code"]], network, x, y, z))
        except (ValueError, TypeError):
            raise InputError(f"A coordinate in {source} is not a number.") from None
        return {region.code: region for region in found}
    return {r.code: Region(str(r.code), str(r.network), float(r.x), float(r.y), float(r.z)) for r in source}


def _rows(path: str | Path, needed: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path} is not a CSV file in UTF-8.") from None
    missing = [name for name in needed if rows and name not in rows[0]]
    if missing:
        raise InputError(f"{path} lacks the column(s) {', '.join(missing)}.")
    return rows
