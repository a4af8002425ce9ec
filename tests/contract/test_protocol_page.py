"""docs/protocol.md is whole: every message that crosses a wall stands on it, with every field and with who checks it."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import intarsia.wire
from intarsia.site.answer import REFUSALS
from intarsia.wire.alignment import AlignmentReport, Cohort
from intarsia.wire.announcement import Announcement
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.cohort_groups import GroupedSketch, UnionCohort
from intarsia.wire.gram_messages import GramBlock, GramDeal, GramProduct
from intarsia.wire.leave import Leave
from intarsia.wire.letters import Answers, Letter
from intarsia.wire.messages import Sketch
from intarsia.wire.prediction import PredictionPart, PredictionSum
from intarsia.wire.screening import KeptList, Look, LookShares, ScreenBlock
from intarsia.wire.signed import Confirmation, FileSignature, KeyOffer, Receipt, ShareBundle, Signed
from intarsia.wire.steps import STEPS

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
MESSAGES = {
    "offer": KeyOffer, "share": ShareBundle, "confirmation": Confirmation, "announcement": Announcement,
    "alignment": AlignmentReport,
    "cohort": Cohort, "union": UnionCohort, "groups": GroupedSketch,
    "sketch": Sketch, "coefficients": Coefficients, "receipt": Receipt, "part": PredictionPart,
    "sum": PredictionSum, "file": FileSignature, "gram": GramBlock, "deal": GramDeal, "product": GramProduct, "leave": Leave,
    "screen": ScreenBlock, "kept": KeptList, "look": Look, "sums": LookShares, "letter": Letter, "answers": Answers,
}  # fmt: skip


def sections() -> dict[str, str]:
    """The text under each `### `kind`` heading."""
    found = re.split(r"^### `([\w-]+)`", PAGE, flags=re.M)
    return {kind: re.split(r"^##", text, flags=re.M)[0] for kind, text in zip(found[1::2], found[2::2], strict=True)}


def test_every_type_of_message_of_the_wire_is_known_here() -> None:
    """Whoever adds a class that can be sent adds it to the page."""
    found = set()
    for module in pkgutil.iter_modules(intarsia.wire.__path__):
        for _, kind in inspect.getmembers(importlib.import_module(f"intarsia.wire.{module.name}"), inspect.isclass):
            if is_dataclass(kind) and hasattr(kind, "to_bytes") and kind is not Signed:  # what the signed ones have in common
                found.add(kind)
    assert found == set(MESSAGES.values())


def test_every_message_stands_on_the_page_with_all_its_fields() -> None:
    assert set(sections()) == set(MESSAGES)
    for kind, text in sections().items():
        listed = set(re.findall(r"`(\w+)`", text.split("Fields:")[1].split("\n\n")[0]))
        assert listed == {field.name for field in fields(MESSAGES[kind])}, kind


def test_every_message_is_bound_to_the_study_and_says_who_checks_it() -> None:
    for kind, text in sections().items():
        assert "`study_hash`" in text, kind
        assert re.search(r"\b[Bb]ound to\b", text), kind
        assert re.search(r"\bchecks\b|uses no key before", text), kind
        assert re.search(r"[Ss]igned|MAC|certificate", text), kind


def test_steps_and_refusals_are_the_ones_on_the_page() -> None:
    steps = PAGE.split("The steps are")[1].split(";")[0]
    assert tuple(re.findall(r"`(\w+)`", steps)) == STEPS
    assert "one of four fixed sentences" in PAGE
    assert len(REFUSALS) + 1 == 4
