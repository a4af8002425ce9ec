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
from typing import Any, Literal

import intarsia.carriers.notebook as notebook
from intarsia.carriers.go_on import begun, check_same_tables, keep_beside, keep_identities
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
from intarsia.wire.plain import plural, probability, some
from intarsia.wire.result_table import frame, table_columns, table_rows
from intarsia.wire.study import Study, new_run
from intarsia.wire.study_parts import GRAM, SCREENED, SERVER

MOST_SHOWN = 8  # sets in a summary for the screen
MOST_ROWS = 20  # effects in a notebook
ExactKind = Literal["gram", "screened"]
_OF_SELECTED = "Effects of selected features"
Backend = Literal["numpy", "jax"]


@dataclass(repr=False)
class StudyResult:
    """What a study in one process leaves: the labelled posterior, each site's model, and joint predictions.

    Attributes
    ----------
    selected : the selected features, by name. Provisional unless `converged`.
    sets, groups : sets of interchangeable features, one of each of which matters; the members alone.
    converged : whether the chains agree; `summary["verdict"]` says it in words.
    n : the subjects whom all sites have.
    posterior : the draws, labelled: what the server has.
    models : by site, what that site is told, in its own units.
    summary : verdict, selection and sizes, as `fit.json` in the study folder has them.
    study, sites : what was run, and between whom.
    screened : of a screened study every feature that was looked at, as a DataFrame; else None.
    changes : after a site left, this fit beside the one before.

    `table()` has all effects, `predict(new)` predicts new people jointly, `without(name, folder)` fits again after a site left.
    """

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
        of = plural(features, "feature") if self.screened is None else f"{features:,} of {len(self.screened):,} features kept"
        lines = [
            f"Study {self.study.id}: {self.n:,} subjects, {how}, {plural(len(self.sites), 'site')}, "
            f"{of}, {plural(responses, 'response')}",
            f"{'Converged' if self.converged else 'NOT CONVERGED, what follows is provisional'}: {self.summary['verdict']}",
            f"{plural(len(self.selected), 'feature')} selected" + (f": {some(self.selected)}" if self.selected else ""),
            *(f"one of a set matters: {some(group)}" for group in self.groups[:MOST_SHOWN]),
            "Effects with intervals, units, inclusion probabilities and sign rates: .table()",
        ]
        return "\n".join(shorten(line, 160, placeholder=" …") for line in lines)

    def _repr_html_(self) -> str:
        """For a notebook: the same, and the strongest effects of what was selected."""
        title, verdict, *rest = repr(self).split("\n")
        rows = [row for row in self.rows() if row["selected"]]
        rows = sorted(rows, key=lambda row: -abs(row["standardised"] or 0.0))
        cells = [
            [row["feature"], row["site"], row["response"], f"{row['effect']:.3g}", f"{row['lower']:.3g} to {row['upper']:.3g}",
             row["unit"], "" if row["pip"] is None else probability(row["pip"])]
            for row in rows[:MOST_ROWS]
        ]  # fmt: skip
        head = ["feature", "site", "response", "effect", f"{self._interval()} interval", "unit", "inclusion"]
        shown = (
            f"The strongest {MOST_ROWS} of {len(rows)} effects of selected features" if len(rows) > MOST_ROWS else _OF_SELECTED
        )
        parts = [notebook.heading(title), notebook.verdict(verdict, self.converged)]
        parts.append(notebook.table(shown, head, cells) if cells else notebook.text("No feature was selected."))
        return notebook.page([*parts, *map(notebook.text, rest)])

    def _interval(self) -> str:
        return next((f"{row['interval']:.0%}" for row in self.rows()[:1]), "")

    @property
    def converged(self) -> bool:
        """Whether the chains agree; where not, everything else is provisional."""
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
        stay = tuple(site for site in self.sites if site.name != name)
        with where.locked():
            _, summary, changes = leave(where, notice, workers=workers)
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


