"""What a site checks before a sketch leaves: its columns, the cohort's history, attacks on its own sketch with the
real Φ.

    check = preflight(table, key, study, site="clinic", order=order, own=SiteRules(ledger=open_ledger(folder)))
    check.verdict.check()                       # raises PrivacyError with every rule that refuses
    claim = check.reserve()                     # one-time Φ: this run is now bound to this cohort and these values
    message = sketch(...).message               # or private_sketch(..., ClippedNoise(check.clip, check.noise.w))
    ledger.release(claim, message.to_bytes())   # just before the bytes leave

Under differential privacy no column is looked at: a refusal that depends on somebody's value would tell it outside of the
budget. Only public numbers decide then (n, m, columns, Σm, Σε).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.privacy import dp, grid
from intarsia.privacy.blind import danger
from intarsia.privacy.facts import ColumnFacts, Facts
from intarsia.privacy.gate import Verdict, judge
from intarsia.privacy.gram_leakage import MOST_COLUMNS
from intarsia.privacy.ledger import Claim, Entry, Ledger
from intarsia.privacy.policy import Policy
from intarsia.privacy.screened_leakage import usual_kept
from intarsia.privacy.told import most_sums
from intarsia.site.content_digest import ContentDigest
from intarsia.site.data.columns import Profile, profile
from intarsia.site.data.combinations import of_few_people
from intarsia.site.data.row_blocks import check_order
from intarsia.site.data.table import Table
from intarsia.site.few_people import WORTH_TRYING, look
from intarsia.site.key import SketchKey
from intarsia.site.screened.screen_facts import screen_of
from intarsia.site.self_attack import attack_blind, attack_columns, exposures
from intarsia.site.sketch.clipping import Bound
from intarsia.site.sketch.private import public_bound
from intarsia.site.sketch.terms import SketchTerms
from intarsia.wire.study import Study


@dataclass(frozen=True)
class SiteRules:
    """What the site itself brings to the check: its own policy, its ledger, and the sites' counts of columns as announced
    (`heard`: with those of covariates among them).

    A ledger binds the run to the cohort before any value is looked at, and books a refusal; a `dry` run books nothing. Where
    subjects come in groups, `scales` and `same_run` say of whom responses' scales are shared and which runs are the other groups.
    """

    policy: Mapping[str, Any] | None = None
    ledger: Ledger | None = None
    announced: Mapping[str, int] | None = None
    heard: Mapping[str, Mapping[str, int]] | None = None
    dry: bool = False
    scales: Mapping[str, "SharedScale"] | None = None
    same_run: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Preflight:
    """The outcome: the verdict, the facts behind it, what differential privacy asks for, and the claim to make."""

    site: str
    study: Study
    facts: Facts
    verdict: Verdict
    guarantee: dp.Guarantee | None
    clip: Bound | None
    ledger: Ledger | None
    claim: Claim | None
    key_fingerprint: str

    @property
    def noise(self) -> dp.SiteNoise | None:
        return None if self.guarantee is None else self.guarantee.sites[self.site]

    def reserve(self) -> Entry | None:
        """Claim the run in the ledger (None without a ledger: for tries and studies within one process)."""
        return None if self.ledger is None or self.claim is None else self.ledger.reserve(self.claim)


def preflight(
    table: Table,
    key: SketchKey,
    study: Study,
    *,
    site: str,
    order: Any = None,
    order_mac: str = "",
    own: SiteRules | None = None,
) -> Preflight:
    """Everything a site looks at before it sketches. Time is bounded by the policy's `attack_seconds`."""
    with table.reading_once():
        return _looked_at(table, key, study, site, order, order_mac, own or SiteRules())


