"""Where a study stands, read from its folder: steps, sites, chains. Plain values, no data of any subject."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.errors import IntarsiaError
from intarsia.report.gather import read_events
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.status import status

QUIET_SECONDS = 60.0  # seconds without news after which a running chain is called silent
SHOWN = 30  # events


def find_studies(folder: Path) -> list[Path]:
    """The study folders below a server's folder (or the folder itself, when it is one)."""
    if (folder / "study.toml").is_file() and not (folder / "studies").is_dir():
        return [folder]
    places = [p for base in (folder / "studies", folder) if base.is_dir() for p in sorted(base.iterdir())]
    found = [p for p in places if (p / "study.toml").is_file()]
    return sorted(dict.fromkeys(found), key=lambda p: -_changed(p))


def _changed(path: Path) -> float:
    try:
        return (path / "events.jsonl").stat().st_mtime
    except OSError:
        return 0.0


def study_state(path: Path, now: float | None = None) -> dict[str, Any]:
    """One study. A folder that cannot be read gives its name and the reason."""
    try:
        folder = StudyFolder.open(path)
        steps = status(folder)
    except (IntarsiaError, OSError) as error:
        return {"name": path.name, "error": str(error)}
    study = folder.study
    sites = []
    for name in folder.names:
        row: dict[str, Any] = {"name": name}
        for kind in ("offer", "share", "confirmation", "announcement", "alignment", "sketch"):
            file = folder.file(kind, name)
            row[kind] = file.stat().st_size if file.is_file() else None
        row["delivered"] = (path / "receipt" / f"{name}.receipt").is_file()
        sites.append(row)
    fit = _json(path / "fit.json")
    return {
        "name": path.name,
        "id": study.id,
        "title": study.title,
        "hash": study.hash,
        "run": study.run,
        "m": study.sketch.m,
        "steps": steps,
        "sites": sites,
        "aligned": _aligned(folder),
        "left_out": _left_out(folder),
        "chains": [] if fit is not None else chains(path / "checkpoint", study.fit.chains, now),
        "looks": study.fit.until == "converged",  # chains then count to the next look at convergence, not to their end
        "fit": fit,
        "report": (path / "posterior.nc").is_file() and fit is not None,
        "events": [_event(e) for e in read_events(path)[-SHOWN:]],
    }


def _aligned(folder: StudyFolder) -> int | None:
    """People at all sites, once every site has reported."""
    if folder.left or folder.missing("alignment"):
        return None
    try:
        return next(iter(folder.cohorts().values())).n
    except (IntarsiaError, OSError):
        return None


def _left_out(folder: StudyFolder) -> dict[str, int]:
    """How many of each site's subjects are not at all sites."""
    try:
        return folder.left_out()
    except (IntarsiaError, OSError):
        return {}


def chains(checkpoint: Path, expected: int, now: float | None = None) -> list[dict[str, Any]]:
    """Progress of every chain, with the time left to its `total` and the R̂ of all together so far."""
    now = time.time() if now is None else now
    seen: list[dict[str, Any]] = []
    for k in range(expected):
        file = checkpoint / f"progress-{k}.json"
        content = _json(file)
        if content is None:
            seen.append({"chain": k, "sweeps": 0, "total": 0, "warmup": 0, "kept": 0, "left": None, "silent": None})
            continue
        sweeps, total, seconds = int(content["sweeps"]), int(content["total"]), float(content["seconds"])
        try:
            silent = now - file.stat().st_mtime
        except OSError:
            silent = 0.0
        left = None if not sweeps else (total - sweeps) * seconds / sweeps
        quiet = silent if sweeps < total and silent > QUIET_SECONDS else None
        seen.append({
            "chain": k, "sweeps": sweeps, "total": total, "warmup": int(content["warmup"]), "kept": int(content["kept"]),
            "left": left, "silent": quiet, "mean": content["mean"], "square": content["square"],
        })  # fmt: skip
    rhat = _rhat(seen)
    for row in seen:
        row.pop("mean", None)
        row.pop("square", None)
        row["rhat"] = rhat
    return seen


def _rhat(seen: list[dict[str, Any]]) -> float | None:
    from intarsia.server.assess.diagnostics import rhat_from_moments

    started = [row for row in seen if row["kept"] >= 10 and "mean" in row]
    if len(started) < 2:
        return None
    count = np.array([row["kept"] for row in started], dtype=float)
    mean, square = (np.array([row[key] for row in started], dtype=float) for key in ("mean", "square"))
    values = rhat_from_moments(count, mean, square)
    return float(np.nanmax(values)) if np.isfinite(values).any() else None


def _event(event: dict[str, Any]) -> dict[str, str]:
    words = [str(event[key]) for key in ("site", "kind", "action", "why", "verdict") if key in event]
    return {
        "time": str(event.get("time", "")).replace("T", " ").removesuffix("Z"),
        "event": str(event.get("event", "")),
        "words": " · ".join(words)[:400],
    }


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
