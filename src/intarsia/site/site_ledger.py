"""A site's ledger, opened so that it cannot have started again unnoticed.

The ledger's head stands outside of its own folder too: in `ledger.head` beside it, on every card and in every receipt in the run
folders.
A ledger that lacks one of these heads was deleted, replaced or cut, and nothing leaves the site until it is restored.
"""

import json
from pathlib import Path

from intarsia.errors import MessageError, PrivacyError
from intarsia.files import DamagedFileError
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
    ledger.verify(heads)
    return ledger


def published_heads(site_folder: Path) -> list[tuple[int, str]]:
    """The heads on the site's own cards, in its receipts and in the anchor file."""
    found = []
    for path in sorted(site_folder.glob("studies/*/card.json")):
        state = _read(path).get("card", {}).get("ledger")
        if state:
            found.append((int(state["entries"]), str(state["head"])))
    for path in sorted(site_folder.glob("studies/*/receipt*")):
        try:
            receipt = Receipt.from_bytes(read_item(path))
        except (MessageError, DamagedFileError):
            raise PrivacyError(
                f"{path} is damaged, so the ledger cannot be checked against it. Restore it from a backup."
            ) from None
        if receipt.ledger_entries:
            found.append((receipt.ledger_entries, receipt.ledger_head))
    anchor = site_folder / ANCHOR
    if anchor.exists():
        state = _read(anchor)
        found.append((int(state["entries"]), str(state["head"])))
    return found


def _read(path: Path) -> dict:  # type: ignore[type-arg]
    try:
        content = json.loads(path.read_bytes())
        if isinstance(content, dict):
            return content
    except ValueError:
        pass
    raise PrivacyError(f"{path} is damaged, so the ledger cannot be checked against it. Restore it from a backup.")
