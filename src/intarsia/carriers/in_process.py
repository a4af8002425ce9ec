"""A whole study in one process: the default of the Python API, of tests and of demonstrations.

The sites are objects and the carrier is a function call; every message is still packed, checked and unpacked, and the
server's part sees nothing but messages, so the result is the one the other carriers give.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

from intarsia.errors import IntarsiaError, StudyError
from intarsia.progress import shown
from intarsia.server.assess.convergence import warn_unless
from intarsia.server.study import protocol, screened
from intarsia.server.study.departure import leave
from intarsia.server.study.fit import fit as run_fit
from intarsia.server.study.folder import StudyFolder, write_atomic
from intarsia.server.study.kept import posterior_file
from intarsia.server.study.protocol import Payload, Reply
from intarsia.site.answer import answer
from intarsia.site.identity import Identity
from intarsia.site.key import SketchKey
from intarsia.site.prediction import Prediction, SiteModel
from intarsia.site.prepared_table import response_labels
from intarsia.site.site import Site
from intarsia.wire.changes import Changes
from intarsia.wire.plain import some
from intarsia.wire.result_table import frame, table_columns, table_rows
from intarsia.wire.study import Study, new_run
from intarsia.wire.study_parts import GRAM, SCREENED, SERVER

MOST_SHOWN = 8  # sets in a summary for the screen


@dataclass(repr=False)
class StudyResult:
    """What a study in one process leaves: the labelled posterior, each site's model, and joint predictions."""

    study: Study
    sites: tuple[Site, ...] = field(repr=False)
    posterior: Any = field(repr=False)
    models: dict[str, SiteModel] = field(repr=False)
    summary: dict[str, Any]
    notices: dict[str, bytes] = field(default_factory=dict, repr=False)  # of sites that left
    changes: Changes | None = field(default=None, repr=False)  # beside the fit before the last one left
    screened: Any = field(
        default=None, repr=False
    )  # of a screened study: every feature that was looked at, and what became of it

    @property
    def selected(self) -> list[str]:
        """The selected features; provisional unless `converged`."""
        return list(self.summary["selected"])

    @property
    def screened_out(self) -> list[str]:
        """Of a screened study, the features that were looked at and not kept; their marginal scores are in `screened`."""
        return [] if self.screened is None else list(self.screened.loc[~self.screened["kept"], "feature"])

    @property
    def confirmation(self) -> list[dict[str, Any]]:
        """Where a sketch screened, every finding in the rows that it has not seen: `features`, the `probability` of the effect's
        sign there, and whether that `confirmed` it (0.9)."""
        return [dict(row) for row in self.summary.get("confirmation", [])]

    @property
    def sets(self) -> list[dict[str, Any]]:
        """Sets of interchangeable features, one of each of which matters: members, coverage, purity and log Bayes factor;
        provisional unless `converged`.
        """
        return [dict(one) for one in self.summary["sets"]]

    @property
    def groups(self) -> list[list[str]]:
        """The members of each set."""
        return [list(one["members"]) for one in self.sets]

    @property
    def n(self) -> int:
        """How many subjects the study rests on: those all sites have."""
        return int(self.posterior.attrs["n"])

    def __repr__(self) -> str:
        """What a person wants to know first, on one screen."""
        features, responses = self.summary["features"], len(self.summary["responses"])
        how = f"sketch of {self.study.sketch.m:,} rows" if self.study.sketch.m else "exact products"
        how += " that screens, then exact products" if self.study.sketch.by_sketch else ""
        of = f"{features:,} features" if self.screened is None else f"{features:,} of {len(self.screened):,} features kept"
        lines = [
            f"Study {self.study.id}: {self.n:,} subjects, {how}, {len(self.sites)} sites, "
            f"{of}, {responses} response{'' if responses == 1 else 's'}",
            f"{'Converged' if self.converged else 'NOT CONVERGED, what follows is provisional'}: {self.summary['verdict']}",
            f"{len(self.selected)} features selected" + (f": {some(self.selected)}" if self.selected else ""),
            *(f"one of a set matters: {some(group)}" for group in self.groups[:MOST_SHOWN]),
            "Effects with intervals, units, inclusion probabilities and sign rates: .table()",
        ]
        return "\n".join(shorten(line, 160, placeholder=" …") for line in lines)

    @property
    def converged(self) -> bool:
        return bool(self.summary["converged"])

    def table(self) -> Any:
        """All coefficients as a pandas DataFrame, in their units: whoever runs all sites in one process knows all scales.

        `intarsia.wire.result_table.COLUMNS` says what each column holds.
        """
        return frame(self._columns())

    def rows(self) -> list[dict[str, Any]]:
        """The same, row by row."""
        return table_rows(self._columns())

    def _columns(self) -> dict[str, list[Any]]:
        known = {label: response for model in self.models.values() for label, response in model.own.items()}
        return table_columns([part for model in self.models.values() for part in model.effects(known)])

    def predict(self, new: Mapping[str, Any], request: str = "prediction") -> dict[str, Prediction]:
        """Joint predictions for new subjects: `new[site]` is that site's table of them."""
        missing = [site.name for site in self.sites if site.name not in new]
        if missing:
            raise StudyError(f"The new subjects' data of {', '.join(missing)} are missing; every site takes part.")
        ask = carrier(self.sites, self.study, lambda site: new[site])
        with tempfile.TemporaryDirectory(prefix="intarsia-") as temporary:
            folder = StudyFolder.create(temporary, self.study)
            for name, notice in self.notices.items():
                write_atomic(folder.file("leave", name), notice)
            protocol.predict(folder, request, ask)
        found = {site.name: site.predictions.get((self.study.hash, request)) for site in self.sites}
        return {name: prediction for name, prediction in found.items() if prediction is not None}

    def without(self, name: str, folder: str | Path, *, workers: int | None = None) -> "StudyResult":
        """The study after a site has left: fitted again without its columns. `folder` is the one that `fit` kept.

        `.changes` of the new result lays both fits side by side. What was fitted with all sites is gone from the folder.
        """
        where, leaving = StudyFolder.open(folder), [site for site in self.sites if site.name == name]
        if not leaving:
            raise StudyError(f"{name!r} takes no part; the sites are {', '.join(site.name for site in self.sites)}.")
        notice = leaving[0].leave(self.study)
        _, summary, changes = leave(where, notice, workers=workers)
        stay = tuple(site for site in self.sites if site.name != name)
        protocol.deliver(where, carrier(stay, self.study))
        models = {site.name: site.model(self.study) for site in stay}
        notices = {**self.notices, name: notice}
        return StudyResult(self.study, stay, _posterior(where), models, summary, notices, changes)


