"""The largest m that the gate would let pass, for a site whose sketch it refuses: by trying, as a dry run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from intarsia.privacy.facts import Finding
from intarsia.privacy.gate import Verdict
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.preflight import Preflight, SiteRules, preflight
from intarsia.wire.study import Study

MOST_VALUES = 2_000_000  # of a larger table every trial takes long
TRIALS = 7  # each halves what is not known: within a hundredth of the first m
# The rules that a smaller m may satisfy; whatever else is refused is to be mended at the table.
OF_M = frozenset({"ratio", "readable-response", "blind", "leverage", "decodable"})


def largest_m(table: Table, study: Study, refused: Preflight, own: SiteRules, order: Any = None) -> int | None:
    """0 where no m was found; None where it was not looked for: a large table, exact products, or noise that protects."""
    facts, exact = refused.facts, study.sketch.shares or study.privacy.epsilon is not None
    if exact or facts.n * len(facts.own_columns) > MOST_VALUES:
        return None
    if not only_of_m(refused.verdict.refused):
        return None

    def passes(m: int) -> bool:
        smaller = replace(study, sketch=replace(study.sketch, m=m))
        verdict: Verdict = preflight(table, SketchKey.new(), smaller, site=refused.site, order=order, own=own).verdict
        return not verdict.refused

    best, low, high = 0, 2, study.sketch.m  # high is refused; low is not tried before it is reached
    for _ in range(TRIALS):
        middle = (low + high) // 2
        if high - low < 2 or middle < 2:
            break
        best, low, high = (middle, middle, high) if passes(middle) else (best, low, middle)
    return best


def only_of_m(refused: Sequence[Finding]) -> bool:
    """Whether a smaller m can mend all of what is refused."""
    return all(finding.rule in OF_M for finding in refused)
