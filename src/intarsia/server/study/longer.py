"""What the server itself asks of a fit: more draws than study.toml gave it, a longer warm-up, an accelerator.

How long chains run, and on what, is the server's own matter: the sketches are the same, no site sends anything and nobody learns
more. What the sites hold stays as it is: they take the coefficients of a run once, so a fit that somebody has received is not
made again.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intarsia.errors import FederationError, InputError
from intarsia.files import read_json, replace_json
from intarsia.server.sampler.settings import Settings, check_backend
from intarsia.server.study.folder import CHECKS, StudyFolder
from intarsia.server.study.kept import FIT, POSTERIOR, read_fit

FILE = "own_settings.json"  # what was asked for here, in the place of study.toml's


def with_own(folder: StudyFolder, settings: Settings) -> Settings:
    """The study's settings, with the length and the backend that were asked for in this folder."""
    return replace(settings, **_own(folder))


def on_own_backend(folder: StudyFolder, settings: Settings) -> Settings:
    """Settings of another fit of the same sketches, made on what the study's own fit was made on."""
    return replace(settings, backend=with_own(folder, settings).backend)


def _own(folder: StudyFolder) -> dict[str, Any]:
    file = folder.path / FILE
    remedy = "Delete it and say again what the fit is to be made with (--draws, --warmup, --backend)."
    return read_json(file, remedy) if file.is_file() else {}


def compute_on(folder: StudyFolder, settings: Settings, backend: str | None) -> Settings:
    """The settings of the next fit, which makes its sweeps on this backend from now on; None: on the one it has."""
    now = with_own(folder, settings)
    if backend is None or backend == now.backend:
        return now
    check_backend(backend, folder.study.fit.prior)
    if (folder.path / "checkpoint").exists():
        raise InputError(
            f"This fit was begun with the backend {now.backend!r} and goes on with it. To begin anew with {backend!r}, give the "
            "length of the warm-up, too (--warmup)."
        )
    replace_json(folder.path / FILE, _own(folder) | {"backend": backend})
    return replace(now, backend=backend)


def go_on(folder: StudyFolder, settings: Settings, asked: Mapping[str, int]) -> None:
    """Let the next fit have so many `draws` per chain (going on where the last one was) or so many sweeps of `warmup` (anew)."""
    if not asked:
        return
    now = with_own(folder, settings)
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
    own = _own(folder) | {"draws": now.draws, "warmup": now.warmup} | dict(asked)
    replace_json(folder.path / FILE, own)
    for name in (FIT, POSTERIOR, CHECKS):  # the summary first: without it there is no fit
        (folder.path / name).unlink(missing_ok=True)
    if "warmup" in asked:
        shutil.rmtree(folder.path / "checkpoint", ignore_errors=True)
    folder.note("fit goes on", **asked)


def _made(folder: StudyFolder) -> int:
    """Draws of all chains of the present fit; 0 where there is none."""
    return int(read_fit(folder.path)["draws"]) if (folder.path / FIT).is_file() else 0
