"""The gate: facts about a sketch against a policy. Each finding says which rule, the number, the limit and the
remedy.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isinf
from typing import Any

from intarsia.errors import PrivacyError
from intarsia.privacy.leakage import Kind, Leakage, leakage
from intarsia.privacy.membership import largest_ratio, membership_auc
from intarsia.privacy.policy import Override, Policy

OK, NOTE, WARN, REFUSE, OVERRIDDEN = "ok", "note", "warn", "refuse", "overridden"


@dataclass(frozen=True)
class ColumnFacts:
    """What the site found out about one column, by name; none of it leaves the site but on its own card."""

    name: str
    distinct: int  # capped: "more than a dozen" is all that matters
    smallest_level: int | None  # subjects in the rarest level, of a column of few values
    off_mode: int  # subjects who do not have the commonest value
    dominance: float  # largest share of the column's variance that one subject carries
    duplicate_of: str | None = None
    theory_unknown: float | None = None  # share of variance left unknown if Φ leaks (state evolution)
    attacked: str | None = None  # "exact", "partly", "no"
    right: float | None = None
    right_rare: float | None = None


@dataclass(frozen=True)
class Facts:
    """What the gate judges."""

    n: int
    m: int
    kind: Kind
    columns: int  # all columns the server will hold for this cohort
    own_columns: tuple[ColumnFacts, ...] = ()
    history_m: int = 0  # Σm of earlier runs on (any part of) this cohort
    differential_privacy: bool = False
    precision: str = "float64"
    attack_complete: bool = True
    attack_ran: bool = True


@dataclass(frozen=True)
class Finding:
    rule: str
    level: str
    text: str
    number: float | None = None
    limit: float | None = None
    columns: tuple[str, ...] = ()
    override: Override | None = None


@dataclass(frozen=True)
class Verdict:
    """All findings, and the numbers that go on the card."""

    findings: tuple[Finding, ...]
    leakage: Leakage
    membership: float
    ratio: float
    policy: Policy = field(repr=False)

    @property
    def refused(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.level == REFUSE)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.level == WARN)

    def check(self) -> "Verdict":
        """Raise when a rule refuses; the message lists every one, so that one round of repair is enough."""
        if self.refused:
            text = "\n".join(f"  - {f.text}" for f in self.refused)
            raise PrivacyError(f"The privacy gate refuses this sketch; nothing was sent.\n{text}")
        return self

    def as_dict(self) -> dict[str, Any]:
        return {
            "findings": [asdict(f) for f in self.findings],
            "leakage": self.leakage.as_dict(),
            "membership_auc": self.membership,
            "ratio": self.ratio,
            "policy": self.policy.as_dict(),
        }


def judge(facts: Facts, policy: Policy) -> Verdict:
    """Apply every rule."""
    bits = leakage(facts.n, facts.m, facts.columns, facts.kind)
    auc = membership_auc(facts.n, facts.m, facts.columns, facts.kind)
    ratio = (facts.history_m + facts.m) / facts.n
    found = [*_ratio(facts, ratio, policy), *_membership(facts, auc, policy), *_columns(facts, policy)]
    found += [*_attack(facts, policy), *_precision(facts), *_information(facts, bits)]
    return Verdict(tuple(_excused(f, policy) for f in found), bits, auc, ratio, policy)


def _excused(finding: Finding, policy: Policy) -> Finding:
    """A refusal covered by an override stays visible, as overridden."""
    if finding.level != REFUSE:
        return finding
    override = policy.overridden(finding.rule, finding.columns)
    if override is None:
        return finding
    return Finding(finding.rule, OVERRIDDEN, finding.text, finding.number, finding.limit, finding.columns, override=override)


def _ratio(facts: Facts, ratio: float, policy: Policy) -> list[Finding]:
    past = f" ({facts.history_m} rows from earlier runs)" if facts.history_m else ""
    fits = int(policy.max_ratio * facts.n) - facts.history_m
    if ratio > policy.max_ratio:
        remedy = f"Use m of at most {fits}" if fits >= 2 else "This cohort's allowance is spent"
        text = f"ratio: Σm/n = {ratio:.3f}{past} is above the limit {policy.max_ratio:g}. {remedy}, or override 'ratio'."
        return [Finding("ratio", REFUSE, text, ratio, policy.max_ratio)]
    if ratio > policy.warn_ratio:
        text = (
            f"ratio: Σm/n = {ratio:.3f}{past} is above {policy.warn_ratio:g}: a leaked key would expose more than rare columns."
        )
        return [Finding("ratio", WARN, text, ratio, policy.warn_ratio)]
    return [Finding("ratio", OK, f"ratio: Σm/n = {ratio:.3f}{past}.", ratio, policy.warn_ratio)]


def _membership(facts: Facts, auc: float, policy: Policy) -> list[Finding]:
    if facts.differential_privacy:
        text = f"membership: AUC {auc:.3f} without noise; differential privacy bounds it further."
        return [Finding("membership", OK, text, auc, policy.max_auc)]
    if auc > policy.max_auc:
        if 0.5 < policy.max_auc < 1:
            needed = f"n of at least {int(facts.columns / largest_ratio(facts.m, policy.max_auc)) + 1} at this m"
        else:
            needed = "more subjects"
        text = (
            f"membership: whoever holds a person's {facts.columns} values can tell with AUC {auc:.3f} whether the "
            "person is in "
            f"the cohort (limit {policy.max_auc:g}). Smaller m, fewer columns, {needed}, or differential privacy "
            "lower it."
        )
        return [Finding("membership", WARN, text, auc, policy.max_auc)]
    return [Finding("membership", OK, f"membership: AUC {auc:.3f}.", auc, policy.max_auc)]


def _columns(facts: Facts, policy: Policy) -> list[Finding]:
    own = facts.own_columns
    out: list[Finding] = []

    def names(chosen: Iterable[ColumnFacts]) -> tuple[str, ...]:
        return tuple(c.name for c in chosen)

    constant = names(c for c in own if c.distinct < 2)
    if constant:
        text = f"constant: {_list(constant)} has one value only. Leave it out."
        out.append(Finding("constant", REFUSE, text, columns=constant))
    duplicate = names(c for c in own if c.duplicate_of)
    if duplicate:
        text = f"duplicate: {_list(duplicate)} repeats another column, which helps whoever decodes it. Leave one of the two out."
        out.append(Finding("duplicate", REFUSE, text, columns=duplicate))
    rare = [c for c in own if c.distinct >= 2 and _rarest(c) < policy.min_level]
    if rare:
        least = min(_rarest(c) for c in rare)
        text = (
            f"rare-level: {_list(names(rare))} has a value that fewer than {policy.min_level} subjects hold (or "
            "all but so "
            f"few share one value; the least is {least}). Merge levels or leave the column out."
        )
        out.append(Finding("rare-level", REFUSE, text, least, policy.min_level, names(rare)))
    taken = set(names(rare)) | set(constant)
    dominant = [c for c in own if c.dominance > policy.max_dominance and c.name not in taken]
    if dominant:
        worst = max(c.dominance for c in dominant)
        text = (
            f"dominant: in {_list(names(dominant))} one subject carries up to {worst:.0%} of the variance; its "
            "sketch is that "
            "subject's column of Φ. Transform the column (logarithm, ranks) or cut its tail."
        )
        out.append(Finding("dominant", REFUSE, text, worst, policy.max_dominance, names(dominant)))
    few = names(c for c in own if 2 <= c.distinct <= policy.few_values and c.name not in taken)
    if few:
        text = f"few-values: {_list(few)} has at most {policy.few_values} values: decodable if the key leaks and m/n is large."
        out.append(Finding("few-values", WARN, text, columns=few))
    return out


def _rarest(column: ColumnFacts) -> int:
    return min(column.off_mode, column.smallest_level if column.smallest_level is not None else column.off_mode)


def _attack(facts: Facts, policy: Policy) -> list[Finding]:
    if not policy.self_attack or not facts.attack_ran:
        text = "self-attack: switched off, so nobody knows which columns a leaked key would expose."
        return [Finding("self-attack", WARN, text)]
    out = []
    decoded = tuple(c.name for c in facts.own_columns if c.attacked == "exact")
    if decoded:
        text = (
            f"decodable: with this Φ every subject's value of {_list(decoded)} can be read from the sketch; any "
            "site that "
            "talks to the server gives them away. Smaller m, or leave the column out, or differential privacy."
        )
        out.append(Finding("decodable", WARN, text, len(decoded), columns=decoded))
    theory = tuple(
        c.name for c in facts.own_columns
        if c.attacked is None and c.theory_unknown is not None and c.theory_unknown < 0.01
    )  # fmt: skip
    if theory:
        text = f"decodable: {_list(theory)} would be decoded by theory if Φ leaked (not tried here: time or size)."
        out.append(Finding("decodable", WARN, text, len(theory), columns=theory))
    if not facts.attack_complete:
        text = f"self-attack: stopped after {policy.attack_seconds:g} s; the most exposed columns were tried first."
        out.append(Finding("self-attack", NOTE, text, policy.attack_seconds))
    return out or [Finding("self-attack", OK, "self-attack: no column was decoded, even with Φ known.")]


def _precision(facts: Facts) -> list[Finding]:
    if facts.precision == "float64":
        text = "precision: values leave in float64; float32 says the same about the regression and less about the rest."
        return [Finding("precision", NOTE, text)]
    return [Finding("precision", OK, f"precision: values are rounded to {facts.precision}.")]


def _information(facts: Facts, bits: Leakage) -> list[Finding]:
    if not isinf(bits.upper_bits):
        return []
    if facts.kind == "gaussian":
        why = f"{facts.columns} columns are more than n = {facts.n}"
    else:
        why = f"m + columns = {facts.m + facts.columns} is more than n - 1 = {facts.n - 1}"
    text = f"information: the mutual information of sketch and data is infinite ({why}), even with Φ secret."
    return [Finding("information", NOTE, text)]


def _list(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def facts_table(facts: Facts) -> list[Mapping[str, Any]]:
    """Columns by how exposed they are, worst first: decoded, then what theory leaves unknown, then few values."""

    def key(c: ColumnFacts) -> tuple[float, float, int]:
        order = {"exact": 0, "partly": 1}.get(c.attacked or "", 2)
        return order, c.theory_unknown if c.theory_unknown is not None else 1.0, c.distinct

    return [asdict(c) for c in sorted(facts.own_columns, key=key)]