def _looked_at(
    table: Table, key: SketchKey, study: Study, site: str, order: Any, order_mac: str, own: SiteRules
) -> Preflight:  # fmt: skip
    ledger = own.ledger
    policy = Policy.of_study(study.privacy).tightened(own.policy or {})
    chosen = None if order is None else check_order(order, table.n)
    n, m, gram = table.n if chosen is None else len(chosen), study.sketch.m, study.sketch.shares
    mixed = m > 0  # a sketch leaves: by itself, or to screen what is shared later
    if m >= n:
        raise InputError(f"m = {m} sketch rows for n = {n} subjects: m must be below n, or the sketch hides nothing.")
    private = study.privacy.epsilon is not None
    facts = _public_facts(table, study, site, n, own.announced or {})
    if study.sketch.screened:
        facts = replace(facts, screen=screen_of(study, site, table, own.heard or {}, chosen))
    now = _told_now(facts)
    facts = replace(facts, told=now, sums=_sums_now(facts))
    claim = None
    if ledger is not None:
        each = ledger.token_of_each(table.id_column)
        tokens = np.unique(each if chosen is None else each[chosen])
        claim = Claim(
            study.id, study.run, tokens, n, m, study.sketch.kind, len(facts.own_columns), "", facts.epsilon, facts.delta,
            told=now, exact_sums=0 if facts.screen is None else facts.screen.sums,
        )  # fmt: skip
        if not own.dry:
            ledger.bind(claim)
        this = (study.id, study.run)
        facts = replace(
            facts, history_m=ledger.history(tokens, but=this), told=now + ledger.told(tokens, but=this),
            earlier_sums=ledger.sums(tokens, but=this), strangers=ledger.strangers(tokens, but=this),
            earlier_budget=ledger.budget(tokens, but=this),
            earlier_private=ledger.budget(tokens, but=this, of_all=False) or (0.0, 0.0),
            screen=facts.screen and replace(facts.screen, earlier_sums=ledger.exact_sums(tokens, but=this)),
        )  # fmt: skip
    hasher = None if ledger is None else ledger.content_hasher()
    if private:
        if hasher is not None:
            for parts in table.raw_blocks():
                hasher.update(np.ascontiguousarray(parts).tobytes())
    else:
        # The looks at the columns read the rows as they lie. What exact products tell does not depend on the order of subjects
        # either: their content is taken in the table's own.
        among = None if chosen is None else np.sort(chosen)
        if study.sketch.screened and among is not None and len(among) == table.n:
            among = None  # everybody: a wide table is read without being put into an order
        content = None if hasher is None else ContentDigest(hasher, None if gram else chosen)
        found = profile(table, among, None if content is None else content.update, policy.min_level)
        if content is not None:
            content.finish()
        facts = replace(facts, own_columns=tuple(found.facts), attack_ran=policy.self_attack and mixed)
        facts = _combined(facts, table, among, policy)
        if facts.attack_ran:
            phi = SketchTerms.of(study, site, order_mac).design(key, n)
            columns, complete = attack_columns(table, phi, found, chosen, study.sketch.precision, policy.attack_seconds)
            facts = replace(facts, own_columns=tuple(columns), attack_complete=complete)
            if danger(facts.shape, n, m) > WORTH_TRYING:
                facts = replace(
                    facts, blind_found=attack_blind(table, phi, chosen, study.sketch.precision, policy.attack_seconds)
                )  # fmt: skip
        leaving = None if not mixed else SketchTerms.of(study, site, order_mac).design(key, n)
        facts = replace(facts, looked=look(table, among, found, facts, leaving, policy))
        facts = replace(facts, own_columns=_told_by_results(facts, found))
        of_features = [law for name, law in found.laws.items() if name not in facts.responses]
        facts = replace(facts, most_told=most_sums(of_features, n, facts.earlier_sums, facts.sums))
    if claim is not None:
        claim = replace(claim, sums=facts.sums if facts.most_told is None else facts.most_told)
    guarantee, clip = _private(table, study, site, n) if private else (None, None)
    if claim is not None and hasher is not None:
        under = () if gram else (key.fingerprint, order_mac)
        hasher.update(repr((tuple(c.name for c in facts.own_columns), *under)).encode())
        claim = replace(claim, content=hasher.hexdigest())
        if ledger is not None and gram:
            claim = replace(claim, folds=_folds(table, chosen, study, ledger))
            facts = replace(facts, singled_out=ledger.singled_out(claim.tokens, claim.content, this, claim.folds))
        if ledger is not None and study.deliver.share_scales and table.responses and not private:
            scales = own.scales or shared_scales(ledger, [(table, chosen)])
            claim = replace(claim, responses=" ".join(scales[label].item for label in table.responses))
            these = own.same_run or {(study.id, study.run)}
            apart = ledger.scales_single_out({scale.item: scale.people for scale in scales.values()}, these)
            facts = replace(facts, scales_single_out=apart)
    verdict = judge(facts, policy)
    if claim is not None and ledger is not None and verdict.refused and not own.dry:
        ledger.refuse(claim, (f.rule for f in verdict.refused))
    return Preflight(site, study, facts, verdict, guarantee, clip, ledger, claim, key.study_fingerprint(study.hash))


def _told_now(facts: Facts) -> int:
    """How many effects on each of this site's responses the other sites get, all columns of all of them taken together; of a
    sketch no more than m of them tell anything."""
    return _others_effects(facts) if facts.responses and facts.other_sites else 0


def _sums_now(facts: Facts) -> int:
    """The same of this site's features: the effects of another site's columns on any response are sums over these too."""
    return _others_effects(facts) if facts.other_sites and not facts.differential_privacy else 0


def _others_effects(facts: Facts) -> int:
    most = int(facts.n * MOST_COLUMNS) if facts.exact or facts.screen is not None else facts.m
    if facts.screen is not None:
        most = min(most, facts.screen.keep or usual_kept(facts.n)) + facts.screen.covariates
    return min(facts.columns - len(facts.own_columns), most) if facts.columns_known else most


def _combined(facts: Facts, table: Table, order: NDArray[np.int64] | None, policy: Policy) -> Facts:
    """With what a few people make of a combination of columns; those with a fault of their own are left to their own rules."""
    fine = {
        c.name for c in facts.own_columns
        if c.distinct > 1 and c.rarest >= policy.min_level and c.dominance <= policy.max_dominance
        and c.carried_by is None and c.duplicate_of is None and c.near_duplicate_of is None
    }  # fmt: skip
    found = of_few_people(table, order, fine, policy.min_level)
    return facts if found is None else replace(facts, combined=found.columns, combined_people=found.people)


