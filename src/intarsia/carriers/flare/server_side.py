"""The server's end of the networked carrier: the one class a job may name at the server.

It runs the protocol's steps against the study folder (below INTARSIA_STUDIES, set by `intarsia server start`) and
carries messages. Every task has a timeout; a site that does not answer is named and the study fails closed.
"""

import json
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from intarsia.carriers.flare.jobs import ACTIONS, TASK
from intarsia.carriers.flare.pieces import Assembly, all_pieces, count, pack_payload
from intarsia.errors import FederationError, IntarsiaError
from intarsia.server.study import protocol
from intarsia.server.study.folder import StudyFolder, write_atomic
from intarsia.server.study.protocol import Payload, Reply
from intarsia.wire.schema import check_name


class StudyController(Controller):
    """Runs `collect`, `deliver` or `predict` of one study and writes the outcome into its folder."""

    def __init__(self, study: str, action: str, ticket: str, request: str = "", timeout: int = 600):
        super().__init__(task_check_period=0.05)
        if not all(check_name(text) for text in (study, ticket)) or action not in ACTIONS:
            raise FederationError("The job names no study, action or ticket of ours.")
        self._names = (study, action, ticket, request)
        self._timeout = max(1, int(timeout))

    def start_controller(self, fl_ctx: FLContext) -> None:
        pass

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        pass

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        study, action, ticket, request = self._names
        folder = StudyFolder.open(Path(os.environ["INTARSIA_STUDIES"]) / study)
        outcome: dict[str, Any] = {"ticket": ticket, "action": action, "ok": True}
        started = time.monotonic()
        carrier = _Carrier(self, folder, abort_signal, fl_ctx, self._timeout)
        try:
            if action == "collect":
                protocol.collect(folder, carrier.ask)
            elif action == "deliver":
                protocol.deliver(folder, carrier.ask)
            else:
                protocol.predict(folder, request, carrier.ask)
        except IntarsiaError as error:
            outcome |= {"ok": False, "code": type(error).__name__, "error": str(error)}
        except Exception as error:
            outcome |= {"ok": False, "code": "Error", "error": f"unexpected {type(error).__name__} at the server"}
        outcome |= {"seconds": round(time.monotonic() - started, 3), "received": carrier.received, "sent": carrier.sent}
        write_atomic(folder.path / "outcomes" / f"{ticket}.json", json.dumps(outcome).encode())


class _Carrier:
    def __init__(self, controller: Controller, folder: StudyFolder, signal: Signal, fl_ctx: FLContext, timeout: int):
        self.controller, self.folder, self.signal, self.fl_ctx, self.timeout = (
            controller,
            folder,
            signal,
            fl_ctx,
            timeout,
        )
        self.received: dict[str, int] = dict.fromkeys(folder.names, 0)
        self.sent: dict[str, int] = dict.fromkeys(folder.names, 0)

    def ask(self, step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        """One step at all the given sites; they work at the same time, pieces go round by round."""
        incoming = self.folder.path / "incoming" / step
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
        replies: dict[str, Reply] = {}
        calls = {name: _Call(uuid.uuid4().hex, pack_payload(payload)) for name, payload in payloads.items()}
        tasks = {name: call.next_put(step, self.folder.study.hash) for name, call in calls.items()}
        while tasks:
            answers = self._round(tasks)
            tasks = {}
            for name, data in answers.items():
                try:
                    following = self._take(calls[name], step, data, incoming / f"{name}.part")
                except IntarsiaError as error:
                    replies[name] = Reply(error=str(error))
                    continue
                if following is not None:
                    tasks[name] = following
                else:
                    replies[name] = calls[name].reply
        return replies

    def _take(self, call: "_Call", step: str, data: dict[str, Any], path: Path) -> dict[str, Any] | None:
        if isinstance(data.get("error"), str):
            call.reply = Reply(error=data["error"][:500])
            return None
        if data.get("more"):
            return call.next_put(step, self.folder.study.hash)
        if call.assembly is None:
            call.assembly = Assembly(path.open("wb"))
        complete = call.assembly.add(data)
        if not complete:
            return call.get(step, self.folder.study.hash, data["index"] + 1)
        call.assembly.sink.close()
        call.reply = Reply(path)
        return None

    def _round(self, tasks: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        answers: dict[str, dict[str, Any]] = {}

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            name = client_task.client.name  # the name in the client's certificate, checked by the engine
            try:
                data = from_shareable(client_task.result).data
                answers[name] = data if isinstance(data, dict) else {"error": "the answer is not readable"}
            except Exception:
                answers[name] = {"error": "the engine returned no answer of ours; see the site's log"}
            self.received[name] = self.received.get(name, 0) + _size(answers[name])
            client_task.result = None

        standing = []
        for name, data in tasks.items():
            self.sent[name] = self.sent.get(name, 0) + _size(data)
            task = Task(
                TASK,
                DXO(DataKind.COLLECTION, data=data).to_shareable(),
                timeout=self.timeout,
                result_received_cb=received,
            )
            self.controller.broadcast(task, self.fl_ctx, targets=[name], min_responses=1)
            standing.append(task)
        deadline = time.monotonic() + self.timeout + 5
        while any(task.completion_status is None for task in standing):
            if self.signal.triggered or time.monotonic() > deadline:
                for task in standing:
                    self.controller.cancel_task(task, TaskCompletionStatus.CANCELLED, self.fl_ctx)
                break
            time.sleep(0.02)
        return {name: data for name, data in answers.items() if name in tasks}


class _Call:
    """One step at one site: pieces out, pieces in."""

    def __init__(self, call: str, payload: bytes):
        self.call = call
        self.left = iter(all_pieces(payload))
        self.pieces = count(len(payload))
        self.assembly: Assembly | None = None
        self.reply = Reply(error="no answer")

    def next_put(self, step: str, study_hash: str) -> dict[str, Any]:
        piece = next(self.left, None)
        if piece is None:
            raise FederationError("The site asks for more than there is.")
        return {"call": self.call, "op": "put", "step": step, "study_hash": study_hash, "piece": piece}

    def get(self, step: str, study_hash: str, index: int) -> dict[str, Any]:
        return {"call": self.call, "op": "get", "step": step, "study_hash": study_hash, "index": index}


def _size(data: Mapping[str, Any]) -> int:
    piece = data.get("piece", data)
    raw = piece.get("data", b"") if isinstance(piece, dict) else b""
    return len(raw) if isinstance(raw, bytes | bytearray) else 0
