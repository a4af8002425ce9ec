"""A site's part in a study whose subjects do not all have every response: which it has for whom, and a sketch per group.

The server says which of the site's tokens are in which group (`wire.cohort_groups`). Before anything leaves, the site holds this
against what it reported itself, and its gate judges every group as a cohort of its own. In its ledger each group is a run of its
own, so that Σm counts per subject.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import AlignmentError, FederationError
from intarsia.site.align import Tokens
from intarsia.site.data.table import Table
from intarsia.site.part_table import PartTable
from intarsia.site.response_kinds import FILE as KINDS_FILE
from intarsia.site.response_kinds import Meaning, backs_of, kinds_of, prepared, published_scales
from intarsia.site.run_store import RunStore
from intarsia.site.units import Units
from intarsia.wire.announcement import check_adjustable
from intarsia.wire.cohort_groups import Group, GroupedSketch, UnionCohort, least_subjects, rows_of
from intarsia.wire.messages import Sketch
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.privacy.ledger import Ledger
    from intarsia.site.preflight import Preflight, SiteRules
    from intarsia.site.site import Site


@dataclass(frozen=True)
class Has:
    """The site's responses as they leave, and which of them each row of its table has (n, Q)."""

    labels: tuple[str, ...]
    rows: NDArray[np.bool_]

    @classmethod
    def of(cls, table: Table) -> "Has":
        """A response that a rule of its own fills counts as there."""
        P, Q = len(table.features), len(table.responses)
        filled = np.array([table.missing_rules[label] != "error" for label in table.responses], dtype=bool)
        found = [~np.isnan(Z[:, P : P + Q]) for Z in table.encoded()]
        return cls(tuple(table.responses), np.concatenate(found) | filled)


def has_responses(site: "Site", study: Study) -> Has:
    """Which responses this site has for whom; responses of other kinds as they are prepared over the whole table."""
    return Has.of(prepared(site.table(), kinds_of(study, site.name, site.kinds)))


@dataclass(frozen=True)
class Portion:
    """One group at this site: its number, its responses here, its rows of the table in order and their keyed digest; and the
    study as this group runs it, with m_g rows and, where there are several groups, a run of its own in the ledger."""

    number: int
    responses: tuple[str, ...]
    order: NDArray[np.intp]
    mac: str
    study: Study


def settle_groups(site: str, study: Study, tokens: Tokens, has: Has, agreed: UnionCohort) -> list[Portion]:
    """The groups in which this site has a part, checked against its own table and the rules of the study."""
    if agreed.site != site or agreed.study_hash != study.hash:
        raise AlignmentError(f"The agreed groups are not meant for site {site!r} in this run of study {study.id!r}.")
    if agreed.member.shape != (tokens.n,):
        raise AlignmentError(
            f"The agreed groups speak of another number of subjects than the {tokens.n} site {site!r} announced. The table "
            "changed since the alignment: align again in a new run."
        )
    sizes = [group.n for group in agreed.groups]
    if [group.m for group in agreed.groups] != rows_of(sizes, study.sketch.m) or min(sizes) < least_subjects(study):
        raise AlignmentError(
            "The agreed groups do not keep to the study's rows, or one is smaller than the study allows. Refused."
        )
    if len({frozenset(group.responses) for group in agreed.groups}) < len(agreed.groups):
        raise AlignmentError("Two of the agreed groups have the same responses; they are one. Refused.")
    entry, out = study.site(site), []
    for number, group in enumerate(agreed.groups):
        keep = agreed.member == number
        own = np.array([label in group.responses for label in has.labels], dtype=bool)
        takes_part = bool(entry.features or entry.covariates or own.any())
        rows = tokens.rows[keep]
        if len(rows) != (group.n if takes_part else 0) or (has.rows[rows] != own).any():
            raise AlignmentError("The agreed groups are not those of the responses that this site reported. Refused.")
        if takes_part:
            labels = tuple(label for label, there in zip(has.labels, own, strict=True) if there)
            out.append(Portion(number, labels, rows, tokens.mac(keep), _as_run(study, group, number, len(sizes))))
    if not out:
        raise AlignmentError(f"No group of subjects has a response of site {site!r}. Leave it out of the study.")
    return out