def _posterior(folder: StudyFolder) -> Any:
    from intarsia.server.posterior.posterior import Posterior

    return Posterior.load(posterior_file(folder.path))


def screened_table(folder: StudyFolder) -> Any:
    """Every feature of a screened study as a pandas DataFrame: site, whether and after which look it was kept, its score in the
    first look (−log₁₀ p) and its correlation with each response."""
    from pandas import DataFrame

    rows = [
        {"feature": row["feature"], "site": row["site"], "kept": row["kept"] is not None, "look": row["kept"],
         "score": row["score"], **{f"r {response}": value for response, value in row["r"].items()}}
        for row in screened.table(folder)
    ]  # fmt: skip
    return DataFrame(rows)


def study_for(
    sites: Sequence[Site], m: int | None = None, *, id: str = "study", kind: str | None = None, **options: Any
) -> Study:
    """A study between these sites; options are tables of study.toml, such as fit={"draws": 500}.

    `kind` is "gram" or "screened" for exact products in place of a sketch of m rows; "screened" with m for those of the features
    that a sketch says to keep. Sites without an identity are given one, and
    the first three hold the shares (of two sites, the server is the third).
    """
    exact = kind in (GRAM, SCREENED)
    if exact:
        for site in sites:
            site.identity = site.identity or Identity.new(site.name)
    roster: list[dict[str, Any]] = []
    for site in sites:
        table = site.table()
        entry: dict[str, Any] = {
            "name": site.name,
            "features": list(table.features),
            "responses": response_labels(table, site.kinds),
            "covariates": list(table.covariates),
        }
        if site.kinds:
            entry["kinds"] = site.kinds
        if site.identity is not None:
            entry |= {"exchange_key": site.identity.exchange_key, "signing_key": site.identity.signing_key}
        roster.append(entry)
    sketch: dict[str, Any] = {} if m is None else {"m": m}
    sketch |= {} if kind is None else {"kind": kind}
    if exact and len(sites) != 3:
        sketch["holders"] = [*[site.name for site in sites[:3]], *([SERVER] if len(sites) == 2 else [])]
    if kind == SCREENED and m is None:  # a sketch of m rows screens otherwise
        sketch["again"] = 1  # a second look shows what neighbours of strong effects hide
    sketch |= options.pop("sketch", {})
    return Study.from_dict({"id": id, "run": new_run(), "sketch": sketch, "site": roster, **options})


