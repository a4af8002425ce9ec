"""The server's end of a screened study by files: letters to the sites, answers from them, until nothing is missing.

The protocol is the one of the other carriers. Here a request that has no answer yet is written into the site's letter, and the
command ends; given the answers, it goes on where it was.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.carriers.files import check_signature
from intarsia.errors import FederationError
from intarsia.server.study import protocol
from intarsia.server.study.fit import fit, settings_of
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.longer import go_on
from intarsia.server.study.protocol import Payload, Reply
from intarsia.wire.bounded import read_file
from intarsia.wire.letters import MOST_ENTRIES, Answers, Letter, Request
from intarsia.wire.study import Study

FOLDER = "letters"


class Letters:
    """A carrier that answers from what came, and notes what is to be asked."""

    together = True  # requests that do not wait for each other go into one letter

    def __init__(self, folder: StudyFolder):
        self.folder = folder
        self.asked: dict[str, list[Request]] = {name: [] for name in folder.names}

    def take(self, path: Path) -> None:
        """A file of answers, signed beside; what was asked and answered is kept."""
        raw = read_file(path)
        found = Answers.from_bytes(raw)
        self.folder.study.check_sender(found.site)
        if found.study_hash != self.folder.study.hash:
            raise FederationError(f"{path.name} answers letters of another study, run or text of study.toml. Refused.")
        check_signature(self.folder.study, found.site, raw, path)
        for key, message in found.messages.items():
            self.folder.write(self._file(found.site, key), message)
        for key, words in found.refusals.items():
            self.folder.write(self._file(found.site, key).with_suffix(".refused"), words.encode())

    def __call__(self, step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        replies = {}
        for name, payload in payloads.items():
            request = Request(step, {key: v.read_bytes() if isinstance(v, Path) else v for key, v in payload.items()})
            path = self._file(name, request.key)
            refused = path.with_suffix(".refused")
            if path.is_file():
                replies[name] = Reply(path.read_bytes())
            elif refused.is_file():
                replies[name] = Reply(error=refused.read_text(encoding="utf-8"))
                refused.unlink()  # the next letter asks again
            else:
                self.asked[name].append(request)
        return replies

    def write(self) -> list[Path]:
        """One letter for each site that is asked something; what does not fit into one goes into the next."""
        out = []
        for name, requests in self.asked.items():
            fits: list[Request] = []
            count = 0
            for one in requests:
                count += one.large
                if fits and count > MOST_ENTRIES:
                    break
                fits.append(one)
            path = self.folder.path / FOLDER / f"{name}.letter"
            path.unlink(missing_ok=True)
            if fits:
                self.folder.write(path, Letter(name, self.folder.study.hash, tuple(fits)).to_bytes())
                out.append(path)
        return out

    def _file(self, name: str, key: str) -> Path:
        return self.folder.path / FOLDER / "answered" / f"{name}-{key}"


def fit_by_letters(
    answers: Sequence[Path], study: Study | Path | None, out: Path, *, length: Mapping[str, int] | None = None, **how: Any
) -> dict[str, Any]:
    """Go as far as the answers allow: "letters" of the result are to be sent; without any the study is done.

    A fit that has not converged is not delivered where study.toml asks for one that has. `length` (draws, warmup) as of a fit.
    """
    folder = StudyFolder.open(out) if study is None else StudyFolder.create(out, study)
    with folder.locked():
        post = Letters(folder)
        for path in answers:
            post.take(path)
        summary = _as_far(post, lambda: protocol.collect(folder, post))
        if summary is None:
            go_on(folder, settings_of(folder.study), length or {})
            summary = fit(folder, **how)
            if summary["converged"] or folder.study.fit.until == "draws":
                waiting = _as_far(post, lambda: protocol.deliver(folder, post))
                summary = summary | (waiting or {"letters": []})
        if not any(post.asked.values()):
            shutil.rmtree(folder.path / FOLDER, ignore_errors=True)
        return summary


def _as_far(post: Letters, step: Callable[[], None]) -> dict[str, Any] | None:
    """Do a step of the server; what it lacks is asked for by letter, and None says that it lacks nothing."""
    try:
        step()
    except FederationError:
        if not any(post.asked.values()):
            raise
        steps = sorted({request.step for requests in post.asked.values() for request in requests})
        return {"letters": [str(path) for path in post.write()], "asked": steps}
    return None
