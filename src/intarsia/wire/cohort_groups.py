"""Cohorts that overlap in part (`mode = "union"`): subjects grouped by which responses they have, each group sketched on its own.

Every site with features or covariates must know a subject; a response may be missing for it. The sites report keyed tokens and,
for every subject, which of their responses are there; the server groups the tokens by that pattern and tells every site which of
its tokens are in which group. Group g of n_g subjects is sketched with a Φ of its own, bound to its cohort, with m_g rows in
proportion to n_g.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import AlignmentError, MessageError
from intarsia.wire.alignment import AlignmentReport, checked, halves
from intarsia.wire.container import MAX_BYTES, pack, unpack
from intarsia.wire.messages import Joined, Sketch, check_labels, join
from intarsia.wire.study import Study

LEAST_ROWS = 10  # sketch rows of a group: fewer tell nothing and cost a Φ
LEAST_SUBJECTS = 100  # of a group, unless [alignment] min_group says another number
NOWHERE = -1  # number of the group of subjects that are in none


@dataclass(frozen=True)
class Group:
    """Subjects who have the same responses: how many, the rows of their sketch, and these responses."""

    n: int
    m: int
    responses: tuple[str, ...]


def rows_of(sizes: Sequence[int], m: int) -> list[int]:
    """m_g of every group: in proportion to its subjects, rounded down; all of m for a single group."""
    total = sum(sizes)
    return [m * size // total for size in sizes]


def least_subjects(study: Study) -> int:
    return LEAST_SUBJECTS if study.alignment.min_group is None else study.alignment.min_group


@dataclass(frozen=True)
class UnionCohort:
    """The server's answer to one site: the groups, and which group each of its tokens is in (−1: in none).

    `dropped` counts subjects known to all sites with features who are in no group: too few have the same responses, or they
    have none.
    """

    site: str
    study_hash: str
    groups: tuple[Group, ...]
    dropped: int
    member: NDArray[np.int32] = field(repr=False)

    @property
    def n(self) -> int:
        """The subjects of all groups."""
        return sum(group.n for group in self.groups)

    def to_bytes(self) -> bytes:
        groups = [{"n": g.n, "m": g.m, "responses": list(g.responses)} for g in self.groups]
        header = {"site": self.site, "study_hash": self.study_hash, "groups": groups, "dropped": self.dropped}
        return pack("union", header, {"member": self.member})

    @classmethod
    def from_bytes(cls, raw: Any) -> "UnionCohort":
        header, arrays = unpack(raw, "union")
        site, study_hash = checked(header, "union", ("groups", "dropped"))
        groups, dropped, member = header["groups"], header["dropped"], arrays.get("member")
        wrong = MessageError("The agreed groups of subjects have entries of the wrong kind.")
        if not isinstance(groups, list) or not groups or type(dropped) is not int or dropped < 0 or set(arrays) != {"member"}:
            raise wrong
        if member is None or member.dtype != np.int32 or member.ndim != 1:
            raise wrong
        if member.size and not (member.min() >= NOWHERE and member.max() < len(groups)):
            raise wrong
        return cls(site, study_hash, tuple(_group(found, wrong) for found in groups), dropped, member)


def _group(found: Any, wrong: MessageError) -> Group:
    if not isinstance(found, dict) or set(found) != {"n", "m", "responses"}:
        raise wrong
    n, m = found["n"], found["m"]
    if type(n) is not int or type(m) is not int or not 2 <= m < n < 2**40:
        raise wrong
    responses = check_labels(found["responses"], "response")
    if not responses:
        raise wrong
    return Group(n, m, responses)


def unite(reports: Mapping[str, AlignmentReport], study: Study) -> dict[str, UnionCohort]:
    """The server's part of the alignment: the groups, an answer for each site; AlignmentError if none is large enough."""
    names = list(reports)
    tokens = np.concatenate([report.tokens for report in reports.values() if report.tokens is not None])
    high, low = halves(tokens)
    _, subject = np.unique(np.stack([high, low], axis=1), axis=0, return_inverse=True)
    at = np.split(subject.ravel(), np.cumsum([report.n for report in reports.values()])[:-1])
    count = int(subject.max()) + 1
    responses = [label for report in reports.values() for label in report.responses]
    if len(set(responses)) != len(responses):
        raise AlignmentError("Two sites report the same response. A response has one owner: correct study.toml.")
    has = np.zeros((count, len(responses)), dtype=bool)
    known = np.ones(count, dtype=bool)
    first = 0
    for name, here in zip(names, at, strict=True):
        report, entry = reports[name], study.site(name)
        last = first + len(report.responses)
        if report.has is not None:
            has[here, first:last] = report.has
        first = last
        if entry.features or entry.covariates:
            there = np.zeros(count, dtype=bool)
            there[here] = True
            known &= there
    patterns, which, sizes = np.unique(has[known], axis=0, return_inverse=True, return_counts=True)
    kept = _large_enough([(int(size), k) for k, size in enumerate(sizes) if patterns[k].any()], study)
    if not kept:
        raise AlignmentError(
            f"No group of subjects is large enough: {int(known.sum())} are at all sites with features, and the largest group "
            f"with the same responses has {int(sizes.max(initial=0))}. At least {least_subjects(study)} subjects and {LEAST_ROWS}"
            ' sketch rows are needed. Check the ids, or take mode = "intersect".'
        )
    lonely = [label for q, label in enumerate(responses) if not any(patterns[k][q] for _, k in kept)]
    if lonely:
        raise AlignmentError(f"No group that is large enough has the response {lonely[0]!r}. Leave it out of the study.")
    rows = rows_of([size for size, _ in kept], study.sketch.m)
    groups = tuple(
        Group(size, m, tuple(label for q, label in enumerate(responses) if patterns[k][q]))
        for (size, k), m in zip(kept, rows, strict=True)
    )
    number = np.full(len(sizes), NOWHERE, dtype=np.int32)
    for g, (_, k) in enumerate(kept):
        number[k] = g
    member = np.full(count, NOWHERE, dtype=np.int32)
    member[known] = number[which.ravel()]
    dropped = int(known.sum()) - sum(group.n for group in groups)
    out = {}
    for name, here in zip(names, at, strict=True):
        own, entry = member[here], study.site(name)
        if not (entry.features or entry.covariates):
            # A site that brings responses alone has no part in groups that lack them all.
            part = np.array([bool(set(group.responses) & set(reports[name].responses)) for group in groups])
            own = np.where((own >= 0) & part[np.maximum(own, 0)], own, NOWHERE).astype(np.int32)
        out[name] = UnionCohort(name, reports[name].study_hash, groups, dropped, own)
    return out


