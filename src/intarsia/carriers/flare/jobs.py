"""What a job of ours is, to the last entry: two class names that are installed at both ends, and the study's name. No code."""

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from intarsia.carriers.flare.hardening import CONTROLLER, EXECUTOR
from intarsia.files import replace

TASK = "intarsia"
ACTIONS = ("collect", "deliver", "predict")
# The engine numbers jobs so. A job's folder lies beside `local` and `startup`, and is deleted and written by its number.
JOB_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LIMIT_BYTES = 2**20
_FILES = {"config/config_fed_client.json", "config/config_fed_server.json"}
_FOLDERS = {"config/"}  # a folder `custom` would be searched for modules
# The engine puts these into every folder of a job that an operator submits: signatures and the certificates they are by.
_SIGNATURES = re.compile(r"(?:config/)?\.__nvfl_(?:sig\.json|submitter\.crt)")

CLIENT_CONFIG: dict[str, Any] = {
    "format_version": 2,
    "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
    "task_data_filters": [],
    "task_result_filters": [],
    "components": [],
}


def write_job(where: Path, names: tuple[str, ...], arguments: dict[str, Any]) -> Path:
    """A job's folder, ready to be submitted."""
    job = where / f"intarsia-{arguments['action']}"
    config = job / "app" / "config"
    config.mkdir(parents=True)
    meta = {
        "name": job.name,
        "resource_spec": {},
        "deploy_map": {"app": ["@ALL"]} if not names else {"app": ["server", *names]},
        "min_clients": len(names),
        "mandatory_clients": list(names),
    }
    server = {
        "format_version": 2,
        # The engine's sites ask for work every 2 s by default; a study has few, short rounds.
        "server": {"task_request_interval": 0.2},
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [{"id": "study", "path": CONTROLLER, "args": arguments}],
    }
    contents = {
        job / "meta.json": meta,
        config / "config_fed_server.json": server,
        config / "config_fed_client.json": CLIENT_CONFIG,
    }
    for path, content in contents.items():
        replace(path, json.dumps(content).encode())
    return job


def strange(job_id: object, app: object) -> str:
    """Why this is not a job of ours; empty if it is. `app` is the archive a site is asked to unpack and run."""
    if not isinstance(job_id, str) or not JOB_ID.fullmatch(job_id):
        return "its number is not one of the engine's"
    if not isinstance(app, bytes | bytearray) or len(app) > LIMIT_BYTES:
        return "it is larger than a job without code"
    try:
        with zipfile.ZipFile(io.BytesIO(app)) as archive:
            folders = {entry.filename for entry in archive.infolist() if entry.is_dir()}
            files = [entry for entry in archive.infolist() if not entry.is_dir()]
            names = [entry.filename for entry in files if not _SIGNATURES.fullmatch(entry.filename)]
            if len(set(names)) != len(names) or not set(names) <= _FILES or len(files) > 8 or folders - _FOLDERS:
                return "it brings files that a job of ours does not have"
            if sum(entry.file_size for entry in files) > LIMIT_BYTES:
                return "it unpacks to more than a job without code"
            if json.loads(archive.read("config/config_fed_client.json")) != CLIENT_CONFIG:
                return "it asks a site for something else than our one class without arguments"
    except Exception:  # a stranger's archive: whatever its reader stumbles over
        return "it is not readable"
    return ""
