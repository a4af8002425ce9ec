"""A site's ledger, opened so that it cannot have started again unnoticed.

The ledger's head stands outside of its own folder too: in `ledger.head` beside it, on every card and in every receipt in the run
folders.
A ledger that lacks one of these heads was deleted, replaced or cut, and nothing leaves the site until it is restored.
"""

from pathlib import Path
from typing import Any

from intarsia.errors import MessageError, PrivacyError
from intarsia.files import DamagedFileError, read_json
from intarsia.privacy.ledger import Ledger
from intarsia.site.run_store import read_item
from intarsia.wire.signed import Receipt

FOLDER, ANCHOR = "ledger", "ledger.head"


def open_ledger(site_folder: Path) -> Ledger:
    """The ledger of the site in this folder, checked against every head that was written down elsewhere."""
    heads = published_heads(site_folder)
    there = (site_folder / FOLDER / "ledger.jsonl").exists()
    sketched = any(site_folder.glob("studies/*/sketch")) or any(site_folder.glob("studies/*/sketch.pending*"))
    if not there and (heads or sketched):
        raise PrivacyError(
            f"The ledger {site_folder / FOLDER} is missing, but this site has sketched before (its cards and run folders say "
            "so). What was told about its subjects must not be forgotten: restore the ledger from a backup. Nothing leaves "
            "this site until then."
        )
    ledger = Ledger(site_folder / FOLDER, anchor=site_folder / ANCHOR)
    try:
        ledger.verify(heads)
    except PrivacyError:
        _cards_are_whole(site_folder)
        raise
    return ledger


def published_heads(site_folder: Path) -> list[tuple[int, str]]:
    """The heads on the site's own cards, in its receipts and in the anchor file."""
    found: list[tuple[int, str]] = []
    for path in _cards(site_folder):
        state = _read(path).get("card", {})
        found += _head(path, state["ledger"]) if state.get("ledger") else []
    for path in sorted(site_folder.glob("studies/*/receipt*")):
        try:
            receipt = Receipt.from_bytes(read_item(path))
        except (MessageError, DamagedFileError):
            raise _damaged(path) from None
        if receipt.ledger_entries:
            found.append((receipt.ledger_entries, receipt.ledger_head))
    anchor = site_folder / ANCHOR
    if anchor.exists():
        found += _head(anchor, _read(anchor))
    return found


def _cards(site_folder: Path) -> list[Path]:
    return sorted(site_folder.glob("studies/*/card.json"))


def _cards_are_whole(site_folder: Path) -> None:
    """A card that the disk changed names a head that never was: it is the card that is to be restored, and not the ledger."""
    from intarsia.privacy.card import verify  # brings SciPy, which a process that only answers does without

    for path in _cards(site_folder):
        try:
            if _read(path).get("signature") is not None:  # a site without keys of its own signs nothing
                verify(path.read_bytes())
        except MessageError:
            raise _damaged(path) from None


def _head(path: Path, state: object) -> list[tuple[int, str]]:
    try:
        return [(int(state["entries"]), str(state["head"]))]  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        raise _damaged(path) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path, "")
    except DamagedFileError:
        raise _damaged(path) from None


def _damaged(path: Path) -> PrivacyError:
    return PrivacyError(f"{path} is damaged, so the ledger cannot be checked against it. Restore it from a backup.")
