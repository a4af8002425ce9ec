"""The steps of a study, free of any engine. A carrier only brings messages to sites and their replies back.

The server drives: `collect`, the fit (outside any carrier), `deliver`, and later `predict`. Each looks into the
study folder first and asks only for what is missing, so any of them can be run again after a crash or a site's absence.

A carrier is a function `ask(step, {site: {name: bytes}}) -> {site: Reply}`; a site that did not answer is left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from intarsia.errors import FederationError, IntarsiaError
from intarsia.server.study.folder import StudyFolder, write_atomic
from intarsia.wire.prediction import PartialPrediction, add_parts
from intarsia.wire.schema import check_name

Payload = Mapping[str, bytes | Path]


@dataclass(frozen=True)
class Reply:
    """A site's answer: a message (bytes, or a file the carrier assembled), or why there is none."""

    message: bytes | Path | None = None
    error: str | None = None


Ask = Callable[[str, Mapping[str, Payload]], Mapping[str, Reply]]


def agrees(folder: StudyFolder) -> bool:
    """Whether the sites agree on the key through this server (all keys pinned) or have exchanged a file."""
    return folder.study.agrees


def collect(folder: StudyFolder, ask: Ask) -> None:
    """Key agreement (if the study pins keys), alignment and sketches; fails closed and by name, keeping what came."""
    align: dict[str, bytes | Path] = {}
    if not folder.missing("sketch"):
        return
    if agrees(folder):
        _gather(folder, ask, "offer", "offer", {name: {} for name in folder.study.names})
        offers = {name: folder.read("offer", name) for name in folder.study.names}
        _gather(folder, ask, "share", "share", dict.fromkeys(folder.study.names, offers))
        bundles = {name: folder.read("share", name) for name in folder.study.names}
        _gather(folder, ask, "confirmation", "combine", dict.fromkeys(folder.study.names, bundles))
        align = {name: folder.read("confirmation", name) for name in folder.study.names}
    _gather(folder, ask, "alignment", "align", dict.fromkeys(folder.study.names, align))
    cohorts = folder.cohorts()
    _gather(folder, ask, "sketch", "sketch", {name: {"cohort": c.to_bytes()} for name, c in cohorts.items()})


def deliver(folder: StudyFolder, ask: Ask) -> None:
    """Hand each site its own coefficients and note its receipt."""
    if not (folder.path / "fit.json").is_file():
        raise FederationError(f"Study {folder.study.id!r} is not fitted yet; there is nothing to deliver.")
    waiting = [name for name in folder.study.names if not _receipt(folder, name).is_file()]
    replies = ask("receive", {name: {"coefficients": folder.file("coefficients", name)} for name in waiting})
    for name in waiting:
        reply = replies.get(name)
        if reply is not None and reply.error is None:
            write_atomic(_receipt(folder, name), b"received\n")
            folder.note("delivered", site=name)
    late = [name for name in waiting if not _receipt(folder, name).is_file()]
    if late:
        raise FederationError(
            f"The coefficients of {', '.join(late)} are not delivered: {_why(replies, late)}. "
            "They are kept; run the same command again."
        )


def predict(folder: StudyFolder, request: str, ask: Ask) -> None:
    """Joint prediction for the new subjects that each site has under this request's name."""
    if not check_name(request):
        raise FederationError("The name of a prediction is 1 to 63 letters, digits, '-' or '_'.")
    study, where = folder.study, folder.path / "predictions" / request
    named = {"request": request.encode()}
    waiting = [name for name in study.names if not (where / f"{name}.part").is_file()]
    replies = ask("predict", dict.fromkeys(waiting, named))
    for name in waiting:
        reply = replies.get(name)
        if reply is None or reply.error is not None or reply.message is None:
            continue
        raw = reply.message.read_bytes() if isinstance(reply.message, Path) else reply.message
        message = PartialPrediction.from_bytes(raw)
        folder.same_hash("prediction", name, message.study_hash, message.site)
        if message.request != request:
            raise FederationError(f"Site {name!r} answered another prediction than {request!r}. Refused.")
        write_atomic(where / f"{name}.part", raw)
    late = [name for name in waiting if not (where / f"{name}.part").is_file()]
    if late:
        raise FederationError(
            f"Prediction {request!r} lacks the part of {', '.join(late)}: {_why(replies, late)}. Masked parts are no "
            "use unless all are there; run the same command again."
        )
    parts = {name: PartialPrediction.from_bytes((where / f"{name}.part").read_bytes()) for name in study.names}
    owners = sorted({owner for part in parts.values() for owner in part.parts})
    sums = {owner: {**named, "sum": add_parts(parts, owner).to_bytes()} for owner in owners if owner in parts}
    done = ask("finish", sums)
    late = [owner for owner in sums if done.get(owner) is None or done[owner].error is not None]
    if late:
        raise FederationError(f"Prediction {request!r} is not finished at {', '.join(late)}: {_why(done, late)}.")
    folder.note("predicted", request=request)


def _gather(folder: StudyFolder, ask: Ask, kind: str, step: str, payloads: Mapping[str, Payload]) -> None:
    missing = folder.missing(kind)
    if not missing:
        return
    replies = ask(step, {name: payloads[name] for name in missing})
    refused = {}
    for name in missing:
        reply = replies.get(name)
        if reply is None:
            folder.note("away", site=name, kind=kind)
        elif reply.error is not None or reply.message is None:
            refused[name] = reply.error or "it sent nothing"
            folder.note("declined", site=name, kind=kind, why=refused[name])
        else:
            try:
                folder.accept(kind, name, reply.message)
            except IntarsiaError as error:
                refused[name] = str(error)
    if refused:
        away = [name for name in missing if name not in replies]
        silent = f" No answer in time from {', '.join(away)}." if away else ""
        said = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise FederationError(f"No {kind} from {', '.join(refused)}. {said}{silent} What has arrived is kept.")
    folder.require(kind)


def _receipt(folder: StudyFolder, name: str) -> Path:
    return folder.path / "coefficients" / f"{name}.received"


def _why(replies: Mapping[str, Reply], names: list[str]) -> str:
    return "; ".join(f"{name}: {replies[name].error if name in replies else 'no answer in time'}" for name in names)


def status(folder: StudyFolder) -> list[dict[str, object]]:
    """Every step of the study: done, waiting for whom, or not begun."""
    study = folder.study
    rows: list[dict[str, object]] = []
    kinds = (["offer", "share", "confirmation"] if agrees(folder) else []) + ["alignment", "sketch"]
    for kind in kinds:
        present, missing = folder.present(kind), folder.missing(kind)
        rows.append({"step": kind, "done": not missing, "present": list(present), "missing": list(missing)})
    if not folder.missing("sketch") and folder.missing("alignment"):
        # Sketches that came as files prove the alignment themselves.
        rows = [row for row in rows if row["step"] == "sketch"]
    fitted = (folder.path / "fit.json").is_file()
    begun = (folder.path / "checkpoint").exists()
    rows.append({"step": "fit", "done": fitted, "present": ["checkpoint"] if begun else [], "missing": []})
    received = [name for name in study.names if _receipt(folder, name).is_file()]
    waiting = [name for name in study.names if name not in received]
    rows.append({"step": "deliver", "done": not waiting, "present": received, "missing": waiting})
    for where in sorted((folder.path / "predictions").glob("*")):
        parts = [name for name in study.names if (where / f"{name}.part").is_file()]
        lacking = [name for name in study.names if name not in parts]
        rows.append({"step": f"predict {where.name}", "done": not lacking, "present": parts, "missing": lacking})
    return rows
