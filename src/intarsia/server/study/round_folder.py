"""One round of a screened study at the server: a folder below the study's, with the messages of a Gram study of a few columns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.protocol import Ask, Payload, Reply
from intarsia.server.study.screened import round_path
from intarsia.wire.announcement import Announcement
from intarsia.wire.screening import ROUND


class RoundFolder(StudyFolder):
    """What arrives in one round; its events stand in the study's own log."""

    above: StudyFolder

    def __init__(self, above: StudyFolder, at: int):
        super().__init__(round_path(above, at), above.study)
        self.above, self.round = above, at

    @property
    def left(self) -> tuple[str, ...]:
        return self.above.left

    def announced(self, name: str) -> Announcement | None:
        return self.above.announced(name)

    def note(self, event: str, **what: Any) -> None:
        self.above.note(event, round=self.round, **what)

    def file(self, kind: str, name: str) -> Path:
        return self.path / kind / f"{name}.{kind}"


def in_round(ask: Ask, at: int) -> Ask:
    """The same carrier, every request with the number of the round."""

    def asked(step: str, payloads: Mapping[str, Payload]) -> Mapping[str, Reply]:
        return ask(step, {name: {**payload, ROUND: str(at).encode()} for name, payload in payloads.items()})

    asked.together = getattr(ask, "together", False)  # type: ignore[attr-defined]
    return asked
