"""Studies by files: the carrier is whatever channel the institutions already use.

Files that sites sent answer the protocol's steps as a connected site would. Where study.toml pins a site's keys, a file counts
only with the site's signature beside it (FILE.sig): the name inside a file says nothing about who made it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.errors import FederationError, MessageError
from intarsia.server.study import protocol
from intarsia.server.study.fit import fit, settings_of
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.longer import go_on
from intarsia.server.study.protocol import Payload, Reply
from intarsia.wire.alignment import AlignmentReport
from intarsia.wire.bounded import read_file
from intarsia.wire.cohort_groups import GroupedSketch
from intarsia.wire.gram_messages import BLOCK, GramBlock, GramDeal, GramProduct
from intarsia.wire.messages import Sketch
from intarsia.wire.prediction import PredictionPart
from intarsia.wire.signed import FileSignature, Receipt, verify, what_it_is
from intarsia.wire.study import Study

# Who a file of each step says it is from.
_SENDER: dict[str, Callable[[bytes], str]] = {
    "align": lambda raw: AlignmentReport.from_bytes(raw).site,
    "sketch": lambda raw: Sketch.load(raw).site,
    "union": lambda raw: GroupedSketch.load(raw).site,
    "gram": lambda raw: GramBlock.from_bytes(raw).site,
    "deal": lambda raw: GramDeal.from_bytes(raw).site,
    "multiply": lambda raw: GramProduct.from_bytes(raw).site,
    "receive": lambda raw: Receipt.from_bytes(raw).site,
    "predict": lambda raw: PredictionPart.from_bytes(raw).site,
}

LARGEST_SIGNATURE_BYTES = 2**20
# What the files of a step are called, where not as the step.
_WHAT = {"align": "alignment", "deal": "dealt shares", "multiply": "products", "receive": "receipt", "predict": "part"}

# Messages that go block by block.
_NUMBERED: dict[str, type[GramDeal] | type[GramProduct]] = {"deal": GramDeal, "multiply": GramProduct}


def carrier(study: Study, paths: Sequence[Path]) -> protocol.Ask:
    """Answer the server's next step from the files given; a site without a file is away."""

    def ask(step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        replies: dict[str, Reply] = {}
        for path in paths:
            # The file stays with its owner: what is kept is a copy of what was checked.
            raw = read_file(path)
            try:
                sender = _SENDER[_kind(study) if step == "sketch" else step](raw)
            except MessageError as error:
                what = what_it_is(raw)
                why = f", but {what}" if what else f": {error}"
                raise MessageError(f"{path.name} is not the {_WHAT.get(step, step)} of a site{why}") from None
            study.check_sender(sender)
            if step in _NUMBERED:
                wanted = payloads.get(sender, {}).get(BLOCK, b"")
                if str(_NUMBERED[step].from_bytes(raw).block).encode() != wanted:
                    continue
            if sender in replies:
                raise FederationError(f"Two of the files given come from site {sender!r}; give one file per site.")
            if step != "receive" and step not in _NUMBERED:  # these are signed, or committed to, inside
                check_signature(study, sender, raw, path)
            replies[sender] = Reply(raw)
        return {name: reply for name, reply in replies.items() if name in payloads}

    return ask


def _kind(study: Study) -> str:
    """What the sites of this study send as their sketch: one, one per group of subjects, or their block of the Gram matrix."""
    if study.sketch.gram:
        return "gram"
    return "union" if study.alignment.mode == "union" else "sketch"


def fit_files(
    sketches: Sequence[Path],
    study: Study | Path | None,
    out: Path,
    *,
    workers: int | None = None,
    backend: str | None = None,
    progress: Callable[..., Any] | None = None,
    length: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Take in sketch files and, when all sites' are there, fit. Files taken in before need not be given again.

    `length` (draws, warmup) takes the place of study.toml's; `backend` is numpy, or jax for an accelerator.

    Of a Gram study: the sites' own blocks, their products and, where the server is a holder, what they dealt to it.
    """
    folder = StudyFolder.open(out) if study is None else StudyFolder.create(out, study)
    with folder.locked():
        return _taken_in_and_fitted(folder, sketches, length or {}, workers=workers, backend=backend, progress=progress)


def _taken_in_and_fitted(folder: StudyFolder, sketches: Sequence[Path], length: Mapping[str, int], **how: Any) -> dict[str, Any]:
    numbered = {step: [path for path in sketches if folder.study.sketch.gram and _is_a(step, path)] for step in _NUMBERED}
    ask = carrier(folder.study, [path for path in sketches if not any(path in paths for paths in numbered.values())])
    for name, reply in ask("sketch", {name: {} for name in folder.present("sketch")}).items():
        assert reply.message is not None
        folder.accept("sketch", name, reply.message)  # the same again, or refused: a site's first sketch is its only one
    protocol.collect_sketches(folder, ask)
    if not folder.collected:
        protocol.collect_shares(folder, lambda step, payloads: carrier(folder.study, numbered[step])(step, payloads))
    go_on(folder, settings_of(folder.study), length)
    return fit(folder, **how)


def _is_a(step: str, path: Path) -> bool:
    try:
        return bool(_NUMBERED[step].from_bytes(read_file(path)).site)
    except MessageError:
        return False


def check_signature(study: Study, sender: str, raw: bytes, path: Path) -> None:
    """A file says nothing about who sent it: where study.toml pins a site's keys, its signature must come along."""
    key = study.site(sender).signing_key
    if key is None:
        return
    beside = path.with_name(path.name + ".sig")
    if not beside.is_file():
        raise FederationError(
            f"{path.name} of site {sender!r} comes without its signature {beside.name}; study.toml pins its keys. "
            "Ask the site for both files."
        )
    found = FileSignature.from_bytes(read_file(beside, LARGEST_SIGNATURE_BYTES))
    signed = verify(key, found.signature, found.body())
    if signed and found.study_hash != study.hash:
        raise FederationError(
            f"{path.name} of site {sender!r} was made for another study, run or text of study.toml (hash "
            f"{found.study_hash[:12]}…; this one has {study.hash[:12]}…). Use the study.toml that the sites accepted, unchanged."
        )
    if signed and found.digest != hashlib.sha256(raw).hexdigest():
        raise FederationError(f"{path.name} is not the file that site {sender!r} signed: it was changed or damaged on its way.")
    if found.site != sender and found.site in study.names:
        raise FederationError(
            f"{path.name} says it is from site {sender!r}, and {beside.name} is a signature of site {found.site!r}: two sites' "
            "files were mixed up. Put each file beside its own signature. Refused."
        )
    if not signed or found.site != sender:
        raise FederationError(
            f"{path.name} is not signed by site {sender!r} with the key that study.toml pins: made by somebody else, or "
            f"{beside.name} was damaged on its way. Refused; ask the site for both files again."
        )
