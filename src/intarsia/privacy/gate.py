"""The gate: facts about a sketch against a policy, rule by rule."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from intarsia.errors import PrivacyError
from intarsia.privacy import gram_leakage, leverage_rules, rules, screened_leakage
from intarsia.privacy.blind import danger
from intarsia.privacy.facts import OVERRIDDEN, REFUSE, WARN, ColumnFacts, Facts, Finding
from intarsia.privacy.leakage import Leakage, leakage
from intarsia.privacy.membership import auc_of_person, membership_auc
from intarsia.privacy.policy import Policy


@dataclass(frozen=True)
class Verdict:
    """All findings, and the numbers that go on the card.

    `leakage` and `membership` are None when the number of columns at the other sites is unknown: a figure made of one
    site's columns alone would be too small. `blind` is None under differential privacy, where no column is looked at.
    """

    findings: tuple[Finding, ...]
    leakage: Leakage | None
    membership: float | None
    ratio: float
    blind: float | None
    policy: Policy = field(repr=False)
    most_exposed: float | None = None  # the membership AUC of the person who is farthest out

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
            "leakage": None if self.leakage is None else self.leakage.as_dict(),
            "membership_auc": self.membership,
            "membership_auc_most_exposed": self.most_exposed,
            "ratio": self.ratio,
            "blind_danger": self.blind,
            "policy": self.policy.as_dict(),
        }


def judge(facts: Facts, policy: Policy) -> Verdict:
    """Apply every rule; those of a Gram matrix where the study makes one. Under differential privacy only those that look at
    public numbers apply: a refusal that depends on somebody's value would tell it outside of the budget.
    """
    if facts.kind == "gram":
        return _judge_gram(facts, policy)
    if facts.kind == "screened":
        return _judge_screened(facts, policy)
    known = facts.columns_known
    bits = leakage(facts.n, facts.m, facts.columns, facts.kind) if known else None
    auc = membership_auc(facts.n, facts.m, facts.columns, facts.kind) if known else None
    far = _farthest(facts)
    most = None if auc is None or far is None else auc_of_person(facts.n, facts.m, far)
    ratio = (facts.history_m + facts.m) / facts.n
    risk = None if facts.differential_privacy else danger(facts.shape, facts.n, facts.m)
    found = [*rules.ratio(facts, ratio, policy), *rules.strangers(facts), *rules.membership(facts, auc, policy, most)]
    if facts.differential_privacy:
        found += rules.budget(facts, policy)
    else:
        found += [*rules.columns(facts, policy), *leverage_rules.leverage(facts)]
        found += [*rules.blind(facts, risk or 0.0, policy), *rules.blind_of_differences(facts, policy)]
        found += rules.attack(facts, policy)
        found += rules.scales(facts, policy)
    found += [*rules.told(facts), *rules.precision(facts), *rules.information(facts, bits)]
    return Verdict(tuple(_excused(f, policy) for f in found), bits, auc, ratio, risk, policy, most)


def _judge_gram(facts: Facts, policy: Policy) -> Verdict:
    """There is no Φ to be found and no key to leak; the columns, who can be recognised, and what left before are judged."""
    fits = facts.columns_known and facts.columns < facts.people - 1
    auc = gram_leakage.membership_auc(facts.people, facts.columns) if fits else None
    far = _farthest(facts)
    most = None if auc is None or far is None else gram_leakage.auc_of_person(facts.people, facts.columns, far)
    found = [*gram_leakage.size(facts, policy), *gram_leakage.membership(facts, auc, policy, most), *rules.columns(facts, policy)]
    found += [*leverage_rules.leverage(facts), *gram_leakage.differencing(facts, policy), *rules.scales(facts, policy)]
    found += [*rules.readable(facts), *rules.told(facts), *rules.strangers(facts)]
    excused = tuple(_excused(f, policy) for f in found)
    return Verdict(excused, None, auc, facts.columns / facts.people, None, policy, most)


def _farthest(facts: Facts) -> float | None:
    """The squared distance of the person who is farthest out, in all sites' columns if the others' are like the own ones."""
    if facts.looked is None or facts.looked.farthest is None:
        return None
    return facts.looked.farthest * facts.columns


def _judge_screened(facts: Facts, policy: Policy) -> Verdict:
    """As of a Gram matrix, and the sums of all features with the responses; or the sketch that screens in their place."""
    found, auc = screened_leakage.judge(facts, policy)
    found += [*rules.columns(facts, policy), *leverage_rules.leverage(facts), *rules.scales(facts, policy)]
    found += [*rules.told(facts), *rules.strangers(facts)]
    bits, ratio, risk = None, 0.0, None
    if facts.m:
        ratio, risk = (facts.history_m + facts.m) / facts.n, danger(facts.shape, facts.n, facts.m)
        bits = leakage(facts.n, facts.m, facts.columns, "orthonormal") if facts.columns_known else None
        found += [*rules.ratio(facts, ratio, policy), *rules.blind(facts, risk, policy), *rules.attack(facts, policy)]
        found += [*rules.blind_of_differences(facts, policy), *rules.precision(facts), *rules.information(facts, bits)]
    else:
        found += rules.readable(facts)
    most = screened_leakage.most_exposed(facts, policy)
    return Verdict(tuple(_excused(f, policy) for f in found), bits, auc, ratio, risk, policy, most)


def _excused(finding: Finding, policy: Policy) -> Finding:
    """A refusal covered by an override stays visible, as overridden."""
    if finding.level != REFUSE:
        return finding
    override = policy.overridden(finding.rule, finding.columns)
    return finding if override is None else replace(finding, level=OVERRIDDEN, override=override)


def facts_table(facts: Facts) -> list[Mapping[str, Any]]:
    """Columns by how exposed they are, worst first: decoded, then what theory leaves unknown, then few values."""

    def key(c: ColumnFacts) -> tuple[float, float, int]:
        order = {"exact": 0, "partly": 1}.get(c.attacked or "", 2)
        return order, c.theory_unknown if c.theory_unknown is not None else 1.0, c.distinct

    # Plain values only: `asdict` would copy each of them with care, for seconds where columns are many.
    return [dict(vars(c)) for c in sorted(facts.own_columns, key=key)]
