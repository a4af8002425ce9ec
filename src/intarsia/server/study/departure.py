"""A site leaves after it has sent: its messages are deleted, and the study is fitted again without its columns.

Nobody but the site can say that it leaves (`wire.leave`). What the server keeps of it afterwards is the notice. Of the fit
that rested on it the folder `superseded/` keeps the summary and the results of the sites that stayed. Sketches of the other sites
stay valid: Φ and the cohort are the same, and columns that are taken out change no other column.

The order of the steps is such that the same command, given again after a crash, ends in the same state.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intarsia.errors import FederationError, IntarsiaError, StudyError
from intarsia.files import read_json, replace_json
from intarsia.server.study import gram
from intarsia.server.study.comparison import FILE, keep, results
from intarsia.server.study.fit import LEFT_TOLD, asked_by_left, fit
from intarsia.server.study.folder import CHECKS, KINDS, StudyFolder, write_atomic
from intarsia.server.study.kept import FIT, POSTERIOR, forget, read_fit
from intarsia.wire.changes import Changes
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.leave import Leave, check_leave

SUPERSEDED = "superseded"
_LATEST = "latest.json"  # which superseded fit the next one is compared with
_NO_REMEDY = "Delete the folder superseded/: what changed by the departure can then not be said any more, and the new fit stays."


def leave(
    folder: StudyFolder, raw: bytes, *, workers: int | None = None, progress: Callable[..., Any] | None = None
) -> tuple[Leave, dict[str, Any], Changes | None]:
    """Take the site out, fit again, say what changed (None where nothing had been fitted before)."""
    notice = check_leave(folder.study, raw, None)
    name, target = notice.site, folder.file("leave", notice.site)
    if folder.study.sketch.screened:
        raise StudyError(
            f"A screened study is not fitted again without a site: what was kept was chosen beside the columns of {name!r}. "
            f"Delete its folder, and start a run without it: intarsia study again study.toml --without {name} -o study-2.toml"
        )
    if not target.is_file():
        _check_what_remains(folder, name)
        asked = {site: most for site, most in folder.joined().most_told.items() if site == name}
        replace_json(folder.path / LEFT_TOLD, asked_by_left(folder) | asked)
        _supersede(folder, name)
        if folder.study.sketch.gram:
            gram.keep_without(folder, name)
        # From here on the study is one without this site.
        write_atomic(target, raw)
    elif target.read_bytes() != raw:
        if _is_notice(folder, target.read_bytes()):
            raise FederationError(f"Another notice of site {name!r} is here already. Refused.")
        write_atomic(target, raw)  # the disk changed the one that was taken
    _delete(folder, name)
    summary = fit(folder, workers=workers, progress=progress)
    return notice, summary, changes(folder)


def _is_notice(folder: StudyFolder, raw: bytes) -> bool:
    try:
        check_leave(folder.study, raw, None)
    except IntarsiaError:
        return False
    return True


def _check_what_remains(folder: StudyFolder, name: str) -> None:
    if not folder.collected:
        lacking = folder.missing("sketch") or folder.missing("product")
        raise FederationError(
            f"Site {name!r} cannot be taken out yet: nothing has been fitted, and the messages of {', '.join(lacking)} are not "
            f"here. Stop this run and start one without it: intarsia study again study.toml --without {name} -o study-2.toml"
        )
    joined = folder.joined()
    for what, sites in (("response", joined.response_sites), ("feature", joined.feature_sites)):
        if set(sites) == {name}:
            raise StudyError(
                f"Site {name!r} holds every {what} of the study: without it there is nothing left to regress. Nothing was "
                "changed. The study ends here: delete its folder, and start a new one with other sites."
            )


def _supersede(folder: StudyFolder, leaving: str) -> None:
    """Keep what the other sites may still look up of the fit so far, then take that fit away."""
    if (folder.path / FIT).is_file():
        digest = Coefficients.from_bytes(folder.file("coefficients", leaving)).fit_digest
        where = folder.path / SUPERSEDED / digest[:16]
        summary = read_fit(folder.path) | {"superseded": True, "fit_digest": digest, "because": f"{leaving} left"}
        where.mkdir(parents=True, exist_ok=True)
        replace_json(where / "results.json", {"rows": results(folder)})
        replace_json(where / FIT, summary)
        replace_json(folder.path / SUPERSEDED / _LATEST, {"fit": digest[:16]})
    for path in folder.path.glob(f"{SUPERSEDED}/*/results.json"):  # of earlier departures too
        replace_json(path, {"rows": [row for row in _rows(path) if row["site"] != leaving]})
    for name in (FIT, POSTERIOR, FILE, CHECKS):  # the summary first: without it there is no fit
        (folder.path / name).unlink(missing_ok=True)
    forget(folder.path, lambda item: item == POSTERIOR or item.startswith("receipt/"))
    for name in ("checkpoint", "coefficients", "receipt", "predictions", "incoming"):
        shutil.rmtree(folder.path / name, ignore_errors=True)


def _delete(folder: StudyFolder, name: str) -> None:
    """Everything the site sent, and what belongs to it alone; the log says what."""
    found = [folder.file(kind, name) for kind in (*KINDS, "coefficients")]
    found += [folder.path / "sketch" / f"{name}.facts", folder.path / f"{name}.cohort", *folder.path.glob(f"progress-*/{name}.*")]
    if folder.study.sketch.gram:
        found += (folder.path / "product").glob("*.product")  # shares are of no use without the third one's
        found += [*folder.path.glob("opened/*"), *folder.path.glob("holder/*")]
        found += [gram.remaining(folder, count) for count in range(1, len(folder.left))]  # of an earlier departure
    found = [path for path in dict.fromkeys(found) if path.is_file()]
    for path in found:
        path.unlink()
    gone = {path.relative_to(folder.path).as_posix() for path in found}
    forget(folder.path, lambda item: item in gone)
    if found:
        said = sorted({path.relative_to(folder.path).as_posix() for path in found})
        folder.note("left", site=name, deleted=said, stay=list(folder.names))


def _rows(path: Path) -> list[dict[str, Any]]:
    return list(read_json(path, _NO_REMEDY)["rows"])


def changes(folder: StudyFolder) -> Changes | None:
    """This fit beside the one before the last site left; None where nothing had been fitted."""
    latest: Path = folder.path / SUPERSEDED / _LATEST
    if not latest.is_file():
        return None
    where = folder.path / SUPERSEDED / read_json(latest, _NO_REMEDY)["fit"]
    was = read_json(where / FIT, _NO_REMEDY)
    before = _rows(where / "results.json")
    now = read_fit(folder.path)
    features, responses = was["features"] - now["features"], len(was["responses"]) - len(now["responses"])
    why = [
        f"{', '.join(folder.left)} left; {', '.join(folder.names)} stay",
        f"{features:,} features and {responses} responses left with it",
    ]
    return keep(folder, before, was, why)
