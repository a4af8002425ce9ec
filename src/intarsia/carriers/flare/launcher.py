"""How a site starts the process of a job: as the engine does, but behind our guard. Named in the site's own settings."""

from typing import Any

from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher

from intarsia.errors import FederationError

ENGINE_MODULE = "nvflare.private.fed.app.client.worker_process"
OUR_MODULE = "intarsia.carriers.flare.start_job"


class GuardedLauncher(ClientProcessJobLauncher):
    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        command = str(super().get_command(job_meta, fl_ctx))
        if command.count(f" {ENGINE_MODULE} ") != 1:
            raise FederationError("The engine starts jobs in a way this intarsia does not know. Nothing is started.")
        return command.replace(f" {ENGINE_MODULE} ", f" {OUR_MODULE} ")
