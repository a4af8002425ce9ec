"""Whoever carries files alters, swaps, replays and drops them; whoever writes study.toml changes it (rows 1 and 3, by files)."""

from pathlib import Path

import pytest
from tests.adversary.kit import FIXED_WORDS, EvilCarrier, RogueServer, new_subjects
from tests.federation import NAMES

from intarsia.carriers.files import carrier, fit_files
from intarsia.errors import FederationError, IntarsiaError
from intarsia.server.study import protocol
from intarsia.server.study.folder import StudyFolder
from intarsia.site.identity import Identity
from intarsia.site.site import Site


@pytest.fixture
def rogue(tmp_path: Path) -> RogueServer:
    return RogueServer.after_fit(tmp_path / "study")


@pytest.fixture
def evil(tmp_path: Path) -> EvilCarrier:
    return EvilCarrier(tmp_path / "mail")


def signed(rogue: RogueServer, kind: str) -> dict[str, tuple[bytes, bytes]]:
    found = rogue.kept(kind)
    return {name: (raw, rogue.sites[name].signature(rogue.study, raw)) for name, raw in found.items()}


@pytest.mark.parametrize(
    "trick", ["no signature", "altered", "another's signature", "a stranger's key", "swapped names", "other run"]
)
def test_a_sketch_file_that_is_not_the_sites_own_is_refused(
    rogue: RogueServer, evil: EvilCarrier, tmp_path: Path, trick: str
) -> None:
    sketch = signed(rogue, "sketch")
    raw, signature = sketch["lab"]
    plan = rogue.study
    if trick == "no signature":
        signature = None
    elif trick == "altered":
        raw = raw[:200] + bytes([raw[200] ^ 1]) + raw[201:]
    elif trick == "another's signature":
        signature = sketch["mri"][1]
    elif trick == "a stranger's key":
        signature = Site("lab", identity=Identity.new("lab")).signature(plan, raw)
    elif trick == "swapped names":
        signature = rogue.sites["mri"].signature(plan, raw)
    elif trick == "other run":
        plan = plan.again()
    path = evil.take("lab.sketch", raw, signature)
    with pytest.raises(IntarsiaError):
        fit_files([path], plan, tmp_path / "honest")
    assert StudyFolder.open(tmp_path / "honest").present("sketch") == ()


def test_a_dropped_file_stops_the_study_by_name(rogue: RogueServer, evil: EvilCarrier, tmp_path: Path) -> None:
    sketch = signed(rogue, "sketch")
    paths = [evil.take(f"{name}.sketch", *sketch[name]) for name in ("clinic", "mri")]
    with pytest.raises(FederationError, match="lacks the sketch of lab"):
        fit_files(paths, rogue.study, tmp_path / "honest")


def test_two_files_of_one_site_are_refused(rogue: RogueServer, evil: EvilCarrier, tmp_path: Path) -> None:
    sketch = signed(rogue, "sketch")
    paths = [evil.take(f"{k}.sketch", *sketch["lab"]) for k in range(2)]
    with pytest.raises(FederationError, match="Two of the files given come from site 'lab'"):
        fit_files(paths, rogue.study, tmp_path / "honest")


def test_coefficients_of_another_site_or_run_are_refused(rogue: RogueServer) -> None:
    found = rogue.kept("coefficients")
    assert rogue.ask("mri", "receive", {"coefficients": found["lab"]}).words in FIXED_WORDS
    assert rogue.ask("mri", "receive", {"coefficients": found["mri"][:-40]}).words in FIXED_WORDS
    other = found["mri"].replace(rogue.study.hash.encode(), rogue.study.again().hash.encode())
    assert rogue.ask("mri", "receive", {"coefficients": other}).words in FIXED_WORDS