def _large_enough(found: list[tuple[int, int]], study: Study) -> list[tuple[int, int]]:
    """The groups that are kept, the largest first: enough subjects, and enough rows of the sketch."""
    kept = sorted((one for one in found if one[0] >= least_subjects(study)), key=lambda one: (-one[0], one[1]))
    while kept and rows_of([size for size, _ in kept], study.sketch.m)[-1] < LEAST_ROWS:
        kept.pop()
    return kept


@dataclass(frozen=True)
class GroupedSketch:
    """One site's sketches, by the number of the group; `responses` are all it brings, in its order."""

    site: str
    study_hash: str
    responses: tuple[str, ...]
    parts: Mapping[int, Sketch] = field(repr=False)

    def to_bytes(self) -> bytes:
        header = {"site": self.site, "study_hash": self.study_hash, "responses": list(self.responses)}
        arrays = {f"group.{g}": np.frombuffer(part.to_bytes(), np.uint8) for g, part in self.parts.items()}
        return pack("groups", header, arrays)

    @classmethod
    def load(cls, source: Any, *, limit: int = MAX_BYTES) -> "GroupedSketch":
        """Read and validate; every part is a sketch of the same site, for the same study, of the same features."""
        header, arrays = unpack(source, "groups", limit_bytes=limit)
        site, study_hash = checked(header, "groups", ("responses",))
        responses = check_labels(header["responses"], "response")
        parts: dict[int, Sketch] = {}
        for name, array in arrays.items():
            number = name.removeprefix("group.")
            if not name.startswith("group.") or not number.isdecimal() or array.dtype != np.uint8:
                raise MessageError(f"The sketches of site {site!r} are not numbered by group.")
            parts[int(number)] = Sketch.load(array.tobytes(), limit=limit)
        if not parts:
            raise MessageError(f"Site {site!r} sends no sketch of any group.")
        first = next(iter(parts.values()))
        for part in parts.values():
            if (part.site, part.study_hash) != (site, study_hash) or set(part.responses) - set(responses):
                raise MessageError(f"The sketches of site {site!r} do not belong together.")
            if (part.features, part.covariates) != (first.features, first.covariates):
                raise MessageError(f"The sketches of site {site!r} are of different columns in different groups.")
        return cls(site, study_hash, responses, dict(sorted(parts.items())))


def join_groups(sketches: Sequence[GroupedSketch]) -> tuple[Joined, tuple[Group, ...]]:
    """The groups' rows below each other, the sites' columns side by side; a response that a group lacks is NaN there.

    A group that lost its last response with a site that left says nothing about the others and is not joined.
    """
    numbers = sorted({g for sketch in sketches for g, part in sketch.parts.items() if part.responses})
    if not numbers:
        raise MessageError("No site brings a response: a regression needs at least one.")
    responses = [(label, sketch.site) for sketch in sketches for label in sketch.responses]
    place = {label: q for q, (label, _) in enumerate(responses)}
    joined = [join([sketch.parts[g] for sketch in sketches if g in sketch.parts]) for g in numbers]
    for other in joined[1:]:
        if (other.features, other.covariates) != (joined[0].features, joined[0].covariates):
            raise MessageError("Not every site with features has sketched every group.")
    blocks = []
    for one in joined:
        Y = np.full((one.m, len(responses)), np.nan)
        Y[:, [place[label] for label in one.responses]] = one.Y
        blocks.append(Y)
    groups = tuple(Group(one.n, one.m, one.responses) for one in joined)
    whole = replace(
        joined[0], X=np.concatenate([one.X for one in joined]), Y=np.concatenate(blocks),
        Z=np.concatenate([np.asarray(one.Z) for one in joined]), n=sum(g.n for g in groups), m=sum(g.m for g in groups),
        responses=tuple(label for label, _ in responses), response_sites=tuple(site for _, site in responses),
        response_noise=(0.0,) * len(responses), response_scales=_scales(sketches, [label for label, _ in responses]),
        most_told=_least(joined),
    )  # fmt: skip
    return whole, groups


def _least(joined: Sequence[Joined]) -> dict[str, int]:
    """What each site states for the group in which least may be told."""
    sites = {site for one in joined for site in one.most_told}
    return {site: min(one.most_told[site] for one in joined if site in one.most_told) for site in sorted(sites)}


def _scales(sketches: Sequence[GroupedSketch], labels: Sequence[str]) -> tuple[float, ...]:
    """The responses' scales where the study shares them: the same in every group."""
    found = {
        label: scale
        for sketch in sketches
        for part in sketch.parts.values()
        for label, scale in zip(part.responses, part.response_scales)
    }
    return tuple(found[label] for label in labels) if len(found) == len(labels) else ()
