"""What a site checks before a sketch leaves: its columns, the cohort's history, attacks on its own sketch with the
real Φ.

    check = preflight(table, key, study, site="clinic", order=order, ledger=Ledger(folder))
    check.verdict.check()                       # raises PrivacyError with every rule that refuses
    claim = check.reserve()                     # one-time Φ: this run is now bound to this cohort and these values
    message = sketch(...)                       # or private_sketch(..., w=check.noise.w, clip=check.clip)
    ledger.release(claim, message.to_bytes())   # just before the bytes leave
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.privacy import dp
from intarsia.privacy.gate import Facts, Verdict, judge
from intarsia.privacy.leakage import Kind
from intarsia.privacy.ledger import Entry, Ledger
from intarsia.privacy.policy import Policy
from intarsia.site.data.columns import Profile, profile
from intarsia.site.data.table import Table, check_order
from intarsia.site.key import SketchKey
from intarsia.site.self_attack import attack_columns
from intarsia.site.sketch.clipping import Bound
from intarsia.site.sketch.private import public_bound
from intarsia.site.sketch.sketch import design
from intarsia.wire.study import Study


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
    tokens: NDArray[np.uint64] | None
    content: str
    key_fingerprint: str

    @property
    def noise(self) -> dp.SiteNoise | None:
        return None if self.guarantee is None else self.guarantee.sites[self.site]

    def reserve(self) -> Entry | None:
        """Claim the run in the ledger (None without a ledger: for tries and studies within one process)."""
        if self.ledger is None or self.tokens is None:
            return None
        s, p = self.study.sketch, self.study.privacy
        return self.ledger.reserve(
            study=self.study.id, run=self.study.run, tokens=self.tokens, content=self.content, n=self.facts.n, m=s.m,
            kind=s.kind, columns=len(self.facts.own_columns), epsilon=p.epsilon, delta=p.delta,
        )  # fmt: skip


def preflight(
    table: Table,
    key: SketchKey,
    study: Study,
    *,
    site: str,
    order: Any = None,
    order_mac: str = "",
    own_policy: Mapping[str, Any] | None = None,
    ledger: Ledger | None = None,
) -> Preflight:
    """Everything a site looks at before it sketches. Time is bounded by the policy's `attack_seconds`."""
    policy = Policy.of_study(study.privacy).tightened(own_policy or {})
    chosen = None if order is None else check_order(order, table.n)
    n, m = table.n if chosen is None else len(chosen), study.sketch.m
    if m >= n:
        raise InputError(f"m = {m} sketch rows for n = {n} subjects: m must be below n, or the sketch hides nothing.")
    hasher = None if ledger is None else ledger.content_hasher()
    found = profile(table, chosen, None if hasher is None else hasher.update)
    private = study.privacy.epsilon is not None
    columns, complete, ran = found.facts, True, False
    if policy.self_attack and not private:
        phi = design(key, study=study.id, run=study.run, n=n, m=m, kind=study.sketch.kind, cohort=order_mac)
        columns, complete = attack_columns(table, phi, found, chosen, study.sketch.precision, policy.attack_seconds)
        ran = True
    tokens = None if ledger is None else ledger.tokens(_ids(table, chosen))
    history = 0 if ledger is None or tokens is None else ledger.history(tokens, but=(study.id, study.run))
    facts = Facts(
        n=n, m=m, kind=cast(Kind, study.sketch.kind), columns=_all_columns(study, site, len(columns)),
        own_columns=tuple(columns), history_m=history, differential_privacy=private, precision=study.sketch.precision,
        attack_complete=complete, attack_ran=ran or private,
    )  # fmt: skip
    guarantee, clip = _private(study, site, found) if private else (None, None)
    content = ""
    if ledger is not None and hasher is not None:
        hasher.update(repr((found.names, key.fingerprint, order_mac)).encode())
        content = hasher.hexdigest()
    name = key.study_fingerprint(study.hash)
    return Preflight(site, study, facts, judge(facts, policy), guarantee, clip, ledger, tokens, content, name)


def _ids(table: Table, order: NDArray[np.int64] | None) -> Any:
    ids = table.ids()
    return ids if order is None else ids[order]


def _all_columns(study: Study, site: str, own: int) -> int:
    """Columns the server will hold: ours and those study.toml lists by name for the others (patterns cannot be
    counted).
    """
    others = (s for s in study.sites if s.name != site)
    return own + sum("*" not in label for s in others for label in (*s.features, *s.responses))


def _private(study: Study, site: str, found: Profile) -> tuple[dp.Guarantee, Bound]:
    """Noise for this site. Every site computes the same split: it rests on the study file alone."""
    p = study.privacy
    missing = [name for name in study.names if name not in p.row_bound]
    if missing:
        raise InputError(f"Differential privacy needs row_bound for every site; {', '.join(missing)} has none in study.toml.")
    assert p.epsilon is not None
    assert p.delta is not None
    listed = {s.name: (*s.features, *s.responses) for s in study.sites}
    countable = not any("*" in label for labels in listed.values() for label in labels)
    counts = {name: len(labels) for name, labels in listed.items()} if countable else None
    guarantee = dp.guarantee(p.epsilon, p.delta, study.sketch.m, {name: p.row_bound[name] for name in study.names}, counts)
    return guarantee, public_bound(found.names, site, p.row_bound, p.centres, p.scales)
