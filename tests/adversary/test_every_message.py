"""Every type of message of docs/protocol.md, sent wrongly: replayed from another run and another study, cut, by the wrong party,
to the wrong party, out of turn, twice with other content. The honest study goes on, and ends as if nothing had happened.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adversary.gauntlet import Gauntlet, Recording, damaged
from tests.adversary.kit import RogueServer, new_subjects
from tests.contract.test_protocol_page import MESSAGES
from tests.federation import NAMES, frames, gram_sites, gram_study, screened_study, sites, study

from intarsia.errors import IntarsiaError
from intarsia.server.study import departure, protocol
from intarsia.server.study.protocol import Reply
from intarsia.site.site import Site
from intarsia.wire.coefficients import Coefficients, bind
from intarsia.wire.study import Study

AGREED = {"offer", "share", "confirmation", "announcement", "alignment"}
OF_A_KIND = {
    "intersect": AGREED | {"cohort", "sketch"}, "union": AGREED | {"union", "groups"},
    "gram": AGREED | {"cohort", "gram", "deal", "product"},
    "screened": AGREED | {"cohort", "screen", "kept", "gram", "deal", "product", "look", "sums"},
    "screened by a sketch": AGREED | {"cohort", "screen", "kept", "gram", "deal"},  # products: as of "screened"
}  # fmt: skip
STAY = ("clinic", "lab")
REPLAYED = {"another run", "another study"}


def parties(where: Path, mode: str) -> tuple[list[Site], Study]:
    screened, shares = mode.startswith("screened"), mode == "gram" or mode.startswith("screened")
    tables = frames(240 if shares else 400)
    if mode == "union":
        tables["lab"].loc[:149, "hdl"] = np.nan
    quick: dict[str, Any] = {"policy": {"attack_seconds": 0.2}}
    if screened:
        quick["policy"] |= {"overrides": [{"rule": "membership", "reason": "a test of the protocol, with few people"}]}
    found = gram_sites(tables, **quick) if shares else sites(tables, identities=True, **quick)
    for site in found:
        site.folder = where / site.name
        site.folder.mkdir(parents=True)
    if screened:
        how = {"again": 1} if mode == "screened" else {"m": 16}
        return found, screened_study(found, **how, alignment={"mode": "intersect"})
    if mode == "gram":
        return found, gram_study(found, alignment={"mode": "intersect"})
    return found, study(found, m=20 if mode == "union" else 24, alignment={"mode": mode})


def earlier(found: list[Site], plan: Study, where: Path) -> dict[str, Recording]:
    """The same sites did another run of the study and another study before."""
    recordings = {
        "another run": Recording(found, plan.again(), where / "again"),
        "another study": Recording(found, replace(plan.again(), id="kidney"), where / "kidney"),
    }
    for one in recordings.values():
        protocol.collect(one.folder, one.carry)
    return recordings


@pytest.mark.parametrize("mode", sorted(OF_A_KIND))
def test_nothing_wrong_is_taken_and_the_study_goes_on(tmp_path: Path, mode: str) -> None:
    found, plan = parties(tmp_path, mode)
    liar = Gauntlet(found, plan, tmp_path / "server", earlier(found, plan, tmp_path))
    protocol.collect(liar.folder, liar.carry)
    assert not liar.slipped, "\n".join(map(str, liar.slipped))
    assert set(liar.tried) - {"block"} == OF_A_KIND[mode]
    for kind in OF_A_KIND[mode]:
        assert liar.tried[kind] >= REPLAYED | {"cut", "one bit"}, kind
    assert liar.folder.collected


def fitted(found: RogueServer, plan: Study, where: Path, kind: type[Gauntlet], **more: Any) -> Gauntlet:
    """Another study of the same sites, up to a fit that the server has of somewhere."""
    made = kind(list(found.sites.values()), plan, where, **more)
    made.new = new_subjects()
    if not made.folder.collected:
        protocol.collect(made.folder, made.carry)
        keep(made, NAMES, found.coefficients())
    return made


def keep(made: Gauntlet, names: tuple[str, ...], fit: dict[str, Coefficients]) -> None:
    cut = {name: replace(message, study_hash=made.study.hash, fit_parts={}) for name, message in fit.items()}
    for name, message in bind({name: cut[name] for name in names}).items():
        made.folder.write(made.folder.file("coefficients", name), message.to_bytes())
    made.folder.write(made.folder.path / "fit.json", b"{}")


RESULTS = {"coefficients", "receipt", "part", "sum", "leave"}


def test_nothing_wrong_is_taken_after_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = RogueServer.after_fit(tmp_path)
    for site in honest.sites.values():
        site.predict_rules = replace(site.predict_rules, max_bits=1000)  # three runs predict the same people
    small = replace(honest.study, sketch=replace(honest.study.sketch, m=20))
    before: dict[str, Gauntlet] = {}
    for what, plan in (("another run", small.again()), ("another study", replace(small.again(), id="kidney"))):
        before[what] = fitted(honest, plan, tmp_path / what, Recording)
        protocol.deliver(before[what].folder, before[what].carry)
        protocol.predict(before[what].folder, "june", before[what].carry)
        for name in STAY:
            notice = honest.sites["mri"].leave(plan)
            before[what].payloads["receive", name, b"|"] |= {"left-mri": notice}
    liar = fitted(honest, honest.study, tmp_path / "server", Gauntlet, earlier=before)
    protocol.deliver(liar.folder, liar.carry)
    spoil_parts(liar)
    protocol.predict(liar.folder, "june", liar.carry)
    notice = honest.sites["mri"].leave(liar.study)
    for trick, bad in [
        *damaged(notice),
        *((what, one.payloads["receive", "lab", b"|"]["left-mri"]) for what, one in before.items()),
    ]:
        liar.tried.setdefault("leave", set()).add(trick)
        with pytest.raises(IntarsiaError):
            departure.leave(liar.folder, bad)
    held = honest.coefficients()
    monkeypatch.setattr(departure, "fit", lambda folder, **_: keep(liar, STAY, held))
    monkeypatch.setattr(departure, "changes", lambda folder: None)
    departure.leave(liar.folder, notice)
    protocol.deliver(liar.folder, liar.carry)
    assert not liar.slipped, "\n".join(map(str, liar.slipped))
    for kind in RESULTS:
        assert liar.tried[kind] >= REPLAYED | {"cut", "one bit"}, kind


def spoil_parts(liar: Gauntlet) -> None:
    """Parts on their way to the server: altered, of another site, run and study. None is kept."""
    asked = {name: {"request": b"june"} for name in NAMES}
    good = {name: liar.ask(name, "predict", asked[name]).message or b"" for name in NAMES}
    for name, part in good.items():
        liar.answers[name].add(part)
    wrong = [*damaged(good["mri"]), ("another party's", good["lab"])]
    wrong += [(what, (one.folder.path / "predictions" / "june" / "mri.part").read_bytes()) for what, one in liar.earlier.items()]
    for trick, bad in wrong:
        replies = {name: Reply(raw) for name, raw in (good | {"mri": bad}).items()}
        with pytest.raises(IntarsiaError):
            protocol.collect_parts(liar.folder, "june", lambda *_, replies=replies: replies)  # type: ignore[misc]
        assert not (liar.folder.path / "predictions" / "june" / "mri.part").is_file()
        liar.tried.setdefault("part", set()).add(trick)


def test_every_type_of_message_is_tried() -> None:
    """A signature beside a file is tried in test_files.py, letters and their answers in test_screened_carriers.py."""
    assert set().union(*OF_A_KIND.values()) | RESULTS | {"file", "letter", "answers"} == set(MESSAGES)
