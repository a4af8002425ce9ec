"""A fit that has not converged goes on with more draws than study.toml gave it, or begins anew with a longer warm-up.

How long chains run is the server's own matter: the sketches are the same, no site sends anything and nobody learns more. What the
sites hold stays as it is: they take the coefficients of a run once, so a fit that somebody has received is not made again.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace

from intarsia.errors import FederationError, InputError
from intarsia.server.sampler.settings import Settings
from intarsia.server.study.folder import CHECKS, StudyFolder

FILE = "longer.json"  # the length asked for here, in the place of study.toml's


def with_length(folder: StudyFolder, settings: Settings) -> Settings:
    """The study's settings, with the length that was asked for in this folder."""
    file = folder.path / FILE
    return replace(settings, **json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else settings


def go_on(folder: StudyFolder, settings: Settings, asked: Mapping[str, int]) -> None:
    """Let the next fit have so many `draws` per chain (going on where the last one was) or so many sweeps of `warmup` (anew)."""
    if not asked:
        return
    now = with_length(folder, settings)
    if all(getattr(now, name) == value for name, value in asked.items()):
        return  # the same command again after a crash
    if folder.present("receipt"):
        raise FederationError(
            f"{', '.join(folder.present('receipt'))} hold the coefficients of this fit, and sites take those of a run once. A "
            "longer fit for yourself: intarsia refit. For the sites: a new run (`intarsia study again`)."
        )
    before = now.draws or _made(folder) // now.chains
    if asked.get("draws", before) < before:
        raise InputError(f"This fit may take {before:,} draws per chain already; more is asked for by a larger number.")
    length = {"draws": now.draws, "warmup": now.warmup} | dict(asked)
    folder.write(folder.path / FILE, json.dumps(length).encode())
    for name in ("fit.json", "posterior.nc", CHECKS):  # the summary first: without it there is no fit
        (folder.path / name).unlink(missing_ok=True)
    if "warmup" in asked:
        shutil.rmtree(folder.path / "checkpoint", ignore_errors=True)
    folder.note("fit goes on", **asked)


def _made(folder: StudyFolder) -> int:
    """Draws of all chains of the present fit; 0 where there is none."""
    file = folder.path / "fit.json"
    return int(json.loads(file.read_text(encoding="utf-8"))["draws"]) if file.is_file() else 0
