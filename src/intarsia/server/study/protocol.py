"""The steps of a study, free of any engine. A carrier only brings messages to sites and their replies back.

The server drives: `collect`, the fit (outside any carrier), `deliver`, and later `predict`. Each looks into the
study folder first and asks only for what is missing, so any of them can be run again after a crash or a site's absence.
docs/protocol.md lists every message: who makes it, what it is bound to, what its receiver checks.

A carrier is a function `ask(step, {site: {name: bytes}}) -> {site: Reply}`; a site that did not answer is left out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from intarsia.errors import FederationError, IntarsiaError
from intarsia.server.study import gram, gram_holder
from intarsia.server.study.folder import StudyFolder, write_atomic
from intarsia.wire.gram_messages import BLOCK
from intarsia.wire.leave import ENTRY
from intarsia.wire.prediction import PredictionPart, PredictionSum, add_parts
from intarsia.wire.schema import check_name
from intarsia.wire.study_parts import SERVER

Payload = Mapping[str, bytes | Path]


@dataclass(frozen=True)
class Reply:
    """A site's answer: a message (bytes, or a file the carrier assembled), or why there is none."""

    message: bytes | Path | None = None
    error: str | None = None


Ask = Callable[[str, Mapping[str, Payload]], Mapping[str, Reply]]


def collect(folder: StudyFolder, ask: Ask) -> None:
    """Key agreement (if the study pins keys), counts, alignment and sketches; fails closed and by name, keeping what came.

    A Gram study has the sites' own blocks in place of sketches, and the products between sites after them.
    """
    if folder.collected:
        return
    if not folder.missing("sketch"):
        _collect_rest(folder, ask)
        return
    names, confirmations = folder.names, {}
    if folder.study.agrees:
        gather(folder, ask, "offer", "offer", {name: {} for name in names})
        gather(folder, ask, "share", "share", dict.fromkeys(names, _all(folder, "offer")))
        gather(folder, ask, "confirmation", "combine", dict.fromkeys(names, _all(folder, "share")))
        confirmations = _all(folder, "confirmation")
    gather(folder, ask, "announcement", "announce", dict.fromkeys(names, confirmations))
    gather(folder, ask, "alignment", "align", dict.fromkeys(names, _all(folder, "announcement")))
    collect_sketches(folder, ask, {name: {"cohort": cohort.to_bytes()} for name, cohort in folder.cohorts().items()})
    _collect_rest(folder, ask)


def _collect_rest(folder: StudyFolder, ask: Ask) -> None:
    if folder.study.sketch.gram:
        collect_products(folder, ask)
    if folder.study.sketch.screened:
        from intarsia.server.study.screened_rounds import collect_rounds

        collect_rounds(folder, ask)


def collect_products(folder: StudyFolder, ask: Ask) -> None:
    """A Gram study, block by block of subjects: shares of columns to the holders, then what each made of them.

    What has been multiplied is of no use to anybody any more and is deleted.
    """
    names, blocks = folder.names, gram.number_of_blocks(folder)
    holding = tuple(name for name in folder.study.holders if name in names)
    open_ = [block for block in range(blocks) if not gram.opened_file(folder, block).is_file()]

    def deal(block: int) -> None:
        shown = _all(folder, "sketch") if block == 0 else {}
        gather(folder, ask, f"deal-{block}", "deal", dict.fromkeys(names, {BLOCK: str(block).encode()} | shown))

    def multiply(block: int) -> None:
        last, number = block == blocks - 1, {BLOCK: str(block).encode()}
        kind, asked = "product" if last else f"progress-{block}", names if last else holding
        payloads = {name: number | gram.deals_for(folder, name, f"deal-{block}") for name in asked}
        gather(folder, ask, kind, "multiply", payloads)

    ahead(ask, open_, deal)
    ahead(ask, open_, multiply)
    for block in open_:
        deal(block)
        gram_holder.multiply(folder, block, f"deal-{block}")
        multiply(block)
        settle_blocks(folder, (block,))


def ahead(ask: Ask, numbers: Iterable[int], step: Callable[[int], None]) -> None:
    """A carrier of letters (`together`) is asked for all blocks before it ends; the others have one on its way at a time."""
    if not getattr(ask, "together", False):
        return
    missing = []
    for number in numbers:
        try:
            step(number)
        except FederationError as error:
            missing.append(error)
    if missing:
        raise missing[0]


def settle_blocks(folder: StudyFolder, numbers: Iterable[int]) -> None:
    """Keep what is needed of blocks that all holders have multiplied, and delete the rest."""
    for number in numbers:
        gram.settle_block(folder, number)
        folder.drop(f"deal-{number}")
        folder.drop(f"progress-{number}")