def _told_by_results(facts: Facts, found: Profile) -> tuple[ColumnFacts, ...]:
    """What a site that has the results of every run on these people works out of each response, by theory."""
    if not facts.told:
        return facts.own_columns
    share = facts.told / facts.n
    laws = {name: law for name, law in found.laws.items() if name in facts.responses}
    unknown = exposures(laws, min(share, 1.0))
    more = {name: 1.0 if share >= 1 else 1 - left / (1 - share) for name, left in unknown.items()}
    return tuple(replace(one, told_more=more[one.name]) if one.name in more else one for one in facts.own_columns)


class SharedScale(NamedTuple):
    """One response whose exact scale is shared: what stands for its name and values in the ledger, and whose values they are."""

    item: str
    people: NDArray[np.uint64]


def shared_scales(ledger: Ledger, groups: Sequence[tuple[Table, NDArray[np.int64] | None]]) -> dict[str, SharedScale]:
    """By response, over all groups that have it and whatever the order: the same item means the same scale of the same people."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for table, order in groups:
        each = ledger.token_of_each(table.id_column)
        people = each if order is None else each[order]
        values = np.concatenate([Y for _, Y, _ in table.blocks(order=np.arange(table.n) if order is None else order)])
        for q, label in enumerate(table.responses):
            found.setdefault(label, []).append((people, values[:, q]))
    out = {}
    for label, parts in found.items():
        people, column = (np.concatenate(some) for some in zip(*parts, strict=True))
        rows = np.argsort(people, kind="stable")
        item = ledger.digest(label.encode(), people[rows].tobytes(), column[rows].tobytes())[:32]
        out[label] = SharedScale(item, people[rows])
    return out


def _folds(table: Table, order: NDArray[np.int64] | None, study: Study, ledger: Ledger) -> tuple[NDArray[np.uint64], ...]:
    """The people of each fold of a Gram study; they stand together in the agreed order."""
    if not study.sketch.folds or order is None:
        return ()
    ends = np.cumsum([0, *study.sketch.fold_sizes(len(order))])
    each = ledger.token_of_each(table.id_column)
    return tuple(np.unique(each[order[a:b]]) for a, b in pairwise(ends))


def _public_facts(table: Table, study: Study, site: str, n: int, announced: Mapping[str, int]) -> Facts:
    """What the study file and the column labels say; no value is looked at."""
    labels = table.labels
    stated = study.site(site).columns
    if stated is not None and stated != len(labels):
        raise InputError(
            f"study.toml states columns = {stated} for site {site!r}; the table brings {len(labels)}. Correct one of the two: "
            "the other sites' figures rest on it."
        )
    others = _others_columns(study, site, announced)
    return Facts(
        n=n, m=study.sketch.m, kind=cast(Any, study.sketch.kind), columns=len(labels) + (others or 0),
        columns_known=others is not None, precision=study.sketch.precision, epsilon=study.privacy.epsilon,
        delta=study.privacy.delta, other_sites=len(study.sites) > 1,
        folds=study.sketch.folds or 1,
        own_columns=tuple(ColumnFacts(label, 0, None, 0, 0.0) for label in labels),
        responses=frozenset(table.responses),
    )  # fmt: skip


def _others_columns(study: Study, site: str, announced: Mapping[str, int]) -> int | None:
    """How many columns the other sites bring: as they announced, as study.toml states, or as it lists by name; None where a
    pattern leaves it open.
    """
    total = 0
    for entry in study.sites:
        if entry.name == site:
            continue
        told = announced.get(entry.name)
        if told is not None and entry.columns is not None and told != entry.columns:
            raise InputError(
                f"Site {entry.name!r} announced {told} columns, study.toml states {entry.columns}. Nothing was sent."
            )
        listed = None if any("*" in label for label in entry.labels) else len(entry.labels)
        counts = [count for count in (told, entry.columns, listed) if count is not None]
        if not counts:
            return None
        total += max(counts)
    return total


def _private(table: Table, study: Study, site: str, n: int) -> tuple[dp.Guarantee, Bound]:
    """Noise for this site. Every site computes the same split: it rests on the study file alone."""
    p = study.privacy
    missing = [name for name in study.names if name not in p.row_bound]
    if missing:
        raise InputError(f"Differential privacy needs row_bound for every site; {', '.join(missing)} has none in study.toml.")
    assert p.epsilon is not None
    assert p.delta is not None
    countable = not any("*" in label for s in study.sites for label in s.labels)
    counts = {s.name: len(s.labels) for s in study.sites} if countable else None
    guarantee = dp.guarantee(p.epsilon, p.delta, study.sketch.m, {name: p.row_bound[name] for name in study.names}, counts)
    own, entries = guarantee.sites[site], study.sketch.m * len(table.labels)
    mu = grid.shift(n, study.sketch.m, len(table.labels), own.row_bound, own.w)
    grid.check(p.epsilon, p.delta, mu, entries, len(study.sites))
    return guarantee, public_bound(table.labels, site, p.row_bound, p.centres, p.scales)
