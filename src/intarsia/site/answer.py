"""The site's end of the protocol: one function that answers the server's steps, and says no more than it must.

Every message that leaves a site is an answer of this function, for every carrier and for the commands of a study by files. A
refusal that crosses the wall is a code and fixed words: neither a label nor a count nor the reason, which stays at the site, in
`problems.jsonl` of the study's run folder.
"""

import contextlib
import logging
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from intarsia.errors import FederationError, IntarsiaError, MessageError, StudyError
from intarsia.site.run_store import note_problem
from intarsia.site.site import Site
from intarsia.wire.leave import notices_in
from intarsia.wire.study import Study

LOG = logging.getLogger(__name__)
FindTable = Callable[[Study, str], Any]
# What a server may learn of a refusal. Whatever may rest on the site's data, policy, table or keys is the last one.
REFUSALS = {
    MessageError: "message: what was sent to the site is not a message it can use at this step",
    StudyError: "study: the site has not accepted this study",
    FederationError: "protocol: the step does not fit what the site has done and received before",
}
REFUSED = (
    "refused: the site does not take this step; its operator finds the reason in problems.jsonl of the study's folder at the site"
)


def answer(
    site: Site,
    study: Study,
    step: str,
    payload: Mapping[str, bytes],
    new_data: FindTable | None = None,
    *,
    operator: bool = False,
) -> bytes:
    """Do one step; `new_data(study, request)` finds the new subjects of a prediction at this site.

    `operator`: the site's own operator takes the step, by a command, and not a server that asks for it.
    """
    if site.name not in site.remaining(study):
        raise FederationError(f"Site {site.name!r} has left this run of the study and takes no step of it any more.")
    LOG.debug("site %s takes step %r of study %s", site.name, step, study.id)
    if step in ("predict", "finish"):
        return _predict(site, study, step, payload, new_data)
    if step == "offer":
        return site.offer(study)
    if step == "share":
        return site.share(study, payload)
    if step == "combine":
        return site.combine(study, payload)
    if step == "announce":
        if payload:
            site.seal(study, payload)
        return site.announce(study)
    if step == "align":
        return site.align(study, payload)
    if step == "sketch":
        if not operator:
            _has_heard(site, study)
        return site.sketch(study, payload.get("cohort"))
    if step == "deal":
        return site.deal(study, payload)
    if step == "multiply":
        return site.multiply(study, payload)
    if step in ("hold", "keep", "look"):
        return site.screen(study, step, payload)
    if step == "receive":
        site.receive(study, _entry(payload, "coefficients"), notices_in(payload))
        return site.receipt(study)
    raise FederationError(f"Site {site.name!r} knows no step of that name.")


def _has_heard(site: Site, study: Study) -> None:
    """A server that keeps the other sites' counts back would have the gate judge this site's columns alone. An operator may go
    without them, and reads that the figures are unknown; a server may not."""
    if len(study.names) > 1 and not site.heard(study):
        raise FederationError("No sketch leaves before every site has announced how many subjects and columns it brings.")


def _predict(site: Site, study: Study, step: str, payload: Mapping[str, bytes], new_data: FindTable | None) -> bytes:
    request = _entry(payload, "request").decode("ascii", "replace")
    if new_data is None:
        raise FederationError(f"Site {site.name!r} takes part in no predictions.")
    data = new_data(study, request)
    if step == "predict":
        return site.predict_part(study, request, data)
    prediction = site.predict_finish(study, request, data, _entry(payload, "sum"))
    path = site.run_store(study).path(f"prediction-{request}.csv")
    if path is not None:
        prediction.save(path)
        path.chmod(0o600)
    return b"finished"


def _entry(payload: Mapping[str, bytes], name: str) -> bytes:
    if name not in payload:
        raise MessageError(f"The server's message lacks its entry {name!r}.")
    return payload[name]


def scrub_without_site(folder: Path | None, error: Exception) -> str:
    """The same where the site's own settings cannot be read, so that there is no site to ask."""
    code, story, kind = _told_here(error)
    if folder is not None:
        with contextlib.suppress(OSError):
            note_problem(folder, code, story, kind)
    return REFUSED


def _told_here(error: Exception) -> tuple[str, str, str]:
    """An error for the site's own eyes: its code, its story, and of which kind it is."""
    places = [f"{place.name}:{place.lineno}" for place in traceback.extract_tb(error.__traceback__)]
    # Words that are not ours might quote a value, so only the places are kept of such errors.
    story = str(error) if isinstance(error, IntarsiaError) else " > ".join(places)
    code = type(error).__name__
    return code, story, " > ".join([code, *places[-3:]])


def scrub(site: Site, study: Study | None, error: Exception) -> str:
    """What the server is told; the whole story is noted at the site, and the same story once."""
    code, story, kind = _told_here(error)
    with contextlib.suppress(OSError):  # a full disk makes no answer of a refusal
        try:
            store = None if study is None else site.run_store(study)
        except IntarsiaError:  # the run folder is another study's
            store = None
        if store is not None:
            store.problem(code, story, kind)
        elif site.folder is not None:
            note_problem(site.folder, code, story, kind)
    if study is None and isinstance(error, IntarsiaError):
        return REFUSALS[StudyError]
    return next((words for kind, words in REFUSALS.items() if isinstance(error, kind)), REFUSED)
