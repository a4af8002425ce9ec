"""A site, its folder and its ledger: what cannot leave twice, start again, or be booked for somebody else."""

import contextlib
import hashlib
import json
import shutil

import numpy as np
import pytest
from tests.federation import KEY, NAMES, fixed_identity, frames, sites, study

from intarsia.errors import PrivacyError
from intarsia.privacy.card import study_card
from intarsia.privacy.ledger import Ledger
from intarsia.site.run_store import RunStore
from intarsia.site.site import Site
from intarsia.site.site_ledger import open_ledger
from intarsia.wire.messages import Sketch
from intarsia.wire.signed import Receipt
from intarsia.wire.study import Study, new_run

N = 200


def data(seed=0, name=lambda i: f"p{i}"):
    rng = np.random.default_rng(seed)
    columns = {f"x{j}": rng.standard_normal(N) for j in range(4)}
    return columns | {"y": rng.standard_normal(N), "id": np.array([name(i) for i in range(N)])}


def plan(m=20, run="ab" * 16, **privacy):
    roster = [{"name": "clinic", "features": ["x*"], "responses": ["y"]}, {"name": "lab", "features": ["g"]}]
    return Study.from_dict({"id": "demo", "run": run, "sketch": {"m": m}, "privacy": privacy, "site": roster})


def clinic(folder, table):
    return Site("clinic", table, id="id", responses=["y"], key=KEY, folder=folder)


def test_a_sketch_that_never_left_is_made_anew_of_repaired_values(tmp_path, monkeypatch):
    """Killed between making and releasing, then the table changed: what leaves is what the ledger books."""
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "release", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            clinic(tmp_path, data()).sketch(plan())
    assert any(tmp_path.glob("studies/*/sketch.pending-*"))
    repaired = data()
    repaired["x0"][3] += 1.0
    sent = clinic(tmp_path, repaired).sketch(plan())
    assert open_ledger(tmp_path).entries()[-1].sketch == hashlib.sha256(sent).hexdigest()
    fresh = Sketch.load(clinic(None, repaired).sketch(plan()))
    np.testing.assert_array_equal(Sketch.load(sent).X, fresh.X)