def _as_run(study: Study, group: Group, number: int, groups: int) -> Study:
    run = study.run if groups == 1 else f"{study.run[:60]}{number:04x}"
    return replace(study, run=run, sketch=replace(study.sketch, m=group.m))


def group_runs(study: Study, ledger: "Ledger") -> frozenset[tuple[str, str]]:
    """The runs in the ledger that are this study's own run, or its groups."""
    found = {(entry.study, entry.run) for entry in ledger.entries() if entry.study == study.id}
    return frozenset((name, run) for name, run in found if run == study.run or run[:-4] == study.run[:60])


def sketch_groups(site: "Site", study: Study, store: RunStore, cohort: bytes | None) -> bytes:
    """All groups' sketches in one message, after the gate has judged every group."""
    from intarsia.site.rank_normal import FILE as SCORES_FILE
    from intarsia.site.rank_normal import ScoredTable, as_the_study_asks
    from intarsia.site.site_ledger import open_ledger

    if cohort is None:
        raise FederationError("A study over partly overlapping cohorts needs the server's answer to the alignment first.")
    agreed = UnionCohort.from_bytes(cohort)
    portions = settle_groups(site.name, study, site.tokens(study), has_responses(site, study), agreed)
    for group in agreed.groups:  # each is adjusted for on its own
        among = f" of a group of {group.n} subjects with the same responses"
        check_adjustable(sum(counts["covariates"] for counts in site.heard(study).values()), group.m, among)
    bound = hashlib.sha256("|".join(f"{p.number} {p.mac}" for p in portions).encode()).hexdigest().encode()
    if store.put("cohort", bound) != bound:
        raise FederationError("Another cohort was asked for before in this run. Refused; start a new run of the study.")
    site.claimed(study, site.table())
    everybody = np.concatenate([portion.order for portion in portions])
    table = as_the_study_asks(site.table(), study.site(site.name).transform, everybody)
    if isinstance(table, ScoredTable):
        store.replace(SCORES_FILE, table.scores.to_bytes())
    table = prepared(table, kinds_of(study, site.name, site.kinds), everybody)
    tables = [PartTable.of(table, portion.responses, portion.order) for portion in portions]
    ledger = None if site.folder is None else open_ledger(site.folder)
    own = _own_rules(site, study, ledger, portions, tables)
    checks = [_gate(site, study, portion, part, own) for portion, part in zip(portions, tables, strict=True)]
    found = [check.verdict.as_dict() for check in checks]
    # One group is the common case: then the file is as in every other study.
    verdict = found[0] if len(found) == 1 else {"findings": [f for one in found for f in one["findings"]], "groups": found}
    store.replace("preflight.json", json.dumps(verdict, indent=1, default=str).encode())
    for check in checks:
        check.verdict.check()
    claims = [check.reserve() for check in checks]
    contents = "".join("" if check.claim is None else check.claim.content for check in checks)
    waiting = f"sketch.pending-{hashlib.sha256(contents.encode()).hexdigest()[:16]}"
    pending = store.get(waiting)
    if pending is None:
        key = site.key(study)  # of the study's own run; a group's is only a name in the ledger
        made = [
            site.make(portion.study, key, part, portion.order, portion.mac, check)
            for portion, part, check in zip(portions, tables, checks, strict=True)
        ]
        units = common_units([one.units for one in made], [len(p.order) for p in portions], table.responses)
        scales = published_scales(backs_of(table), units) if study.deliver.share_scales else ()
        most = {p.number: check.facts.most_told for p, check in zip(portions, checks, strict=True)}
        parts = {p.number: _final(site, study, one, units, scales, most[p.number]) for p, one in zip(portions, made, strict=True)}
        pending = GroupedSketch(site.name, study.hash, tuple(units.responses), parts).to_bytes()
        skewness = {c.name: c.skewness for check in checks for c in check.facts.own_columns}
        store.replace("units.secret", units.to_bytes())
        store.replace(KINDS_FILE, Meaning.of(table, skewness, study.kinds).to_bytes())
        store.replace("columns.json", json.dumps({"levels": table.levels, "reference": table.layout.reference}).encode())
        for number, (check, part) in enumerate(zip(checks, parts.values(), strict=True)):
            _cards(site, study, store, check, part, number)
        site.remember_columns(store, ledger, everybody)
        store.replace(waiting, pending)
    grouped = GroupedSketch.load(pending)
    for claim, part in zip(claims, grouped.parts.values(), strict=True):
        if ledger is not None and claim is not None:
            ledger.release(claim, part.to_bytes())
    store.rename(waiting, "sketch")
    return pending


