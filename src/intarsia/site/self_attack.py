"""A site attacks its own sketch: with the real Φ (as if the key had leaked) and without (as the server could).

Decoders run on exactly what leaves: the scaled sketch, rounded to the study's precision. The most exposed columns
come first and the time is bounded. Membership needs people who are not in the cohort; a few subjects are held back to
play them.
"""

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from math import sqrt
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from intarsia.errors import InputError
from intarsia.privacy.blind import affordable_starts, blind_phi, matched
from intarsia.privacy.decode import Levels, attack_column, state_evolution
from intarsia.privacy.differences import difference_search
from intarsia.privacy.facts import ColumnFacts
from intarsia.privacy.known_rows import attack_known_rows, known_rows_r2
from intarsia.privacy.membership import attack_membership, inverse_of_gram, whitening_from_sketch
from intarsia.privacy.singleton import match_phi, singleton_search
from intarsia.site.data.columns import Profile
from intarsia.site.data.table import Table
from intarsia.site.sketch.partial import Design
from intarsia.site.sketch.stream import gaussian_columns

Array = NDArray[np.float64]
LARGEST_PHI = 40_000_000  # entries of Φ held for the self-attack (320 MB); beyond that, theory alone
LARGEST_TABLE = 20_000_000  # values held for the attacks that need whole rows
HELD_BACK = 400  # subjects, at most, who stand for those that are not in the study
BLIND_SECONDS = 20.0


def real_phi(phi: Design) -> Array:
    """The m×n matrix Φ itself. It must not leave the function that asked for it."""
    from intarsia.site.sketch.sketch import factor

    G = gaussian_columns(phi.subkey, phi.m, 0, phi.n)
    if phi.kind == "gaussian":
        return G / np.sqrt(phi.n)
    return solve_triangular(factor(phi), G - G.mean(axis=1, keepdims=True), lower=True)


def attack_columns(
    table: Table, phi: Design, found: Profile, order: NDArray[np.int64] | None, precision: str, seconds: float
) -> tuple[list[ColumnFacts], bool]:
    """Theory for every column of few values, then the real attack on the most exposed; False if not all were tried."""
    start = monotonic()
    # Responses first, should time run out: the other sites get effects on them.
    first = set(table.responses)
    unknown = exposures(found.laws, phi.m / phi.n, seconds / 2, first)
    facts = {f.name: replace(f, theory_unknown=unknown[f.name]) if f.name in unknown else f for f in found.facts}
    # Far beyond the threshold nothing is found; trying costs time only.
    ranked = [c for c in unknown if unknown[c] < 0.9]
    ranked.sort(key=lambda c: (c not in first, unknown[c], facts[c].off_mode))
    small = phi.m * phi.n <= LARGEST_PHI
    complete = len(unknown) == len(found.laws) and (small or not ranked)
    Phi = real_phi(phi) if ranked and small else None
    for some in (ranked[i : i + 16] for i in range(0, len(ranked), 16)):
        if Phi is None or monotonic() - start > seconds:
            complete = False
            break
        truth = _columns(table, order, some)
        for name in some:
            left = seconds - (monotonic() - start)
            if left <= 0:
                complete = False
                break
            facts[name] = _attacked(facts[name], Phi, truth[name], found.scale[name], precision, left)
    return [facts[f.name] for f in found.facts], complete


def own_sketch(table: Table, Phi: Array, order: NDArray[np.int64] | None, precision: str) -> Array:
    """What would leave: Φ times the standardised columns, rounded; the table is read in row blocks."""
    columns = len(table.labels)
    S, total, square, shift, at = np.zeros((len(Phi), columns)), np.zeros(columns), np.zeros(columns), np.zeros(columns), 0
    for parts in table.blocks(order=order):
        Z = np.hstack(parts)
        shift = Z[0] if at == 0 else shift  # a large offset must not cost digits
        Z = Z - shift
        S += Phi[:, at : at + len(Z)] @ Z
        total, square, at = total + Z.sum(axis=0), square + np.square(Z).sum(axis=0), at + len(Z)
    mean = total / at
    sd = np.sqrt(np.maximum(square - at * mean**2, 0.0) / (at - 1))
    if not (sd > 0).all():
        raise InputError("A column of one value carries nothing and cannot be attacked. Drop it.")
    return ((S - np.outer(Phi.sum(axis=1), mean)) / sd).astype(precision).astype(float)


