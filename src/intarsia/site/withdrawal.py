"""Subjects who withdrew: a list on the site's own disk, left out of everything from then on, and what was told of them before.

The list is `withdrawn.txt` in the site's folder, one id per line, readable by its owner only. It is never sent. A subject on it
is not read from the table any more, so that neither counts nor tokens nor means nor sketches of later runs rest on that person.
What earlier runs have told stays told; `told_before` says it run by run.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.errors import InputError, PrivacyError
from intarsia.files import OWNER_ONLY, replace
from intarsia.privacy.subject_ids import canonical_id

if TYPE_CHECKING:
    from intarsia.privacy.ledger import Entry, Ledger
    from intarsia.privacy.policy import Policy

FILE = "withdrawn.txt"


def withdrawn(folder: Path | None) -> frozenset[str]:
    """The ids on the site's list, as the ledger writes ids; empty for a site without a folder."""
    return frozenset(canonical_id(text) for text in _listed(folder))


def _listed(folder: Path | None) -> list[str]:
    path = None if folder is None else folder / FILE
    if path is None or not path.is_file():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def refuse_withdrawn(folder: Path | None, ids: Iterable[Any]) -> None:
    """New subjects of a prediction must not have withdrawn."""
    listed = withdrawn(folder)
    found = sum(canonical_id(one) in listed for one in ids) if listed else 0
    if found:
        raise PrivacyError(
            f"{found} of these subjects have withdrawn from studies with this site. Take them out of the table, at every site."
        )


@dataclass(frozen=True)
class Withdrawn:
    """What a withdrawal came to: how many ids are new on the list, and how many of those given the table has."""

    new: int
    in_table: int
    given: int


def withdraw(folder: Path, ids: Sequence[str], table_ids: Iterable[Any]) -> Withdrawn:
    """Put these subjects on the list. `table_ids` are all subjects of the site's table."""
    wanted = {canonical_id(text): text.strip() for text in ids if text.strip()}
    if not wanted:
        raise InputError("The file names no subject. Write one id per line.")
    rows = [canonical_id(one) for one in table_ids]
    hits = [one for one in rows if one in wanted]
    if len(set(hits)) != len(hits):
        twice = len(hits) - len(set(hits))
        raise InputError(
            f"{twice} rows more than ids given fit: the ids of some subjects differ in nothing but blanks, signs, capitals or "
            "leading zeros. Nothing was changed. Take these subjects' rows out of the table yourself."
        )
    before = _listed(folder)
    known = {canonical_id(text) for text in before}
    fresh = [text for key, text in wanted.items() if key not in known]
    replace(folder / FILE, "".join(f"{text}\n" for text in [*before, *fresh]).encode(), mode=OWNER_ONLY)
    return Withdrawn(len(fresh), len(hits), len(wanted))


def told_before(folder: Path, ledger: "Ledger", policy: "Policy") -> list[str]:
    """What every run that told of withdrawn subjects still reveals, one paragraph each; no id, only counts."""
    tokens = ledger.tokens(_listed(folder))
    cards = _cards(folder)
    return [_told(ledger, policy, tokens, entry, count, cards.get(entry.run)) for entry, count in ledger.about(tokens)]


def _told(ledger: "Ledger", policy: "Policy", tokens: Any, entry: "Entry", count: int, card: dict[str, Any] | None) -> str:
    head = (
        f"study {entry.study}, run {entry.run[:8]}…, {entry.time[:10]}: {count} of the {entry.n:,} subjects have withdrawn since."
    )
    if entry.kind in ("gram", "screened"):
        return f"{head} {_of_a_gram_matrix(ledger, policy, tokens, entry, card)}"
    auc = "unknown" if card is None else card["attacks"]["membership_auc"]
    known = f"AUC {auc:.2f}, .5 being a guess" if isinstance(auc, float) else "how well is not known"
    if entry.epsilon is not None:
        return (
            f"{head} Their part in that sketch is covered by its ε = {entry.epsilon:g} and δ = {entry.delta:g}, for ever; a run "
            "without them costs them nothing more."
        )
    first, later = entry.m / entry.n, entry.m / (entry.n - entry.m)
    return (
        f"{head} The sketch of {entry.m:,} rows that left still has them in it. It cannot be called back. Someone who has a "
        f"person's whole row can tell from it whether the person took part ({known}). Whoever knows Φ, as every site of that run "
        f"does, predicts a value of theirs with R² = m/n = {first:.2f}; who knows the Φ of another run of as many rows too, "
        f"with R² = m/(n − m) = {later:.2f}. Without Φ the new sketch cannot be subtracted from this one. What is known of "
        "the others (Σm) is counted in the ledger."
    )


def _of_a_gram_matrix(ledger: "Ledger", policy: "Policy", tokens: Any, entry: "Entry", card: dict[str, Any] | None) -> str:
    from intarsia.privacy.gram_leakage import least_apart

    share = None if card is None else card["attacks"].get("columns_per_subject")
    columns = round(share * entry.n) if isinstance(share, float) else entry.columns
    least, cohort = least_apart(columns, policy.min_level), ledger.cohort(entry)
    apart = None if cohort is None else ledger.singled_out(np.setdiff1d(cohort, tokens), "")
    words = (
        "The exact Gram matrix that left still has them in it. It less one without them would be these people's products, so the "
        f"gate lets another Gram matrix pass only if every group that the matrices single out has at least {least} subjects"
    )
    if apart is None:
        return f"{words}. Who was in it is not known any more; take a sketch for the new run."
    verdict = "now passes" if apart >= least else f"is refused now: wait until {least} are out together, or take a sketch"
    return f"{words}; the smallest would have {apart}. A new Gram matrix without them {verdict}."


def _cards(folder: Path) -> dict[str, dict[str, Any]]:
    """The site's own cards, by run."""
    out = {}
    for path in sorted(folder.glob("studies/*/card*.json")):
        try:
            card = json.loads(path.read_bytes())["card"]
            out[str(card["study"]["run"])] = card
        except (ValueError, KeyError, TypeError):
            continue
    return out