@pytest.mark.parametrize("trick", ["other numbers", "a site less", "a site more", "another run", "another site"])
def test_coefficients_whose_digests_do_not_fit_are_refused(rogue: RogueServer, trick: str) -> None:
    """Whole messages, well made but for one thing: they are not this site's share of one fit of all sites in this run."""
    from dataclasses import replace

    from intarsia.wire.coefficients import bind

    honest = rogue.coefficients()
    mri = honest["mri"]
    parts = dict(mri.fit_parts)
    altered = {
        "other numbers": replace(mri, mean=mri.mean + 0.1),
        "a site less": replace(mri, fit_parts={name: parts[name] for name in ("mri", "clinic")}),
        "a site more": replace(mri, fit_parts=parts | {"nobody": parts["lab"]}),
        "another run": bind({n: replace(c, study_hash=rogue.study.again().hash) for n, c in honest.items()})["mri"],
        "another site": bind(honest | {"mri": replace(mri, site="lab")})["mri"],
    }[trick]
    assert rogue.ask("mri", "receive", {"coefficients": altered.to_bytes()}).words in FIXED_WORDS
    assert not rogue.ask("mri", "receive", {"coefficients": mri.to_bytes()}).refused


def test_a_second_fit_does_not_replace_a_sites_model(rogue: RogueServer) -> None:
    """A fit of other terms under the same hash, delivered afterwards, once replaced the model, and two fits were mixed."""
    rogue.deliver()
    held = rogue.sites["mri"].model(rogue.study).coefficients.fit_digest
    second = rogue.forged({name: {"interval": 0.9} for name in NAMES})
    assert all(told.words in FIXED_WORDS for told in rogue.deliver(second).values())
    assert rogue.sites["mri"].model(rogue.study).coefficients.fit_digest == held


@pytest.mark.parametrize("trick", ["forged", "of another fit", "another site's"])
def test_a_false_receipt_does_not_complete_the_study(rogue: RogueServer, evil: EvilCarrier, trick: str) -> None:
    from dataclasses import replace

    from intarsia.wire.signed import Receipt

    receipts = {name: Receipt.from_bytes(told.message) for name, told in rogue.deliver().items()}
    false = receipts["mri"]
    if trick == "forged":
        stranger = Identity.new("mri")
        false = replace(false, signature=stranger.sign(false.body()))
    elif trick == "of another fit":
        changed = replace(false, fit_digest="ab" * 32)
        false = replace(changed, signature=rogue.sites["mri"].identity.sign(changed.body()))
    else:
        false = replace(receipts["lab"], site="mri")
    paths = [evil.take(f"{name}.receipt", receipts[name].to_bytes()) for name in ("clinic", "lab")]
    paths.append(evil.take("mri.receipt", false.to_bytes()))
    with pytest.raises(FederationError, match="mri"):
        protocol.deliver(rogue.folder, carrier(rogue.study, paths))
    assert rogue.folder.missing("receipt") == ("mri",)
    protocol.deliver(rogue.folder, carrier(rogue.study, [evil.take("mri.receipt", receipts["mri"].to_bytes())]))
    assert rogue.folder.missing("receipt") == ()


def test_parts_on_their_way_cannot_be_swapped_or_replayed(rogue: RogueServer, evil: EvilCarrier) -> None:
    rogue.deliver()
    new = new_subjects()
    june = {name: rogue.ask(name, "predict", {"request": b"june"}, new[name]).message for name in NAMES}
    july = {name: rogue.ask(name, "predict", {"request": b"july"}, new[name]).message for name in NAMES}

    def paths(parts: dict[str, bytes], sign: dict[str, bytes]) -> list[Path]:
        return [evil.take(f"{n}.part", parts[n], rogue.sites[n].signature(rogue.study, sign[n])) for n in NAMES]

    mixed = june | {"mri": july["mri"]}
    with pytest.raises(FederationError, match="not the file that site 'mri' signed"):
        protocol.collect_parts(rogue.folder, "june", carrier(rogue.study, paths(mixed, june)))
    with pytest.raises(FederationError, match="answered another prediction"):
        protocol.collect_parts(rogue.folder, "june", carrier(rogue.study, paths(mixed, mixed)))
    sums = protocol.collect_parts(rogue.folder, "june", carrier(rogue.study, paths(june, june)))
    assert set(sums) == {"clinic", "lab"}
    payload = {"request": b"july", "sum": sums["clinic"].to_bytes()}
    assert rogue.ask("clinic", "finish", payload, new["clinic"]).words in FIXED_WORDS
