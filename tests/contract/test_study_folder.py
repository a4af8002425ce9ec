"""The server's folder: whoever is away, late, wrong, double or foreign is named; nothing collected is lost."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.federation import frames, sites, study

from intarsia.carriers.in_process import carrier
from intarsia.errors import FederationError, StudyError
from intarsia.server.study import protocol
from intarsia.server.study.folder import StudyFolder, dump, write_atomic
from intarsia.server.study.protocol import Reply
from intarsia.server.study.status import status
from intarsia.wire.announcement import Announcement
from intarsia.wire.coefficients import Coefficients, bind
from intarsia.wire.container import pack
from intarsia.wire.messages import Sketch
from intarsia.wire.prediction import PredictionPart
from intarsia.wire.signed import Receipt


@pytest.fixture(scope="module")
def sketches() -> dict[str, bytes]:
    s = study()
    return {site.name: site.sketch(s) for site in sites(frames())}


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder.create(tmp_path / "study", study())


def changed(raw: bytes, **what: object) -> bytes:
    return replace(Sketch.load(raw), **what).to_bytes()  # type: ignore[arg-type]


def with_nan(raw: bytes) -> bytes:
    """A sketch with a NaN, packed by hand: our own types refuse to make one."""
    sketch = Sketch.load(raw)
    good = sketch.to_bytes()
    value = sketch.X.astype("<f8").tobytes()[:8]
    at = good.index(value)
    body = good[:at] + np.array([np.nan]).tobytes() + good[at + 8 : -32]
    import hashlib

    return body + hashlib.sha256(body).digest()


def test_a_good_sketch_is_taken_once(folder: StudyFolder, sketches: dict[str, bytes]) -> None:
    assert folder.accept("sketch", "clinic", sketches["clinic"]) is True
    assert folder.accept("sketch", "clinic", sketches["clinic"]) is False
    assert folder.present("sketch") == ("clinic",)


@pytest.mark.parametrize(
    ("sender", "spoil", "words"),
    [
        ("mri", lambda s: with_nan(s["mri"]), r"'mri' is refused.*not finite"),
        ("mri", lambda s: s["mri"][:-100], r"'mri' is refused"),
        ("mri", lambda s: s["mri"][:300] + b"\x00" + s["mri"][301:], r"'mri' is refused.*damaged"),
        ("mri", lambda s: b"", r"'mri' is refused"),
        ("mri", lambda s: pack("cohort", {}, {}), r"'mri' is refused.*'sketch' message was expected"),
        ("mri", lambda s: changed(s["mri"], study_hash="0" * 64), r"'mri' was made for another study"),
        ("mri", lambda s: s["lab"], r"'mri' sent a sketch in the name of 'lab'"),
        ("mri", lambda s: changed(s["mri"], X=np.ones((30, 6)), Y=np.ones((30, 0)), Z=None, m=30), r"'mri' has m 30"),
        ("mri", lambda s: changed(s["mri"], kind="gaussian"), r"'mri' has kind gaussian"),
        ("mri", lambda s: changed(s["mri"], order_mac="ab" * 32), r"'clinic' .* and 'mri' .* do not prove the same"),
        ("mri", lambda s: changed(s["mri"], order_mac=""), r"'mri' carries no proof"),
        ("mri", lambda s: changed(s["mri"], n=399), r"do not prove the same"),
        ("mri", lambda s: changed(s["mri"], key_fingerprint="0" * 32), r"'clinic' and 'mri' used different study keys"),
        (
            "mri",
            lambda s: changed(s["mri"], features=("weight", *(f"mri_{j}" for j in range(1, 6)))),
            r"'mri' sent 1 feature\(s\) that study.toml does not list for it, the first is 'weight'",
        ),
        ("rogue", lambda s: s["mri"], r"'rogue' is not on the roster"),
        ("clinic", lambda s: changed(s["clinic"], X=np.ones((60, 6))), r"'clinic' has sent its sketch already"),
    ],
)  # fmt: skip
def test_wrong_sketches_are_refused_by_name(
    folder: StudyFolder, sketches: dict[str, bytes], sender: str, spoil, words: str
) -> None:  # type: ignore[no-untyped-def]
    folder.accept("sketch", "clinic", sketches["clinic"])
    with pytest.raises(FederationError, match=words):
        folder.accept("sketch", sender, spoil(sketches))
    # What was there is there, byte for byte, and the good one of the same site is still welcome.
    assert folder.read("sketch", "clinic") == sketches["clinic"]
    assert folder.present("sketch") == ("clinic",)
    assert folder.accept("sketch", "mri", sketches["mri"]) is True
    events = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert [e["site"] for e in events if e["event"] == "refused"] == [sender]


def test_a_study_without_a_site_fails_closed(folder: StudyFolder, sketches: dict[str, bytes]) -> None:
    folder.accept("sketch", "clinic", sketches["clinic"])
    folder.accept("sketch", "lab", sketches["lab"])
    with pytest.raises(FederationError, match=r"lacks the sketch of mri \(present: clinic, lab\)"):
        folder.sketches()


def test_another_text_of_the_study_is_refused(folder: StudyFolder, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(dump(study(m=61)))
    with pytest.raises(StudyError, match="holds another study or run"):
        StudyFolder.create(folder.path, other)


def test_a_site_that_was_away_is_asked_again_and_nothing_else_is_repeated(tmp_path: Path) -> None:
    parties = sites(frames(), identities=True)
    s = study(parties)
    folder = StudyFolder.create(tmp_path / "study", s)
    all_sites = carrier(parties, s)
    asked: list[tuple[str, tuple[str, ...]]] = []

    def ask(step, payloads):  # type: ignore[no-untyped-def]
        asked.append((step, tuple(payloads)))
        here = {n: p for n, p in payloads.items() if not (n == "lab" and step == "sketch" and away)}
        return all_sites(step, here)

    away = True
    with pytest.raises(FederationError, match=r"lacks the sketch of lab \(present: clinic, mri\)"):
        protocol.collect(folder, ask)
    kept = folder.read("sketch", "mri")
    away = False
    asked.clear()
    protocol.collect(folder, ask)
    assert asked == [("sketch", ("lab",))]
    assert folder.read("sketch", "mri") == kept
    steps = {row["step"]: row["done"] for row in status(folder)}
    assert steps == {
        "offer": True, "share": True, "confirmation": True, "announcement": True, "alignment": True, "sketch": True,
        "fit": False, "deliver": False,
    }  # fmt: skip


def test_a_site_that_declines_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    parties = sites(frames())
    s = study()
    folder = StudyFolder.create(tmp_path / "study", s)
    inner = carrier(parties, s)

    def ask(step, payloads):  # type: ignore[no-untyped-def]
        replies = dict(inner(step, payloads))
        if step == "sketch":
            replies["mri"] = Reply(error="PrivacyError: the site refused for a reason of its own.")
        return replies

    with pytest.raises(FederationError, match=r"No sketch from mri. mri: PrivacyError"):
        protocol.collect(folder, ask)
    assert folder.present("sketch") == ("clinic", "lab")
    events = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert [(e["event"], e["site"]) for e in events if "why" in e] == [("declined", "mri")]  # said once


def test_a_tampered_relay_is_noticed_by_the_sites(tmp_path: Path) -> None:
    """The server swaps one site's share for another run's: the sites name it and no key is made."""
    parties = sites(frames(), identities=True)
    s = study(parties)
    folder = StudyFolder.create(tmp_path / "study", s)
    inner = carrier(parties, s)
    before = s.again()
    old = parties[1].share(before, {site.name: site.offer(before) for site in parties})

    def ask(step, payloads):  # type: ignore[no-untyped-def]
        if step == "combine":
            payloads = {n: {**p, "mri": old} for n, p in payloads.items()}
        return inner(step, payloads)

    with pytest.raises(FederationError, match="share of site 'mri' belongs to another study, another run"):
        protocol.collect(folder, ask)
    assert not any(site.has_key(s) for site in parties)


def test_names_cannot_leave_the_folder(folder: StudyFolder, sketches: dict[str, bytes]) -> None:
    for sender in ("../clinic", "clinic/../../x", ""):
        with pytest.raises(FederationError, match="not on the roster"):
            folder.accept("sketch", sender, sketches["clinic"])
    assert sorted(p.name for p in folder.path.parent.iterdir()) == ["study"]


def test_receipts_are_of_this_fit_and_signed_by_their_site(tmp_path: Path) -> None:
    parties = sites(frames(40), identities=True)
    s, clinic = study(parties), parties[0].own_identity()
    folder = StudyFolder.create(tmp_path / "study", s)
    zero, none = np.zeros((1, 1)), np.zeros((0, 1))
    own = Coefficients(
        "clinic", s.hash, ("a",), ("y",), ("lab",), 0.95, mean=zero, sd=zero, lower=zero, upper=zero, pip=np.ones(1),
        selected=np.array([True]), by_response=np.array([[True]]), sigma2_mean=np.zeros(0), noise_covariance=np.zeros((0, 0)),
        local_fdr=zero, to_predict=zero, spread=np.zeros(0), covariate_to_predict=none,
        **{f"covariate_{what}": none for what in ("mean", "sd", "lower", "upper")},
    )  # fmt: skip
    own = bind({"clinic": own})["clinic"]
    receipt = Receipt("clinic", s.hash, own.fit_digest, 3, "ab" * 32)
    signed = replace(receipt, signature=clinic.sign(receipt.body()))
    with pytest.raises(FederationError, match="coefficients of another fit"):  # nothing has been delivered yet
        folder.accept("receipt", "clinic", signed.to_bytes())
    write_atomic(folder.file("coefficients", "clinic"), own.to_bytes())
    other = replace(receipt, fit_digest="0" * 64)
    for bad, words in (
        (replace(other, signature=clinic.sign(other.body())), "coefficients of another fit"),
        (receipt, "not signed with its key"),
        (replace(receipt, signature=parties[1].own_identity().sign(receipt.body())), "not signed with its key"),
        (replace(signed, ledger_entries=2), "not signed with its key"),
    ):
        with pytest.raises(FederationError, match=words):
            folder.accept("receipt", "clinic", bad.to_bytes())
    assert folder.present("receipt") == ()
    assert folder.accept("receipt", "clinic", signed.to_bytes()) is True


def test_a_list_longer_than_the_study_allows_is_refused_by_the_server_too(tmp_path: Path) -> None:
    s = study(alignment={"mode": "intersect", "max_subjects": 500})
    folder = StudyFolder.create(tmp_path / "study", s)
    with pytest.raises(FederationError, match="more subjects than"):
        folder.accept("announcement", "mri", Announcement("mri", s.hash, 501, 6).signed(bytes(32)).to_bytes())
    assert folder.accept("announcement", "mri", Announcement("mri", s.hash, 500, 6).signed(bytes(32)).to_bytes()) is True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request": "july"}, "'mri' answered another prediction"), ({"study_hash": "cd" * 32}, "'mri'.*hash"),
        ({"site": "lab"}, "'mri'.*'lab'"),
    ],
)  # fmt: skip
def test_a_part_of_another_prediction_study_or_site_is_refused_and_not_kept(
    folder: StudyFolder, change: dict[str, str], words: str
) -> None:
    digest, part = "ab" * 32, np.ones((2, 3, 1), dtype=np.uint64)
    good = PredictionPart("clinic", folder.study.hash, "june", digest, digest, 3, digest, {"lab": part})

    def ask(step: str, payloads: Mapping[str, object]) -> dict[str, Reply]:
        of = {name: replace(good, site=name) for name in payloads} | {"mri": replace(good, **{"site": "mri", **change})}
        return {name: Reply(message.to_bytes()) for name, message in of.items()}

    with pytest.raises(FederationError, match=words):
        protocol.collect_parts(folder, "june", ask)
    assert not (folder.path / "predictions" / "june" / "mri.part").exists()