def attack_blind(
    table: Table, phi: Design, order: NDArray[np.int64] | None, precision: str, seconds: float
) -> int | None:  # fmt: skip
    """How many columns of Φ the blind attack finds in this site's own sketch; None when it is too large to try."""
    columns = len(table.labels)
    if phi.m * phi.n > LARGEST_PHI or phi.m * columns > LARGEST_PHI or columns < 2:
        return None
    Phi = real_phi(phi)
    try:
        sent = own_sketch(table, Phi, order, precision)
    except InputError:
        return None  # a constant column: the gate refuses it by its own rule
    starts = affordable_starts(phi.m, columns, seconds)
    return int(matched(blind_phi(sent, np.random.default_rng(0), starts), Phi).size)


def exposures(
    laws: Mapping[str, Levels], ratio: float, seconds: float = float("inf"), first: Container[str] = ()
) -> dict[str, float]:
    """The share of each column's variance left unknown if Φ leaks, by state evolution; equal laws are computed once.

    After the `first`, columns in which one value is commonest; those not reached in time are missing from the answer.
    """
    start = monotonic()
    known: dict[Any, float] = {}
    out = {}
    for name, law in sorted(laws.items(), key=lambda law: (law[0] not in first, -float(law[1].weights.max()))):
        if monotonic() - start > seconds:
            break
        values = np.round((law.values - law.mean) / np.sqrt(law.variance), 3)
        shape = (values.tobytes(), np.round(law.weights, 3).tobytes(), round(law.slab, 3))
        if shape not in known:
            known[shape] = state_evolution(law, ratio)
        out[name] = known[shape]
    return out


def _columns(table: Table, order: NDArray[np.int64] | None, names: list[str]) -> dict[str, Array]:
    """A few whole columns of the cohort, in order."""
    at = [table.labels.index(name) for name in names]
    parts = [np.hstack(parts)[:, at] for parts in table.blocks(order=order)]
    return dict(zip(names, np.concatenate(parts).T))


def _attacked(fact: ColumnFacts, Phi: Array, truth: Array, scale: float, precision: str, seconds: float) -> ColumnFacts:
    # Columns are centred before they are sketched; whoever knows Φ knows Φ1 and can undo that for each guess of the
    # mean.
    # The attacker is given the mean and the scale.
    sent = (Phi @ (truth - truth.mean()) / scale).astype(precision).astype(float) * scale
    rounding = 4 * float(np.finfo(precision).eps) * float(np.abs(sent).max())
    low, span = float(truth.min()), float(np.ptp(truth))
    # In units of the column's own range, where the decoders' tolerances are meant.
    sent = (sent + (truth.mean() - low) * Phi.sum(axis=1)) / span
    results = attack_column(Phi, sent, (truth - low) / span, seconds, max(rounding / span, 1e-9))
    best = max(results, key=lambda d: (d.exact, d.right + d.right_rare))
    state = "exact" if best.exact else "partly" if best.right_rare > 0.5 and best.right > 0.9 else "no"
    return replace(fact, attacked=state, right=best.right, right_rare=best.right_rare)


