"""The guard around the engine at a site: whatever an altered server sends, the site does these few things and no others.

The engine asks a site's own policy about a command only if the server's message says that it should, and lets a person with
the role "super" do anything, where the role is what the server says it is. A server that is not honest could so read any file
of a site with the engine's `cat`, bring code, or delete the settings by the number of a job. The guard takes these ways out:

- commands to a site: start, watch and end a job; nothing of shells, logs, restarts or deletions;
- a job: a number of the engine's own form, and exactly the one class of ours without arguments;
- commands to a running job: its state and its end;
- nobody is "super".
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from intarsia.carriers.flare.jobs import JOB_ID, LIMIT_BYTES, strange
from intarsia.errors import FederationError

# Topics of the server's requests that a study needs.
REQUESTS = frozenset(
    {
        "train.deploy",
        "train.start_job",
        "train.abort",
        "train.check_status",
        "train.notify_job_status",
        "scheduler.check_resource",
        "scheduler.cancel_resource",
    }
)
JOB_COMMANDS = frozenset({"check_status", "abort", "abort_task", "shutdown"})
# Of the engine's network management: echoes and signs of life, but no statistics, settings or change of server.
NETWORK_CHANNEL = "_net_manager"
NETWORK_TOPICS = frozenset({"heartbeat", "echo", "stop", "stop_cell", "route", "start_route", "cells", "peers"})


def guard_jobs() -> None:
    """Only numbers of the engine's own form name a job's folder (both ends)."""
    from nvflare.apis.workspace import Workspace

    def checked(job_id: Any) -> str:
        if not isinstance(job_id, str) or not JOB_ID.fullmatch(job_id):
            raise ValueError("The job's number is not one of the engine's; refused.")
        return job_id

    Workspace._check_job_id = staticmethod(checked)


def guard_site() -> None:
    """Put the guard around the engine's classes in this process, and make sure that it holds."""
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.sec.authz import Authorizer
    from nvflare.private.fed.client.admin import FedAdminAgent
    from nvflare.private.fed.client.admin_commands import AdminCommands
    from nvflare.private.fed.utils.app_deployer import AppDeployer

    guard_jobs()
    dispatch, deploy, authorize, listen = (
        FedAdminAgent._dispatch_request,
        AppDeployer.deploy,
        Authorizer.authorize,
        CoreCell.register_request_cb,
    )

    def only_ours(self: Any, request: Any) -> Any:
        if getattr(getattr(request, "payload", None), "topic", None) not in REQUESTS:
            return _refusal()
        return dispatch(self, request)

    def only_our_jobs(self: Any, workspace: Any, job_id: Any, job_meta: Any, app_name: Any, app_data: Any, fl_ctx: Any) -> Any:
        if why := strange(job_id, app_data) or ("its description is long" if len(repr(job_meta)) > LIMIT_BYTES else ""):
            return f"This site runs only jobs of intarsia. Refused: {why}."
        return deploy(self, workspace, job_id, job_meta, app_name, app_data, fl_ctx)

    def nobody_is_super(self: Any, ctx: Any) -> Any:
        if ctx and "super" in (getattr(ctx.user, "role", ""), getattr(ctx.submitter, "role", "")):
            return False, "not authorized"
        return authorize(self, ctx)

    def no_management(self: Any, channel: str, topic: str, cb: Any, *args: Any, **kwargs: Any) -> Any:
        if channel == NETWORK_CHANNEL and topic not in NETWORK_TOPICS:
            return None
        return listen(self, channel, topic, cb, *args, **kwargs)

    FedAdminAgent._dispatch_request = only_ours
    AppDeployer.deploy = only_our_jobs
    Authorizer.authorize = nobody_is_super
    CoreCell.register_request_cb = no_management
    AdminCommands.commands[:] = [c for c in AdminCommands.commands if c.get_command_name() in JOB_COMMANDS]
    _try_out()


def _refusal() -> Any:
    from nvflare.private.admin_defs import error_reply
    from nvflare.private.defs import new_cell_message

    return new_cell_message({}, error_reply("this site does not take that command"))


def _try_out() -> None:
    """Ask the engine for what must be refused, the way its own code would."""
    from nvflare.apis.workspace import Workspace
    from nvflare.fuel.sec.authz import Authorizer, AuthzContext, Person
    from nvflare.private.admin_defs import Message
    from nvflare.private.defs import new_cell_message
    from nvflare.private.fed.client import client_engine, training_cmds
    from nvflare.private.fed.client.admin import FedAdminAgent
    from nvflare.private.fed.client.admin_commands import AdminCommands
    from nvflare.private.fed.utils.app_deployer import AppDeployer

    holds = True
    for name in ("local", "startup", "..", "", "site.toml"):
        try:
            Workspace._check_job_id(name)
            holds = False
        except ValueError:
            pass
    somebody = Person("x", "x", "super")
    holds &= not Authorizer("x").authorize(AuthzContext(user=somebody, submitter=somebody, right="byoc"))[0]
    holds &= bool(AppDeployer().deploy(None, "local", {}, "app", b"", None))
    called: list[str] = []
    processor = SimpleNamespace(process=lambda req, ctx: called.append(req.topic))
    context = SimpleNamespace(new_context=nullcontext)
    agent = SimpleNamespace(auditor=None, processors={"sys.shell": processor}, app_ctx=context)
    FedAdminAgent._dispatch_request(agent, new_cell_message({}, Message(topic="sys.shell", body="ls")))
    holds &= not called
    holds &= {c.get_command_name() for c in AdminCommands.commands} <= JOB_COMMANDS
    # The engine's own modules must go through what was changed here, not through names they took before.
    holds &= client_engine.Workspace is Workspace and training_cmds.Workspace is Workspace
    if not holds:
        raise FederationError("The guard around the engine does not hold with this version of it. Nothing is started.")


def start(main: Callable[[], None]) -> None:
    """Run the way into a process; what it refuses is one line for the operator, and the exit code says which kind."""
    try:
        main()
    except FederationError as error:
        print(f"intarsia: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