def _looks(sites: Sequence[Site], roster: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """A second look, which shows what neighbours of strong effects hide, where the gate's limit leaves room for it."""
    from intarsia.privacy.policy import Policy
    from intarsia.privacy.screened_leakage import worth_looking_again

    features, responses, covariates = (sum(len(one[role]) for one in roster) for role in ("features", "responses", "covariates"))
    kinds = [said for site in sites for said in site.kinds.values()]
    binary = sum((said if isinstance(said, str) else said.get("kind")) == "binary" for said in kinds)
    n = min(site.table().n for site in sites)
    return {"again": 1} if worth_looking_again(n, features, responses, covariates, Policy().max_auc, binary) else {}


def study_for(
    sites: Sequence[Site], m: int | None = None, *, id: str = "study", kind: ExactKind | None = None, **options: Any
) -> Study:
    """A study between these sites, with its settings: `intarsia.fit` takes it in place of m.

    Parameters
    ----------
    sites : the institutions; their tables are opened to see which columns they bring.
    m : the number of sketch rows.
    id : the study's name, in its folder and its messages.
    kind : "gram" or "screened", for exact products in place of a sketch of m rows; "screened" with m for those of the features
        that a sketch says to keep. Sites without an identity are given one, and the first three hold the shares (of two sites,
        the server is the third).
    **options : tables of study.toml, such as `fit={"draws": 500}`, `alignment={"mode": "intersect"}`, `title="…"`.

    Examples
    --------
    >>> study = intarsia.study_for(sites, m=200, id="lungs", alignment={"mode": "intersect"})
    >>> intarsia.fit(sites, study, folder="lungs")
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
        sketch |= _looks(sites, roster)
    sketch |= options.pop("sketch", {})
    return Study.from_dict({"id": id, "run": new_run(), "sketch": sketch, "site": roster, **options})


def fit(
    sites: Sequence[Site],
    study: Study | str | Path | None = None,
    *,
    m: int | None = None,
    kind: ExactKind | None = None,
    folder: str | Path | None = None,
    workers: int | None = None,
    backend: Backend | None = None,
    progress: Callable[..., Any] | bool | None = None,
) -> StudyResult:
    """Run a study between sites in this process: align, sketch, sample, deliver.

    Called again with the same `folder` it goes on where it stopped. All tables are opened before anything is computed, and what
    stands in the way is told of all sites at once; `intarsia.check` tells more.

    Parameters
    ----------
    sites : the institutions, as `intarsia.Site`.
    study : a study (`intarsia.study_for`), or the path of its study.toml; or else
    m : the number of sketch rows, a tenth or a fifth of the subjects (docs/choosing-m.md); or
    kind : "gram" for exact products of all columns, "screened" for those of the few features that matter (with m, a sketch
        says which).
    folder : where everything the server keeps is left, for `intarsia.report.write` and for going on. What the sites of this
        process keep, their key among it, lies beside it in FOLDER.sites.
    workers : threads the chains run in; by default one per core.
    backend : "jax" fits on an accelerator (`pip install 'intarsia[gpu]'`); "numpy" is the default.
    progress : False hides the bar; a function is called with the sampler's progress.

    Returns
    -------
    StudyResult : the posterior, each site's model, what was selected, and joint predictions. A fit that has not converged warns.

    Examples
    --------
    >>> sites = [
    ...     intarsia.Site("clinic", visits, id="patient", responses=["fev1"]),
    ...     intarsia.Site("laboratory", "markers.csv", id="patient"),
    ... ]
    >>> print(intarsia.check(sites, m=200))
    >>> result = intarsia.fit(sites, m=200, folder="lungs")
    >>> result.selected, result.table()
    """
    asked_for = study if study is None or isinstance(study, Study) else Study.load(study)
    if asked_for is not None and (m is not None or kind is not None):
        raise StudyError("Give a study, or m and kind; not both: the study file says them.")
    check_tables(sites)
    for site in sites:
        site.keep_runs(None)
    if folder is not None:
        keep_beside(sites, folder)
    if asked_for is None:
        if m is None and kind not in (GRAM, SCREENED):
            raise StudyError('Give a study, or m, the number of sketch rows, or kind="screened".')
        asked_for = study_for(sites, m, kind=kind)
    names = [site.name for site in sites]
    if sorted(names) != sorted(asked_for.names):
        raise StudyError(f"The study lists {', '.join(asked_for.names)}; the sites given are {', '.join(names)}.")
    with ExitStack() as stack:
        where = folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="intarsia-"))
        bar = stack.enter_context(shown(progress))
        how = {"workers": workers, "backend": backend, "progress": bar}
        if folder is not None:
            asked_for = begun(folder, asked_for, sites)
            keep_identities(sites, folder)
            check_same_tables(sites, asked_for)
        result = _run(sites, asked_for, StudyFolder.create(where, asked_for), how)
    warn_unless(result.converged, result.summary["verdict"], stacklevel=2)
    return result


def check_tables(sites: Sequence[Site]) -> None:
    """Open every site's table before anything is computed; what stands in the way is told of all of them at once."""
    twice = [site.name for i, site in enumerate(sites) if site.name in [other.name for other in sites[:i]]]
    if twice:
        raise StudyError(f"Two sites are called {twice[0]!r}. Give each a name of its own.")
    wrong: list[IntarsiaError] = []
    for site in sites:
        try:
            if site.data is not None:
                site.table()
        except IntarsiaError as error:
            error.args = (f"Site {site.name!r}: {error}",)
            wrong.append(error)
    _raise_together(wrong)


def _raise_together(wrong: Sequence[IntarsiaError]) -> None:
    """One error as it is; of several the first one's kind, with what each says."""
    if not wrong:
        return
    if len(wrong) > 1:
        wrong[0].args = ("\n".join([f"{len(wrong)} sites cannot take part as they are:", *(f"- {error}" for error in wrong)]),)
    raise wrong[0]


def _run(sites: Sequence[Site], study: Study, folder: StudyFolder, how: Mapping[str, Any]) -> StudyResult:
    if not study.agrees and not all(site.has_key(study) for site in sites):
        # Nobody brought a key and none can be agreed on: in one process the sites can simply share a fresh one.
        agreed = [site for site in sites if site.run_store(study).get("study.secret") is not None]
        if any(site.has_key(study) for site in sites if site not in agreed):
            raise StudyError("Some sites brought a key and some did not; give all the same one, or none.")
        key = agreed[0].key(study) if agreed else SketchKey.new()  # agreed: it stopped while the key was handed round
        for site in sites:
            site.set_key(study, key)
    ask = carrier(sites, study)
    with folder.locked():
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
        replies: dict[str, Reply] = {}
        wrong: list[IntarsiaError] = []
        for name, payload in payloads.items():
            raw = {key: v.read_bytes() if isinstance(v, Path) else v for key, v in payload.items()}
            try:
                find = None if new is None else lambda _study, _request, name=name: new(name)
                replies[name] = Reply(answer(by_name[name], study, step, raw, find))
            except IntarsiaError as error:
                error.args = (f"Site {name!r}: {error}",)
                wrong.append(error)
        _raise_together(wrong)
        return replies

    return ask
