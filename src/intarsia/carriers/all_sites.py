"""`intarsia.check`: everything about all sites of a study at once, before anything is computed, sent or kept.

What `intarsia site check` tells each site of itself, and what only somebody who has all of them can see: whom they have in
common, and what the study could find in so many.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import intarsia.carriers.notebook as notebook
from intarsia.carriers.in_process import ExactKind, study_for
from intarsia.errors import IntarsiaError, StudyError
from intarsia.privacy.policy import Policy
from intarsia.privacy.precision import findable
from intarsia.site.align import canonical
from intarsia.site.dry_run import Around, SiteReport, StudyReport, check_site, columns_alone
from intarsia.site.dry_run_text import columns, in_words, passes
from intarsia.site.odd_cells import odd_cells
from intarsia.site.site import Site
from intarsia.wire.plain import plural, some
from intarsia.wire.study import Study
from intarsia.wire.study_parts import Alignment


@dataclass(frozen=True, repr=False)
class StudyCheck:
    """What stands in the way of a study, and what would leave each site; `print` it, or let a notebook show it.

    It names rows, values and ids where these are to be mended: it is for whoever has the tables. `ok` says whether the study can
    run as it is. `problems` are what all sites together must mend, `sites` what was found at each, and `study` the study that was
    looked at (None where a table could not be opened).
    """

    study: Study | None
    common: int  # people whom all sites have
    subjects: Mapping[str, int]  # people of each site
    sites: tuple[SiteReport, ...]
    alone: Mapping[str, StudyReport]  # the gate's word on the columns of a site where there is no study to judge
    problems: tuple[str, ...]
    odd: Mapping[str, tuple[str, ...]]  # by site, cells to look at, by row and value: for whoever owns the table

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.refusals

    @property
    def refusals(self) -> tuple[str, ...]:
        """Everything that must be mended first, of all sites."""
        found = list(self.problems)
        for report in self.sites:
            judged = [*report.studies, *([self.alone[report.site]] if report.site in self.alone else [])]
            texts = [*report.problems, *(text for one in judged for text in one.refused)]
            texts += [passes(one) + "." for one in judged if one.refused and one.largest_m is not None]
            found += [f"Site {report.site!r}: {text}" for text in texts]
        return tuple(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the gates would let pass with a warning; what all of them say, once."""
        said: dict[str, list[str]] = {}
        for report in self.sites:
            for text in (text for one in report.studies for text in one.warnings):
                said.setdefault(text, []).append(repr(report.site))
        everybody = len(self.sites) > 1
        return tuple(
            f"{'Every site' if everybody and len(who) == len(self.sites) else f'Site {some(who)}'}: {text}"
            for text, who in said.items()
        )

    @property
    def headline(self) -> str:
        """Whom and what the study would have."""
        people = ", ".join(f"{name} {n:,}" for name, n in self.subjects.items())
        said = f"{plural(self.common, 'subject')} at all sites ({people})"
        if self.study is None:
            return said
        sketch, P, Q = self.study.sketch, *_sizes(self.study)
        how = f"m = {sketch.m:,} (m/n = {sketch.m / max(self.common, 1):.2f})" if sketch.m else f"kind {sketch.kind}"
        return f"{said}; {how}; {plural(P, 'feature')}, {plural(Q, 'response')}"

    @property
    def could_find(self) -> str:
        """The effect that the study would most likely find, were it there."""
        if self.study is None or self.common < 3:
            return ""
        P, _ = _sizes(self.study)
        return findable(self.study.sketch.m or self.common - 1, P).text

    def __repr__(self) -> str:
        out = [self.headline, *([self.could_find] if self.could_find else []), ""]
        for report in self.sites:
            out += columns(report)
        out += [f"let pass, with a warning: {text}" for text in self.warnings]
        out += [f"to look at: {text}" for text in self.cells]
        return "\n".join([*out, *self._end()])

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells to look at, by row and value: text among numbers, ids that occur twice."""
        return tuple(f"Site {name!r}: {text}" for name, found in self.odd.items() for text in found)

    def _end(self) -> Iterator[str]:
        if self.ok:
            yield "Nothing stands in the way: intarsia.fit with the same sites and the same m runs the study."
            return
        yield f"{plural(len(self.refusals), 'thing')} to mend before this study can run:"
        yield from (f"- {text}" for text in self.refusals)

    def _repr_html_(self) -> str:
        """For a notebook: what is to be mended, then every column that would leave."""
        end = list(self._end())
        parts = [notebook.heading(self.headline), notebook.text(self.could_find), notebook.verdict(end[0], self.ok)]
        parts.append(notebook.listed(self.refusals))
        for report in self.sites:
            rows = [
                [c.name, c.role, in_words(c.range) or some(c.levels, 4), f"{c.missing:,}" if c.missing else "", c.note]
                for c in sorted(report.columns, key=lambda c: _LOUDEST.index(c.role))
            ]
            title = f"{report.site}: {plural(report.n, 'subject')}, {plural(len(rows), 'column')} would leave"
            parts.append(notebook.table(title, ["column", "as", "values", "missing", ""], rows))
        parts.append(notebook.listed(self.cells, "To look at"))
        parts.append(notebook.listed(self.warnings, "Let pass with a warning"))
        return notebook.page(parts)


_LOUDEST = ("response", "covariate", "feature")


def check(
    sites: Sequence[Site],
    study: Study | str | Path | None = None,
    *,
    m: int | None = None,
    kind: ExactKind | None = None,
) -> StudyCheck:
    """Look at all sites of a study at once; nothing is sent, booked or kept.

    Parameters
    ----------
    sites : the institutions, as `intarsia.Site`.
    study : the study that is planned (`intarsia.study_for`, or the path of a study.toml); or else
    m : the number of sketch rows, or
    kind : "gram" or "screened", as `intarsia.fit` takes them. With none of the three the columns alone are judged.

    Returns
    -------
    StudyCheck : every column that would leave, as what, with its least, middle and largest value; codes taken as numbers; what
        is filled in; whom the sites have in common; what the privacy gate of each site would say, and the largest m it would let
        pass; and the effect that the study would most likely find. `.ok` says whether the study can run as it is.

    Examples
    --------
    >>> found = intarsia.check(sites, m=200)
    >>> print(found)
    >>> result = intarsia.fit(sites, m=200) if found.ok else None
    """
    problems = _names_alike(sites)
    opened = []
    for site in sites:
        try:
            site.table()
            opened.append(site)
        except IntarsiaError as error:
            problems.append(f"Site {site.name!r}: {error}")
    odd = {site.name: tuple(odd_cells(site)) for site in sites if site.data is not None}
    planned = None
    if len(opened) == len(sites) and not problems:
        planned = _planned(sites, study, m, kind, problems)
    rows, common = _in_common(opened, planned, problems)
    if planned is not None and planned.sketch.m >= common > 0:
        problems.append(
            f"m = {planned.sketch.m:,} sketch rows for the {plural(common, 'subject')} that all sites have: m must be well below "
            "n, a tenth of it or a fifth (docs/choosing-m.md)."
        )
        planned = None
    counts = {site.name: _counts(site) for site in opened}
    reports, alone = [], {}
    for site in opened:
        judged = [] if planned is None else [planned]
        try:
            report = check_site(site, judged, Around(rows.get(site.name), counts))
            if planned is None and not report.problems:
                alone[site.name] = columns_alone(site.table(), Policy().tightened(site.policy))
        except IntarsiaError as error:
            problems.append(f"Site {site.name!r}: {error}")
            continue
        reports.append(report)
    subjects = {site.name: site.table().n for site in opened}
    return StudyCheck(planned, common, subjects, tuple(reports), alone, tuple(problems), odd)


def _names_alike(sites: Sequence[Site]) -> list[str]:
    names = [site.name for site in sites]
    twice = sorted({name for name in names if names.count(name) > 1})
    return [f"Two sites are called {name!r}. Give each a name of its own." for name in twice]


def _planned(
    sites: Sequence[Site], study: Study | str | Path | None, m: int | None, kind: ExactKind | None, problems: list[str]
) -> Study | None:
    """The study as it would run; what speaks against its text goes to the problems."""
    if study is not None and (m is not None or kind is not None):
        raise StudyError("Give a study, or m and kind; not both: the study file says them.")
    try:
        if study is not None:
            planned = study if isinstance(study, Study) else Study.load(study)
            missing = set(planned.names) ^ {site.name for site in sites}
            if missing:
                problems.append(
                    f"The study lists {', '.join(planned.names)}; the sites given are {', '.join(site.name for site in sites)}."
                )
                return None
            return planned
        if m is None and kind is None:
            return None
        identities = {id(site): site.identity for site in sites}
        try:
            planned = study_for(sites, m, kind=kind)
        finally:
            for site in sites:  # looking leaves nothing behind
                site.identity = identities[id(site)]
    except IntarsiaError as error:
        problems.append(str(error))
        return None
    return planned


def _in_common(sites: Sequence[Site], study: Study | None, problems: list[str]) -> tuple[dict[str, NDArray[np.int64]], int]:
    """Of each site the rows of the people whom all have, in one order, and how many these are."""
    rules, mode = (Alignment().canonical, "strict") if study is None else (study.alignment.canonical, study.alignment.mode)
    places: dict[str, dict[str, int]] = {}
    for site in sites:
        try:
            ids = canonical(site.table().ids(), rules)
        except IntarsiaError:
            continue  # told in the site's own report
        places[site.name] = {text: row for row, text in enumerate(ids)}
    if len(places) < len(sites) or not places:
        return {}, 0
    shared = sorted(set.intersection(*(set(found) for found in places.values())))
    everybody = all(len(found) == len(shared) for found in places.values())
    if not shared:
        problems.append(
            "No subject is at all sites, as their ids are written. Look at how each site writes them; [alignment] canonical "
            "of the study says what is made of them."
        )
    elif not everybody and mode == "strict" and study is not None:
        problems.append(
            f"Only {len(shared):,} subjects are at all sites, and the study is strict: it wants the same at each. "
            'study_for(sites, m, alignment={"mode": "intersect"}) goes on with those that all have.'
        )
    if mode == "union" or not shared:
        return {}, len(shared)
    return {name: np.array([found[text] for text in shared], dtype=np.int64) for name, found in places.items()}, len(shared)


def _counts(site: Site) -> dict[str, int]:
    table = site.table()
    columns = len(table.features) + len(table.responses) + len(table.covariates)
    return {"subjects": table.n, "columns": columns, "covariates": len(table.covariates)}


def _sizes(study: Study) -> tuple[int, int]:
    return sum(len(site.features) for site in study.sites), sum(len(site.responses) for site in study.sites)
