"""A fit at the server beside an earlier one: of the same run before a site left, or of the run that this one replaces."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from intarsia.errors import StudyError
from intarsia.files import read_json, replace_json
from intarsia.server.assess.assessment import assess, kept
from intarsia.server.assess.effects import effects_of
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.kept import FIT, POSTERIOR, posterior_file, read_fit
from intarsia.wire.changes import Changes, compare
from intarsia.wire.result_table import table_columns, table_rows

FILE = "changes.json"


def results(folder: StudyFolder) -> list[dict[str, Any]]:
    """The table of results of a fitted study, as the server knows it."""
    if not (folder.path / POSTERIOR).is_file() or not (folder.path / FIT).is_file():
        raise StudyError(f"{folder.path} is not fitted yet: there is nothing to compare.")
    posterior = Posterior.load(posterior_file(folder.path))
    found = effects_of(posterior, kept(posterior) or assess(posterior), folder.study.deliver.interval, folder.study.kinds)
    return table_rows(table_columns(found))


def replaced(folder: StudyFolder, before: StudyFolder) -> Changes:
    """This fit beside that of the run it replaces; kept in the folder, so that the report shows it."""
    study, old = folder.study, before.study
    if study.replaces != old.hash:
        raise StudyError(
            f"The study file of {folder.path} does not say that it replaces the run in {before.path} (hash {old.hash[:16]}…): "
            f"{'it replaces ' + study.replaces[:16] + '…' if study.replaces else 'it replaces none'}."
        )
    because = f", because of {study.reason}" if study.reason else ""
    why = [f"run {study.run[:8]}… replaces run {old.run[:8]}…{because}"]
    for words, names in (("left", set(old.names) - set(study.names)), ("joined", set(study.names) - set(old.names))):
        if names:
            why.append(f"sites that {words}: {', '.join(sorted(names))}")
    n_before, n_after = (read_fit(one.path)["subjects"] for one in (before, folder))
    if n_before != n_after:
        why.append(f"{n_before:,} subjects before, {n_after:,} now")
    return keep(folder, results(before), read_fit(before.path), why)


def keep(folder: StudyFolder, before: list[dict[str, Any]], was: dict[str, Any], why: Iterable[str]) -> Changes:
    """Compare with this folder's fit and write down what is worth a look; `was` is the earlier fit's summary."""
    found = compare(before, results(folder), why)
    # All that was selected, also at sites whose results are not kept any more.
    found = replace(found, selected_before=tuple(was["selected"]))
    replace_json(folder.path / FILE, found.noteworthy.as_dict())
    folder.note("compared", selected_before=len(found.selected_before), selected_after=len(found.selected_after))
    return found


def read_changes(folder: StudyFolder) -> Changes | None:
    """What was written down, where anything was: the rows worth a look."""
    path = folder.path / FILE
    remedy = "Delete it and give `intarsia study changes` or `study leave` again."
    return Changes.from_dict(read_json(path, remedy)) if path.is_file() else None