def _own_rules(site: "Site", study: Study, ledger: Any, portions: Sequence[Portion], tables: Sequence[Table]) -> "SiteRules":
    """The same for all groups. A shared scale is one number over all groups that have the response, and is judged as that."""
    from intarsia.site.preflight import SiteRules, shared_scales

    announced = {name: counts["columns"] for name, counts in site.heard(study).items()}
    runs = frozenset((portion.study.id, portion.study.run) for portion in portions)
    scales = None
    if ledger is not None and study.deliver.share_scales:
        scales = shared_scales(ledger, [(table, portion.order) for portion, table in zip(portions, tables, strict=True)])
    return SiteRules(site.policy, ledger, announced, scales=scales, same_run=runs)


def _gate(site: "Site", study: Study, portion: Portion, table: Table, own: "SiteRules") -> "Preflight":
    from intarsia.site.data.covariate_checks import check_covariates
    from intarsia.site.preflight import preflight

    check_covariates(table, portion.order)
    return preflight(
        table, site.key(study), portion.study, site=site.name, order=portion.order, order_mac=portion.mac, own=own
    )  # fmt: skip


def _cards(site: "Site", study: Study, store: RunStore, check: "Preflight", part: Sketch, number: int) -> None:
    from intarsia.site.own_card import card_files

    listed = {name: counts["subjects"] for name, counts in site.heard(study).items()}
    for name, content in card_files(check, part.to_bytes(), site.identity, None, {}, listed).items():
        store.replace(name if number == 0 else name.replace(".", f"-{number + 1}."), content)


def common_units(found: Sequence[Units], sizes: Sequence[int], responses: Sequence[str]) -> Units:
    """Means and standard deviations over all groups together: a coefficient is per standard deviation of the whole cohort."""
    if len(found) == 1:
        return found[0]
    first = found[0]
    n = np.asarray(sizes, dtype=np.float64)
    x = _pooled([u.x_mean for u in found], [u.x_scale for u in found], n)
    z = _pooled([u.z_mean for u in found], [u.z_scale for u in found], n)
    y_mean, y_scale = [], []
    for label in responses:
        here = [(u, k) for k, u in enumerate(found) if label in u.responses]
        at = [u.responses.index(label) for u, _ in here]
        mean, scale = _pooled(
            [u.y_mean[[q]] for (u, _), q in zip(here, at)],
            [u.y_scale[[q]] for (u, _), q in zip(here, at)],
            n[[k for _, k in here]],
        )
        y_mean.append(mean[0])
        y_scale.append(scale[0])
    return Units(
        first.features, tuple(responses), *x, np.array(y_mean), np.array(y_scale), first.covariates, *z, first.dropped
    )  # fmt: skip


def _pooled(means: Sequence[Any], scales: Sequence[Any], n: NDArray[np.float64]) -> tuple[Any, Any]:
    """Mean and standard deviation of the rows of several groups together."""
    if len(means) == 1:
        return means[0], scales[0]
    m, s = np.stack(means), np.stack(scales)
    mean = n @ m / n.sum()
    scatter = (n - 1) @ s**2 + n @ (m - mean) ** 2
    return mean, np.sqrt(scatter / (n.sum() - 1))


def _final(site: "Site", study: Study, made: Any, units: Units, scales: tuple[float, ...], most_told: int | None) -> Sketch:
    """A group's sketch in the scales of all groups, for the study as everybody knows it."""
    own, message = made.units, made.message
    at = [units.responses.index(label) for label in own.responses]
    shared = tuple(scales[k] for k in at) if scales else ()
    return replace(
        message,
        X=message.X * (own.x_scale / units.x_scale), Y=message.Y * (own.y_scale / units.y_scale[at]),
        Z=np.asarray(message.Z) * (own.z_scale / units.z_scale), study_hash=study.hash, response_scales=shared,
        most_told=most_told, key_fingerprint=site.key(study).study_fingerprint(study.hash),
    )  # fmt: skip
