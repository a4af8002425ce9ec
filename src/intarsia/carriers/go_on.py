"""A study in one process that is started again: it goes on where it stopped, and what nobody can use stands in nobody's way.

The server's folder never holds a key. What the sites of this process keep of a run (the study key, their scales) lies beside it,
in `FOLDER.sites`, each site in a folder of its own that only its owner can read.
"""

import shutil
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from intarsia.errors import StudyError
from intarsia.server.study.folder import KINDS, StudyFolder
from intarsia.server.study.kept import FILE as DIGESTS
from intarsia.site.identity import FILE as IDENTITY
from intarsia.site.identity import Identity
from intarsia.site.site import Site
from intarsia.wire.plain import some
from intarsia.wire.study import Study

BESIDE = ".sites"
DIGEST = "table.digest"
_KEYS = ("exchange_key", "signing_key")


def beside(folder: str | Path) -> Path:
    """Where the sites of this process keep what is theirs of the runs in this folder."""
    where = Path(folder).resolve()
    return where.with_name(where.name + BESIDE)


def keep_beside(sites: Sequence[Site], folder: str | Path) -> None:
    """Sites without a folder of their own keep their part of a run beside the server's folder, and their identity."""
    kept = _kept_identities(sites, folder)
    for site in sites:
        if site.folder is None:
            site.keep_runs(beside(folder) / site.name)
            site.identity = site.identity or kept.get(site.name)


def _kept_identities(sites: Sequence[Site], folder: str | Path) -> dict[str, Identity]:
    own = {site.name: beside(folder) / site.name for site in sites if site.folder is None}
    return {name: Identity.load(where) for name, where in own.items() if (where / IDENTITY).is_file()}


def keep_identities(sites: Sequence[Site], folder: str | Path) -> None:
    """The keys that sites were given for this folder's study: another process goes on with the same."""
    for site in sites:
        own = beside(folder) / site.name
        if site.folder is None and site.identity is not None and not (own / IDENTITY).is_file():
            own.mkdir(parents=True, exist_ok=True, mode=0o700)
            site.identity.save(own)


def begun(folder: str | Path, study: Study, sites: Sequence[Site]) -> Study:
    """The study to run in this folder: the one that was begun there, where it asks for the same. What stopped before anybody's
    data were all there gives way to another study; anything else does not."""
    path = Path(folder)
    if not (path / "study.toml").exists():
        return study
    there = StudyFolder.open(path)
    if there.study.hash == study.hash:
        return study
    kept = _kept_identities(sites, path)
    keys = {f"site {name}.{key}" for name in kept for key in _KEYS}  # made anew for every process
    differs = [line for line in there.study.differences(study) if line.partition(":")[0] not in keys]
    if not differs and study.replaces != there.study.hash:
        for site in sites:
            site.identity = kept.get(site.name, site.identity)
        return there.study
    if _gives_way(there):
        _clear(there)
        return study
    what = f"It differs in {some([line.partition(':')[0] for line in differs], 3)}." if differs else "It is a new run of it."
    raise StudyError(
        f"{path} holds another study or run, with what sites have sent, and this is not that one. {what} Give another folder; "
        "the same settings go on with the study that is there."
    )


def _gives_way(there: StudyFolder) -> bool:
    """Nothing was sent; or the sites of this process have sent some, and the fit was never begun."""
    names = {path.name for path in there.path.iterdir()}
    sent = any(name.partition("-")[0] in ("sketch", "product", "held", "look", "deal", "rounds", "leave") for name in names)
    fitted = bool(names & {"checkpoint", "posterior.nc", "fit.json"})
    return not fitted and (not sent or (beside(there.path).is_dir() and not there.collected))


def _clear(there: StudyFolder) -> None:
    """Drop the messages of the study that gives way, and nothing else that somebody may have put into the folder."""
    ours = {*KINDS, "rounds", "opened", "holder"}
    for path in sorted(there.path.iterdir()):
        if path.is_dir() and (path.name in ours or path.name.partition("-")[0] in ("deal", "progress", "held", "look")):
            shutil.rmtree(path)
    for name in (DIGESTS, "screened.json", "study.toml"):
        (there.path / name).unlink(missing_ok=True)


def check_same_tables(sites: Sequence[Site], study: Study) -> None:
    """Refuse to go on with other data than the run began with: what was sent is not sketched again."""
    for site in sites:
        if site.folder is not None:
            continue  # it has a ledger, which knows the data
        store = site.run_store(study)
        if store.folder is None:
            continue
        found = _digest(site)
        if store.put(DIGEST, found) != found:
            raise StudyError(
                f"The table of site {site.name!r} is not the one with which the study in this folder began: a value, an id or "
                "the order of rows is another. Give another folder to start anew, or the same table to go on."
            )


def _digest(site: Site) -> bytes:
    table = site.table()
    out = blake2b(repr((table.labels, len(table.id_column))).encode(), digest_size=16)
    for block in table.id_column.blocks():
        out.update("\0".join(block).encode())
    for Z in table.encoded():
        out.update(np.ascontiguousarray(Z).tobytes())
    return out.hexdigest().encode()