def fit(
    sites: Sequence[Site],
    study: Study | str | Path | None = None,
    *,
    m: int | None = None,
    kind: str | None = None,
    folder: str | Path | None = None,
    workers: int | None = None,
    backend: str | None = None,
    progress: Callable[..., Any] | bool | None = None,
) -> StudyResult:
    """Run a study between sites in this process: align, sketch, sample, deliver.

    Give a study (or the path of its study.toml), or only m, the number of sketch rows, or kind="gram" or kind="screened" (with
    m, a sketch screens). With `folder` everything the server keeps is left there, and an interrupted fit goes on.
    `backend="jax"` fits on an accelerator. A bar shows the progress (`progress=False` hides it), and a fit that has not converged
    warns.
    """
    if study is None:
        if m is None and kind not in (GRAM, SCREENED):
            raise StudyError('Give a study, or m, the number of sketch rows, or kind="screened".')
        study = study_for(sites, m, kind=kind)
    elif m is not None or kind is not None:
        raise StudyError("Give a study, or m and kind; not both: the study file says them.")
    study = study if isinstance(study, Study) else Study.load(study)
    names = [site.name for site in sites]
    if sorted(names) != sorted(study.names):
        raise StudyError(f"The study lists {', '.join(study.names)}; the sites given are {', '.join(names)}.")
    with ExitStack() as stack:
        where = folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="intarsia-"))
        bar = stack.enter_context(shown(progress))
        how = {"workers": workers, "backend": backend, "progress": bar}
        result = _run(sites, study, StudyFolder.create(where, study), how)
    warn_unless(result.converged, result.summary["verdict"], stacklevel=2)
    return result


def _run(sites: Sequence[Site], study: Study, folder: StudyFolder, how: Mapping[str, Any]) -> StudyResult:
    if not study.agrees and not all(site.has_key(study) for site in sites):
        # Nobody brought a key and none can be agreed on: in one process the sites can simply share a fresh one.
        key = SketchKey.new()
        for site in sites:
            if site.has_key(study):
                raise StudyError("Some sites brought a key and some did not; give all the same one, or none.")
            site.set_key(study, key)
    ask = carrier(sites, study)
    protocol.collect(folder, ask)
    summary = run_fit(folder, **how)
    protocol.deliver(folder, ask)
    models = {site.name: site.model(study) for site in sites}
    looked_at = screened_table(folder) if study.sketch.screened else None
    return StudyResult(study, tuple(sites), _posterior(folder), models, summary, screened=looked_at)


def carrier(sites: Sequence[Site], study: Study, new: Callable[[str], Any] | None = None) -> protocol.Ask:
    """Bring messages to sites in this process. Errors are not scrubbed: caller and sites are the same person.

    `new(site)` is a site's table of new subjects, for predictions.
    """
    by_name = {site.name: site for site in sites}

    def ask(step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        replies = {}
        for name, payload in payloads.items():
            raw = {key: v.read_bytes() if isinstance(v, Path) else v for key, v in payload.items()}
            try:
                find = None if new is None else lambda _study, _request, name=name: new(name)
                replies[name] = Reply(answer(by_name[name], study, step, raw, find))
            except IntarsiaError as error:
                error.args = (f"Site {name!r}: {error}",)
                raise
        return replies

    return ask
