"""The networked end of a site while something is wrong with the site itself: fixed words cross to the server, whatever it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adversary.kit import FIXED_WORDS
from tests.federation import KEY, frames, study

from intarsia.carriers.flare.pieces import all_pieces, pack_payload
from intarsia.server.study.folder import dump
from intarsia.site.site_folder import SiteFolder

flare = pytest.importorskip("intarsia.carriers.flare.site_side")


def asked(**data: Any) -> dict[str, Any]:
    """What the engine hands back to the server for one task."""
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal

    task = DXO(DataKind.COLLECTION, data=data).to_shareable()
    return dict(from_shareable(flare.StudyExecutor().execute(flare.TASK, task, FLContext(), Signal())).data)


def key_for_everybody(folder: Path) -> None:
    (folder / "study.key").chmod(0o644)


def settings_that_cannot_be(folder: Path) -> None:
    with (folder / "site.toml").open("a", encoding="utf-8") as file:
        file.write("max_bits = -1\n")  # the last table is [predict]


def no_settings(folder: Path) -> None:
    (folder / "site.toml").write_text("CANARY = [", encoding="utf-8")


@pytest.mark.parametrize("spoil", [key_for_everybody, settings_that_cannot_be, no_settings])
def test_a_site_that_is_out_of_order_says_fixed_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    frames()["clinic"].to_csv(tmp_path / "CANARY.csv", index=False)
    folder = tmp_path / "clinic"
    made = SiteFolder.create(folder, "clinic", str(tmp_path / "CANARY.csv"), "id", ["alt", "ast"])
    plan = study()
    (folder / "accepted").mkdir()
    (folder / "accepted" / "liver.toml").write_text(dump(plan), encoding="utf-8")
    text = (folder / "site.toml").read_text(encoding="utf-8").replace("max_bits = 100\n", "")
    (folder / "site.toml").write_text(text.replace('# key = "study.key"', 'key = "study.key"'), encoding="utf-8")
    KEY.save(folder / "study.key")
    monkeypatch.setenv("INTARSIA_SITE", str(made.folder))
    step = {"call": "c", "op": "put", "step": "announce", "study_hash": plan.hash, "piece": next(all_pieces(pack_payload({})))}
    assert "error" not in asked(**step)  # a site in order answers
    spoil(folder)
    for data in (step, step | {"op": "get"}, step | {"piece": None}, {"call": 1}):
        told = asked(**data)
        assert set(told) == {"error"}
        assert told["error"] in FIXED_WORDS
