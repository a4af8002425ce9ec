"""The site's end of the protocol: one function that answers the server's steps, and says no more than it must.

An error that crosses the wall is a code and a short text of ours. What speaks of the site's own table, policy or key
files stays at the site, in `problems.jsonl` in the run folder of the study.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from intarsia.errors import AlignmentError, FederationError, IntarsiaError, MessageError, StudyError
from intarsia.site.site import Site
from intarsia.wire.study import Study

# These speak of messages, counts and study files only.
_MAY_CROSS = (AlignmentError, FederationError, MessageError, StudyError)


def answer(
    site: Site, study: Study, step: str, payload: Mapping[str, bytes], new_data: Callable[[str], Any] | None = None
) -> bytes:
    """Do one step; `new_data(request)` finds the new subjects of a prediction at this site."""
    if step == "offer":
        return site.offer(study)
    if step == "share":
        return site.share(study, payload)
    if step == "combine":
        return site.combine(study, payload)
    if step == "align":
        if payload:
            site.seal(study, payload)
        return site.align(study)
    if step == "sketch":
        return site.sketch(study, payload.get("cohort"))
    if step == "receive":
        site.receive(study, _entry(payload, "coefficients"))
        return b"received"
    if step in ("predict", "finish"):
        request = _entry(payload, "request").decode("ascii", "replace")
        if new_data is None:
            raise FederationError(f"Site {site.name!r} takes part in no predictions.")
        data = new_data(request)
        if step == "predict":
            return site.predict_part(study, request, data)
        prediction = site.predict_finish(study, request, data, _entry(payload, "sum"))
        path = site.run_store(study).path(f"prediction-{request}.csv")
        if path is not None:
            prediction.save(path)
            path.chmod(0o600)
        return b"finished"
    raise FederationError(f"Site {site.name!r} knows no step of that name.")


def _entry(payload: Mapping[str, bytes], name: str) -> bytes:
    if name not in payload:
        raise MessageError(f"The server's message lacks its entry {name!r}.")
    return payload[name]


def scrub(site: Site, study: Study | None, error: Exception) -> str:
    """What the server is told; the whole story is noted at the site."""
    if study is not None and (path := site.run_store(study).path("problems.jsonl")) is not None:
        story = str(error) if isinstance(error, IntarsiaError) else type(error).__name__
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "code": type(error).__name__, "text": story}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    if isinstance(error, _MAY_CROSS):
        return f"{type(error).__name__}: {str(error)[:400]}"
    if isinstance(error, IntarsiaError):
        return f"{type(error).__name__}: the site refused for a reason of its own; its operator finds it in its log."
    return "Error: the site met an unexpected problem; its operator finds it in its log."
