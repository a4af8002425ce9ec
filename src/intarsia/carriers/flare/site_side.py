"""The site's end of the networked carrier: the one class a job may name at a site.

It takes no arguments. Which table, key and policy are used comes from the site's own folder (INTARSIA_SITE, set by
`intarsia site serve`), which study from the study files its operator accepted; a task is untrusted input.
"""

import io
import os
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from intarsia.carriers.flare.jobs import TASK
from intarsia.carriers.flare.pieces import Assembly, count, cut, unpack_payload
from intarsia.errors import MessageError
from intarsia.site.answer import answer, scrub, scrub_without_site
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.steps import STEPS, most_bytes


class StudyExecutor(Executor):
    """Answers the server's steps with the messages of `intarsia.site.site.Site`."""

    def __init__(self) -> None:
        super().__init__()
        self._site_folder: SiteFolder | None = None
        self._incoming: dict[str, tuple[io.BytesIO, Assembly]] = {}
        self._outgoing: dict[str, bytes] = {}

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            return _reply(self._answer(_request(shareable)))
        except Exception as error:  # nothing of ours may reach the engine's logs or the server unscrubbed
            return _reply({"error": _scrub(self._site_folder, None, error)})

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        call, operation, step, study_hash = (request[key] for key in ("call", "op", "step", "study_hash"))
        if operation == "get":
            raw = self._outgoing.get(call)
            index = request.get("index")
            if raw is None or type(index) is not int or not 0 <= index < count(len(raw)):
                raise MessageError("The server asks for a piece this site has not announced.")
            return cut(raw, index)
        if operation != "put" or step not in STEPS:
            raise MessageError("The server asks for a step this site does not know.")
        if call not in self._incoming:
            self._incoming = {call: (buffer := io.BytesIO(), Assembly(buffer, most_bytes(step)))}
        buffer, assembly = self._incoming[call]
        if not assembly.add(request.get("piece")):
            return {"more": True}
        self._incoming = {}
        # Reading takes the message and what its header becomes, beside the buffer it came into.
        return self._do(call, step, study_hash, unpack_payload(buffer.getvalue(), 2 * most_bytes(step)))

    def _do(self, call: str, step: str, study_hash: str, payload: dict[str, bytes]) -> dict[str, Any]:
        if self._site_folder is None:
            self._site_folder = SiteFolder.load(os.environ.get("INTARSIA_SITE", ""))
        study = None
        try:
            study = self._site_folder.accepted(study_hash)
            raw = answer(self._site_folder.site(), study, step, payload, self._site_folder.new_subjects)
        except Exception as error:
            return {"error": _scrub(self._site_folder, study, error)}
        self._outgoing = {call: raw}
        return cut(raw, 0)


def _request(shareable: Shareable) -> dict[str, Any]:
    data = from_shareable(shareable).data
    keys = {"call": str, "op": str, "step": str, "study_hash": str}
    if not isinstance(data, dict) or any(not isinstance(data.get(key), kind) for key, kind in keys.items()):
        raise MessageError("The server's task is not a step of a study.")
    return data


def _reply(data: dict[str, Any]) -> Shareable:
    return DXO(DataKind.COLLECTION, data=data).to_shareable()


def _scrub(site_folder: SiteFolder | None, study: Any, error: Exception) -> str:
    try:
        site = None if site_folder is None else site_folder.site()
    except Exception:  # a key file, a setting: what is wrong with the site may be the very error
        site = None
    if site is not None:
        return scrub(site, study, error)
    return scrub_without_site(None if site_folder is None else site_folder.folder, error)
