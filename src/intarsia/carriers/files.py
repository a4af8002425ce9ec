"""Studies by files: the carrier is whatever channel the institutions already use."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.errors import FederationError, MessageError
from intarsia.server.study.fit import fit
from intarsia.server.study.folder import StudyFolder
from intarsia.wire.messages import Sketch
from intarsia.wire.signed import FileSignature, verify
from intarsia.wire.study import Study


def fit_files(
    sketches: Sequence[Path],
    study: Study | Path | None,
    out: Path,
    *,
    workers: int | None = None,
    progress: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Take in sketch files and, when all sites' are there, fit. Files taken in before need not be given again."""
    folder = StudyFolder.open(out) if study is None else StudyFolder.create(out, study)
    for path in sketches:
        # The file stays with its owner: what is kept is a copy of what was checked.
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise MessageError(f"Cannot read {path}: {error.strerror}.") from None
        sender = Sketch.load(raw).site
        _check_signature(folder.study, sender, raw, Path(path))
        folder.accept("sketch", sender, raw)
    return fit(folder, workers=workers, progress=progress)


def _check_signature(study: Study, sender: str, raw: bytes, path: Path) -> None:
    """A file says nothing about who sent it: where study.toml pins a site's keys, its signature must come along."""
    if sender not in study.names or (key := study.site(sender).signing_key) is None:
        return
    beside = path.with_name(path.name + ".sig")
    if not beside.is_file():
        raise FederationError(
            f"The sketch of site {sender!r} comes without its signature {beside.name}; study.toml pins its keys. "
            "Ask the site for both files."
        )
    found = FileSignature.from_bytes(beside.read_bytes())
    fits = (found.site, found.study_hash, found.digest) == (sender, study.hash, hashlib.sha256(raw).hexdigest())
    if not fits or not verify(key, found.signature, found.body()):
        raise FederationError(
            f"{path.name} is not signed by site {sender!r}: changed on its way, or made by somebody else. Refused."
        )


def study_of_sketches(sketches: Sequence[Path], options: Mapping[str, Any]) -> Study:
    """The study that sketches made without a study file speak of; it carries their hash."""
    if not sketches:
        raise FederationError("Give the sketches of all sites, or the folder of a study that has begun.")
    read = [Sketch.load(path) for path in sketches]
    first = read[0]
    sites = [{"name": s.site, "features": list(s.features), "responses": list(s.responses)} for s in read]
    sketch = {"m": first.m, "kind": first.kind, "precision": first.precision}
    content = {"id": "files", "run": first.study_hash[:32], "sketch": sketch, "site": sites, "fit": dict(options)}
    return Study.from_dict({**content, "terms": first.study_hash})
