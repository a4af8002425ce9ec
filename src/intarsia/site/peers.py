"""How far the ledgers of other sites had come when this site last heard of them.

A site whose folder was put back from an older copy has forgotten what left since: Σm of its people starts too low, and its own
files say nothing of it. The others remember. Each site announces how many lines its ledger has; one that has fewer than it had in
an earlier study is refused until people have talked. Sites are known by their pinned signing keys, whatever their names.
"""

from collections.abc import Mapping
from pathlib import Path

from intarsia.errors import FederationError
from intarsia.files import damaged, read_json, replace_json
from intarsia.wire.study import Study

FILE = "peers.json"


def remembered(folder: Path) -> dict[str, int]:
    """Lines by signing key."""
    path = folder / FILE
    if not path.is_file():
        return {}
    remedy = "Restore it from a backup, or delete it: what other sites' ledgers had is then forgotten."
    found = read_json(path, remedy)
    if not all(type(lines) is int for lines in found.values()):
        raise damaged(path, remedy)
    return found


def check(folder: Path | None, study: Study, lines: Mapping[str, int | None]) -> None:
    """Refuse a site whose ledger has fewer lines than it had; remember the others."""
    if folder is None or not study.agrees:
        return
    before = remembered(folder)
    for name, count in lines.items():
        had = before.get(str(study.site(name).signing_key), 0)
        if (count or 0) < had:
            raise FederationError(
                f"The ledger of site {name!r} has {count or 0} lines now and had {had} when this site last heard of it: its "
                "folder was put back from an older copy, and what left since is not counted. Ask that site to restore its newest "
                f"copy. If it is lost, agree on what it counts again by hand, and take its line out of {FILE} in this site's "
                "folder, and the last one, sha256."
            )
    _remember(folder, study, lines)


def released(folder: Path | None, study: Study, lines: Mapping[str, int | None]) -> None:
    """A fit of the run is here, so every site that took part has booked its sketch: one line more than it announced."""
    if folder is not None and study.agrees:
        _remember(folder, study, {name: count + 1 for name, count in lines.items() if count is not None})


def _remember(folder: Path, study: Study, lines: Mapping[str, int | None]) -> None:
    before = remembered(folder)
    after = dict(before)
    for name, count in lines.items():
        key = str(study.site(name).signing_key)
        after[key] = max(before.get(key, 0), count or 0)
    if after != before:
        replace_json(folder / FILE, dict(sorted(after.items())))
