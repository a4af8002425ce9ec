"""Altered server software: a controller that runs in the server's own job process and sends a site whatever an attack says.

The operator of the server is the attacker, so this class is allowed there; the sites' software is the real one.
"""

import json
import os
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, new_cell_message

from intarsia.carriers.flare.server_side import _Carrier


class RogueController(Controller):
    """Runs one function of `tests.adversary.live.attacks` and leaves what it found in a file."""

    def __init__(self, attack: str, out: str, options: dict[str, Any] | None = None):
        super().__init__(task_check_period=0.05)
        self._attack, self._out, self._options = attack, out, options or {}

    def start_controller(self, fl_ctx: FLContext) -> None:
        pass

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        pass

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        from tests.adversary.live import attacks

        try:
            found = getattr(attacks, self._attack)(Rogue(self, abort_signal, fl_ctx), **self._options)
        except Exception:
            found = {"failed": traceback.format_exc()}
        temporary = Path(self._out + ".part")
        temporary.write_text(json.dumps(found, default=repr), encoding="utf-8")
        os.replace(temporary, self._out)


class Rogue:
    """What the server can do: any step under any study hash with any payload, and any command of the engine."""

    def __init__(self, controller: Controller, signal: Signal, fl_ctx: FLContext):
        self.controller, self.signal, self.fl_ctx = controller, signal, fl_ctx

    def ask(self, study_hash: str, step: str, payloads: dict[str, dict[str, bytes]]) -> dict[str, str | bytes]:
        """A step at some sites: each one's message, or the text of its refusal."""
        where = Path(os.environ["INTARSIA_STUDIES"]) / "rogue"
        where.mkdir(exist_ok=True)
        names = tuple(payloads)
        folder = SimpleNamespace(path=where, names=names, study=SimpleNamespace(hash=study_hash, names=names))
        carrier = _Carrier(self.controller, folder, self.signal, self.fl_ctx, 60)  # type: ignore[arg-type]
        replies = carrier.ask(step, payloads)
        return {n: r.error if r.error is not None else Path(r.message).read_bytes() for n, r in replies.items()}  # type: ignore

    def command(self, site: str, topic: str, body: Any = "", timeout: float = 60.0, **headers: Any) -> str:
        """One of the engine's own commands, sent to a site as the server's administrator would, without asking anybody."""
        message = Message(topic=topic, body=body)
        message.set_headers(headers)
        cell = self.fl_ctx.get_engine().get_cell()
        reply = cell.send_request(
            channel=CellChannel.CLIENT_MAIN, target=site, topic=topic, request=new_cell_message({}, message), timeout=timeout
        )
        return str(getattr(reply.payload, "body", reply.payload)) + " " + str(reply.headers.get("cn__return_code", ""))