@dataclass(frozen=True)
class ServerAttacks:
    """What the server could do with this site's columns, Φ secret. `reason` says why something was not tried."""

    membership_theory: float | None = None
    membership_known_sigma: float | None = None
    membership_sketch_only: float | None = None
    known_rows_theory: float | None = None
    known_rows_measured: float | None = None
    singletons: int | None = None
    singleton_precision: float | None = None
    blind: int | None = None
    differences: int | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def attack_as_server(table: Table, phi: Design, order: NDArray[np.int64] | None, precision: str) -> ServerAttacks:
    """Membership, known rows and singletons on this site's own columns."""
    n, m = phi.n, phi.m
    c = len(table.labels)
    if n * c > LARGEST_TABLE or m * n > LARGEST_PHI:
        return ServerAttacks(reason="too large to attack here; see the theory lines")
    Z = np.concatenate([np.hstack(parts) for parts in table.blocks(order=order)])
    spread = Z.std(axis=0, ddof=1)
    if (spread <= 0).any():
        raise InputError("A column of one value carries nothing and cannot be attacked. Drop it.")
    Z = (Z - Z.mean(axis=0)) / spread
    Phi = real_phi(phi)
    sent = (Phi @ Z).astype(precision).astype(float)
    hits = singleton_search(sent, n)
    count, precision_ = match_phi(hits.phi, Phi)
    out = ServerAttacks(
        singletons=count, singleton_precision=precision_ if hits.phi.shape[1] else None,
        blind=int(matched(blind_phi(sent, np.random.default_rng(0), affordable_starts(m, c, BLIND_SECONDS)), Phi).size),
        differences=int(matched(difference_search(sent), Phi).size),
    )  # fmt: skip
    back = held_back(n)
    if back < 10 or m >= n - back:
        return replace(out, reason="too few subjects to hold some back for the membership attack")
    # The same kind of sketch without the last subjects: they are the non-members.
    stay = n - back
    sub = Phi[:, :stay]
    if phi.kind == "orthonormal":
        sub = sub - sub.mean(axis=1, keepdims=True)
        sub = solve_triangular(np.linalg.cholesky(sub @ sub.T), sub, lower=True)
    mix = np.random.default_rng(0).permutation(n)  # the table may be sorted
    inside, outside = Z[mix[:stay]], Z[mix[stay:]]
    sketch = (sub @ inside).astype(precision).astype(float)
    known = inverse_of_gram(Z, 1e-6)
    member = attack_membership(sketch, inside[:HELD_BACK], outside, known, phi.kind, stay)  # type: ignore[arg-type]
    out = replace(
        out, membership_theory=member.theory, membership_known_sigma=member.measured_known,
        membership_sketch_only=member.measured_sketch,
    )  # fmt: skip
    return _known_rows(out, Z, sent, n, m)


def held_back(n: int) -> int:
    """How many of n subjects stand for those that are not in the study."""
    return min(HELD_BACK, n // 5)


def by_chance(n: int) -> tuple[int, float]:
    """How many subjects are held back, and two standard errors of a measured AUC near .5 (Mann and Whitney)."""
    outside, inside = held_back(n), min(HELD_BACK, n - held_back(n))
    return outside, 2 * sqrt((inside + outside + 1) / (12 * inside * outside))


def _known_rows(out: ServerAttacks, Z: Array, sent: Array, n: int, m: int) -> ServerAttacks:
    """Each of up to five columns is taken as the other site's: what do the rest and a person's row tell about it?

    The columns are first cleared of what the rest predict: correlation is the study's business, not a leak through Φ.
    """
    c = Z.shape[1]
    if c < 3 or c > n:  # with more columns than people the rest say everything, and nothing is left for Φ to leak
        return out
    scores = []
    for j in range(min(5, c)):
        rest = np.delete(np.arange(c), j)
        fit = np.linalg.lstsq(Z[:, rest], Z[:, j], rcond=None)[0]
        truth = Z[:, j] - Z[:, rest] @ fit
        if truth.var() < 1e-3:
            continue
        y = sent[:, [j]] - sent[:, rest] @ fit[:, None]
        M = whitening_from_sketch(sent[:, rest], 0.1)
        guess = attack_known_rows(sent[:, rest], Z[:HELD_BACK, rest], y, n, M, joint=False)
        scores.append(np.corrcoef(guess[:, 0], truth[:HELD_BACK])[0, 1])
    if not scores:
        return out
    return replace(out, known_rows_theory=known_rows_r2(n, m, c - 1), known_rows_measured=float(max(np.mean(scores), 0) ** 2))
