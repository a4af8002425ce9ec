"""A study over the network, from study.toml to delivered coefficients; any interruption, then the same call again."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intarsia.carriers.flare.engine import PATIENCE, Patience, run_job, session
from intarsia.errors import FederationError
from intarsia.server.study.fit import fit
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.status import status
from intarsia.wire.study import Study

Say = Callable[[str], None]


def study_folder(server: Path, study: Study) -> Path:
    return server / "studies" / study.folder_name


def run_study(
    source: Path,
    server: Path,
    *,
    patience: Patience = PATIENCE,
    workers: int | None = None,
    until: str = "deliver",
    say: Say = print,
    progress: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Collect (a job), fit (here, outside the engine), deliver (a job). What is done already is not done again.

    A fit that has not reached its target is not handed out by itself, because sites take the coefficients of a run once: it can
    go on (`server.study.longer`), or `until="provisional"` hands it out as it is.
    """
    study = Study.load(source)
    if not (server / "admin").is_dir():
        raise FederationError(f"{server} is not a server's folder; make one with `intarsia server init`.")
    folder = StudyFolder.create(study_folder(server, study), source)
    result: dict[str, Any] = {"study": study.id, "folder": str(folder.path), "hash": study.hash, "jobs": []}
    with folder.locked():
        steps = {str(row["step"]): bool(row["done"]) for row in status(folder)}
        if not folder.collected or any(folder.damaged(kind) for kind in ("sketch", "product")):
            say("collecting: key agreement, alignment, sketches")
            with session(server, patience.wait_s) as opened:
                result["jobs"].append(run_job(opened, folder, "collect", patience=patience))
        if until == "collect":
            return result
        say("fitting")
        started = time.monotonic()
        summary = fit(folder, workers=workers, progress=progress)
        result |= summary | {"fit_seconds": round(time.monotonic() - started, 3)}
        result["held"] = until == "deliver" and study.fit.until == "converged" and not summary["converged"]
        if until == "fit" or steps["deliver"] or result["held"]:
            return result
        say("delivering each site's own coefficients")
        with session(server, patience.wait_s) as opened:
            result["jobs"].append(run_job(opened, folder, "deliver", patience=patience))
    shutil.rmtree(folder.path / "incoming", ignore_errors=True)
    return result


def run_prediction(folder: Path, server: Path, request: str, *, patience: Patience = PATIENCE) -> dict[str, Any]:
    """Joint prediction of the new subjects that every site has put into its predict/ folder under this name."""
    opened_folder = StudyFolder.open(folder)
    with opened_folder.locked(), session(server, patience.wait_s) as opened:
        return run_job(opened, opened_folder, "predict", request=request, patience=patience)