def test_the_same_values_after_a_crash_give_the_same_bytes(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "release", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            clinic(tmp_path, data()).sketch(plan())
    pending = next(tmp_path.glob("studies/*/sketch.pending-*")).read_bytes()
    assert clinic(tmp_path, data()).sketch(plan()) == pending


def test_a_deleted_ledger_stops_the_next_study(tmp_path):
    clinic(tmp_path, data()).sketch(plan())
    shutil.rmtree(tmp_path / "ledger")
    with pytest.raises(PrivacyError, match="missing"):
        clinic(tmp_path, data()).sketch(plan(run=new_run()))
    (tmp_path / "ledger.head").unlink()
    with pytest.raises(PrivacyError, match="missing"):  # the card knows it too
        clinic(tmp_path, data()).sketch(plan(run=new_run()))


def test_a_receipt_alone_remembers_the_ledger(tmp_path):
    """Cards and anchor are gone with the ledger; the receipt of a delivered fit is still in the run folder."""
    clinic(tmp_path, data()).sketch(plan())
    entries, head = open_ledger(tmp_path).head
    run = next(tmp_path.glob("studies/*"))
    RunStore(run).put("receipt", Receipt("clinic", plan().hash, "ab" * 32, entries, head).to_bytes())
    for path in (*run.glob("card*"), *run.glob("sketch*"), tmp_path / "ledger.head"):
        path.unlink()
    shutil.rmtree(tmp_path / "ledger")
    with pytest.raises(PrivacyError, match="missing"):
        clinic(tmp_path, data()).sketch(plan(run=new_run()))
    clinic(tmp_path / "other", data()).sketch(plan(run=new_run()))
    shutil.copytree(tmp_path / "other" / "ledger", tmp_path / "ledger")
    with pytest.raises(PrivacyError, match="does not contain a state that was published"):
        clinic(tmp_path, data()).sketch(plan(run=new_run()))
    (run / "receipt").write_bytes(b"{}")
    with pytest.raises(PrivacyError, match="receipt is damaged"):
        open_ledger(tmp_path)


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_ledger_that_lost_lines_stops_the_next_study(tmp_path, how):
    """What is left is a valid chain; only the heads on the card and beside the ledger show that something is gone."""
    clinic(tmp_path, data()).sketch(plan())
    path = tmp_path / "ledger" / "ledger.jsonl"
    if how == "cut":
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    else:
        shutil.rmtree(tmp_path / "ledger")
        clinic(tmp_path / "other", data()).sketch(plan(run=new_run()))
        shutil.copytree(tmp_path / "other" / "ledger", tmp_path / "ledger")
    for _ in range(2):
        with pytest.raises(PrivacyError, match="does not contain a state that was published"):
            clinic(tmp_path, data()).sketch(plan(run=new_run()))
        (tmp_path / "ledger.head").unlink(missing_ok=True)  # the card knows it too


@pytest.mark.parametrize("file", ["card.json", "ledger.head"])
def test_a_head_that_the_disk_changed_is_not_held_against_the_ledger(tmp_path, file):
    """What is damaged is named, and not the ledger, which is whole: whatever bit it is."""
    site = clinic(tmp_path, data())
    site.identity = fixed_identity("clinic")
    site.sketch(plan())
    path = next(tmp_path.glob(f"**/{file}"))
    raw = path.read_bytes()
    begin = raw.index(b'"head"') - 40 if file == "card.json" else 0
    said = []
    for at in range(begin, begin + 80):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with contextlib.suppress(PrivacyError):
            open_ledger(tmp_path)
            continue
        with pytest.raises(PrivacyError) as error:
            open_ledger(tmp_path)
        said.append(str(error.value))
    assert len(said) > 20
    assert all(f"{path} is damaged" in text for text in said)
    path.write_bytes(raw)
    open_ledger(tmp_path)


def test_ids_written_otherwise_do_not_start_the_count_anew(tmp_path):
    clinic(tmp_path, data()).sketch(plan(m=30))
    with pytest.raises(PrivacyError, match=r"Σm/n = 0.300 \(30 rows from earlier runs\)"):
        clinic(tmp_path, data(name=lambda i: f" P{i:04d}")).sketch(plan(m=30, run=new_run()))


def test_a_study_file_cannot_switch_the_gate_off(tmp_path):
    table = data()
    table["x0"] = np.r_[np.ones(3), np.zeros(N - 3)]
    loose = plan(m=60, max_ratio=1.0, min_level=0, self_attack=False)
    with pytest.raises(PrivacyError, match=r"(?s)ratio: .*rare-level: x0"):
        clinic(tmp_path, table).sketch(loose)
    assert open_ledger(tmp_path).entries()[-1].note == "rare-level, ratio"


def test_spent_privacy_is_counted_and_capped(tmp_path):
    private = {
        "epsilon": 6.0, "delta": 1e-6, "row_bound": {"clinic": 3.0, "lab": 1.0}, "centres": {"clinic": {"*": 0.0}},
        "scales": {"clinic": {"*": 1.0}},
    }  # fmt: skip

    def private_plan(run):
        content = plan(run=run).to_dict() | {"privacy": private, "sketch": {"m": 20, "kind": "gaussian"}}
        return Study.from_dict(content)

    clinic(tmp_path, data()).sketch(private_plan("ab" * 16))
    with pytest.raises(PrivacyError, match=r"Σε = 12 \(6 from earlier runs\)"):
        clinic(tmp_path, data()).sketch(private_plan("cd" * 16))


def test_the_sites_cards_and_the_servers_card_agree(tmp_path):
    """With patterns for columns at every site, each card states the figure for all columns, and it is the server's."""
    parties = sites(frames(), key=KEY)
    for party in parties:
        party.folder = tmp_path / party.name
    asked = study()
    announced = {party.name: party.announce(asked) for party in parties}
    cards, n, total = [], 0, 0
    for party in parties:
        party.hear(asked, announced)
        sent = Sketch.load(party.sketch(asked))
        n, total = sent.n, total + len(sent.features) + len(sent.responses)
        cards.append(json.loads(next((tmp_path / party.name).rglob("card.json")).read_text())["card"])
    whole = study_card(asked, n=n, columns=total, key_fingerprint="0f" * 16, site_cards=cards)
    assert [card["columns"]["at_server"] for card in cards] == [total] * len(NAMES)
    for card in cards:
        assert card["attacks"] == whole["attacks"]
        assert card["information"] == whole["information"]
        assert card["ledger"]["entries"] > 0