def collect_shares(folder: StudyFolder, ask: Ask) -> None:
    """The products of a Gram study alone: sites that exchange files have multiplied without this server.

    Where the server is a holder, it multiplies what the sites dealt to it.
    """
    holding, blocks = [name for name in folder.study.holders if name in folder.names], gram.number_of_blocks(folder)
    for block in range(blocks):
        if gram.opened_file(folder, block).is_file():
            continue
        if SERVER in folder.study.holders:
            gather(folder, ask, f"deal-{block}", "deal", {name: {BLOCK: str(block).encode()} for name in folder.names})
            gram_holder.multiply(folder, block, f"deal-{block}")
        if block < blocks - 1:
            gather(folder, ask, f"progress-{block}", "multiply", {name: {BLOCK: str(block).encode()} for name in holding})
            settle_blocks(folder, (block,))
    gather(folder, ask, "product", "multiply", {name: {BLOCK: str(blocks - 1).encode()} for name in folder.names})
    settle_blocks(folder, range(blocks))


def collect_sketches(folder: StudyFolder, ask: Ask, payloads: Mapping[str, Payload] | None = None) -> None:
    """The sketches alone: sites that exchange files have agreed and aligned without this server."""
    gather(folder, ask, "sketch", "sketch", payloads or {name: {} for name in folder.names})


def align(folder: StudyFolder, ask: Ask) -> dict[str, bytes]:
    """The cohort of each site, from the sites' alignment reports."""
    gather(folder, ask, "alignment", "align", {name: {} for name in folder.names})
    return {name: cohort.to_bytes() for name, cohort in folder.cohorts().items()}


def deliver(folder: StudyFolder, ask: Ask) -> None:
    """Hand each site its own coefficients, with the notices of sites that left, and keep its receipt."""
    if not (folder.path / "fit.json").is_file():
        raise FederationError(f"Study {folder.study.id!r} is not fitted yet; there is nothing to deliver.")
    notices: dict[str, bytes | Path] = {ENTRY + name: folder.file("leave", name) for name in folder.left}
    payloads = {name: {"coefficients": folder.file("coefficients", name), **notices} for name in folder.names}
    gather(folder, ask, "receipt", "receive", payloads)


def predict(folder: StudyFolder, request: str, ask: Ask) -> None:
    """Joint prediction for the new subjects that each site has under this request's name."""
    sums = collect_parts(folder, request, ask)
    payloads = {owner: {"request": request.encode(), "sum": total.to_bytes()} for owner, total in sums.items()}
    done = ask("finish", payloads)
    late = [owner for owner in payloads if done.get(owner) is None or done[owner].error is not None]
    if late:
        raise FederationError(f"Prediction {request!r} is not finished at {', '.join(late)}: {_why(done, late)}.")
    folder.note("predicted", request=request)


def collect_parts(folder: StudyFolder, request: str, ask: Ask) -> dict[str, PredictionSum]:
    """Every site's masked part, and their sum for each site that owns a response."""
    if not check_name(request):
        raise FederationError("The name of a prediction is 1 to 63 letters, digits, '-' or '_'.")
    names, where = folder.names, folder.path / "predictions" / request
    waiting = [name for name in names if not (where / f"{name}.part").is_file()]
    replies = ask("predict", {name: {"request": request.encode()} for name in waiting}) if waiting else {}
    for name in waiting:
        reply = replies.get(name)
        if reply is None or reply.error is not None or reply.message is None:
            continue
        raw = reply.message.read_bytes() if isinstance(reply.message, Path) else reply.message
        message = PredictionPart.from_bytes(raw)
        folder.same_hash("prediction", name, message.study_hash, message.site)
        if message.request != request:
            raise FederationError(f"Site {name!r} answered another prediction than {request!r}. Refused.")
        write_atomic(where / f"{name}.part", raw)
    late = [name for name in waiting if not (where / f"{name}.part").is_file()]
    if late:
        raise FederationError(
            f"Prediction {request!r} lacks the part of {', '.join(late)}: {_why(replies, late)}. Masked parts are no "
            "use unless all are there; run the same command again when they are."
        )
    parts = {name: PredictionPart.from_bytes((where / f"{name}.part").read_bytes()) for name in names}
    return {name: add_parts(parts, name) for name in names if folder.study.site(name).responses}


def _all(folder: StudyFolder, kind: str) -> dict[str, bytes | Path]:
    return {name: folder.read(kind, name) for name in folder.names}


def gather(folder: StudyFolder, ask: Ask, kind: str, step: str, payloads: Mapping[str, Payload]) -> None:
    damaged = [name for name in folder.damaged(kind) if name in payloads]
    missing = [name for name in (*folder.missing(kind), *damaged) if name in payloads]
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
        said = _together(refused)
        raise FederationError(f"No {kind} from {', '.join(refused)}. {said}{silent} What has arrived is kept.")
    folder.require(kind, tuple(payloads))
    for name in damaged:
        folder.whole(kind, name)


def _why(replies: Mapping[str, Reply], names: list[str]) -> str:
    return _together({name: str(replies[name].error) if name in replies else "nothing came" for name in names})


def _together(reasons: Mapping[str, str]) -> str:
    """Each reason once, after the sites that gave it."""
    by: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in by.items())
