"""What a disk or a crash damaged is found when it is read, said in words that blame nobody else, and the advice in them works."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from tests.federation import KEY, NAMES, RESPONSES, fingerprints, frames, sites, study

from intarsia.cli import main
from intarsia.errors import FederationError, KeyFileError
from intarsia.files import DamagedFileError
from intarsia.privacy.ledger import Ledger
from intarsia.server.study.folder import StudyFolder, dump
from intarsia.site.identity import Identity
from intarsia.site.run_store import RunStore
from intarsia.wire.container import MAGIC, pack

LENGTH = {"draws": 20, "warmup": 20, "chains": 2, "thin": 1, "seed": 7}


def flip(path: Path, at: int | None = None) -> None:
    """One bit of a file becomes another, as a disk may have it."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 if at is None else at] ^= 4
    path.write_bytes(raw)


def result(folder: Path) -> dict[str, bytes]:
    """Everything that follows from the draws, to the bit."""
    found = {path.name: path.read_bytes() for path in (folder / "coefficients").iterdir()}
    with xr.open_datatree(folder / "posterior.nc", engine="h5netcdf") as tree:
        for group in tree.subtree:
            found |= {f"{group.path}/{k}": np.ascontiguousarray(v.values).tobytes() for k, v in group.dataset.data_vars.items()}
    return found


pytestmark = pytest.mark.filterwarnings("ignore::intarsia.server.assess.convergence.NotConvergedWarning")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study by files, fitted; beside it the files that the sites sent."""
    where = tmp_path_factory.mktemp("fitted")
    plan = study(fit=LENGTH)
    (where / "study.toml").write_text(dump(plan))
    for site in sites(frames(400)):
        (where / f"{site.name}.sketch").write_bytes(site.sketch(plan))
    assert main(fit_command(where)) == 0
    return where


def fit_command(where: Path) -> list[str]:
    given = [str(where / f"{name}.sketch") for name in NAMES]
    return ["fit", *given, "--study", str(where / "study.toml"), "-o", str(where / "server"), "--workers", "1"]


@pytest.fixture
def here(fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    shutil.copytree(fitted, tmp_path / "study")
    capsys.readouterr()
    return tmp_path / "study"


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(list(command)) == DamagedFileError.exit_code
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told


def test_a_destroyed_posterior_is_no_fit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fit, the report and a check say so; what they advise gives the same draws again."""
    server, before = here / "server", result(here / "server")
    flip(server / "posterior.nc")
    report = ["report", str(server), "-o", str(here / "report.html")]
    for command in (["fit", "-o", str(server)], report, ["refit", str(server), "--seed", "3", "-o", str(here / "again.nc")]):
        told = refused(capsys, *command)
        assert f"{server / 'posterior.nc'} is damaged" in told
        assert "Delete it and give the command that fitted the study again" in told
    (server / "posterior.nc").unlink()
    assert main(["fit", "-o", str(server)]) == 0
    assert result(server) == before
    assert main(report) == 0


@pytest.mark.parametrize("cut", [0, 1, 40, -2])
def test_a_cut_summary_is_made_again(cut: int, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, before = here / "server" / "fit.json", result(here / "server")
    summary = json.loads(file.read_text())
    file.write_bytes(file.read_bytes()[:cut])
    assert "Delete it and give the command that fitted the study again" in refused(capsys, "fit", "-o", str(here / "server"))
    file.unlink()
    assert main(["fit", "-o", str(here / "server")]) == 0
    assert json.loads(file.read_text()) == summary
    assert result(here / "server") == before


def test_the_log_may_end_in_the_middle_of_a_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = here / "server" / "events.jsonl"
    with log.open("ab") as file:
        file.write(b'{"time": "2026-')
    assert main(["study", "status", str(here / "server")]) == 0
    StudyFolder.open(here / "server").note("afterwards")
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()][-1] == "afterwards"


def test_own_settings_that_were_cut_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "-o", str(here / "server"), "--draws", "30"]) == 0
    file = here / "server" / "own_settings.json"
    file.write_bytes(file.read_bytes()[:7])
    assert "say again what the fit is to be made with" in refused(capsys, "fit", "-o", str(here / "server"), "--draws", "40")
    file.unlink()
    assert main(["fit", "-o", str(here / "server"), "--draws", "40"]) == 0


@pytest.mark.parametrize("where", ["content", "end", "cut", "gone"])
def test_a_kept_sketch_that_the_disk_changed_is_given_again(where: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The site that sent it is not to blame, and what it sent stays the only sketch that is taken."""
    server, before = here / "server", result(here / "server")
    kept = server / "sketch" / "mri.sketch"
    if where in ("cut", "gone"):
        kept.write_bytes(kept.read_bytes()[:-1000])
        if where == "gone":
            kept.unlink()
    else:
        flip(kept, -1 if where == "end" else None)
    (server / "posterior.nc").unlink()
    if where != "gone":
        told = refused(capsys, "fit", "-o", str(server))
        assert f"{kept} is damaged" in told
        assert "Site 'mri' sent it whole and has nothing to mend" in told
        assert "different" not in told
    other = sites({**frames(400), "mri": frames(400, seed=3)["mri"]})[1].sketch(study(fit=LENGTH))
    (here / "other.sketch").write_bytes(other)
    assert main(["fit", str(here / "other.sketch"), "-o", str(server)]) == FederationError.exit_code
    assert "has sent its sketch already, and this one is different" in capsys.readouterr().err
    assert main(fit_command(here)) == 0
    assert result(server) == before
    events = [json.loads(line) for line in (server / "events.jsonl").read_text().splitlines()]
    assert next((e["event"], e["site"]) for e in events if e["event"] in ("refused", "restored")) == ("refused", "mri")
    assert where == "gone" or ("restored", "mri") in [(e["event"], e.get("site")) for e in events]


def test_what_is_noted_of_a_sketch_blames_no_site_where_the_disk_changed_it(here: Path) -> None:
    """The note says under which key a site sketched: another digit there would say that the sites do not agree."""
    server, before = here / "server", result(here / "server")
    note = server / "sketch" / "clinic.facts"
    key = note.read_text().index('"key_fingerprint": "') + 22
    for at, left in ((key, True), (3, True), (0, False)):
        (server / "posterior.nc").unlink()
        (server / "sketch" / "mri.sketch").unlink()
        if left:
            flip(note, at)
        else:
            note.unlink()
        assert main(fit_command(here)) == 0
        assert result(server) == before


def test_the_digests_themselves_may_be_damaged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = here / "server" / "digests.json"
    file.write_bytes(file.read_bytes()[:20])
    assert f"{file} is damaged" in refused(capsys, "fit", "-o", str(here / "server"))
    file.unlink()
    assert main(fit_command(here)) == 0


def test_what_a_killed_command_left_is_swept_by_the_next(here: Path) -> None:
    left = [here / "server" / ".fit.json.01234567.part", here / "server" / "sketch" / ".mri.sketch.89abcdef.part"]
    for path in left:
        path.write_bytes(b"half")
    assert main(["fit", "-o", str(here / "server")]) == 0
    assert not any(path.exists() for path in left)


# --- at a site ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """A site whose sketch has left by file."""
    (tmp_path / "study.toml").write_text(dump(study(m=30)))
    frames()["clinic"].to_csv(tmp_path / "clinic.csv", index=False)
    KEY.save(tmp_path / "study.key")
    where = tmp_path / "clinic"
    table = ["--table", str(tmp_path / "clinic.csv"), "--id", "id", "--responses", ",".join(RESPONSES["clinic"])]
    assert main(["site", "init", str(where), "--name", "clinic", *table]) == 0
    toml = (where / "site.toml").read_text().replace("# key =", "key =").replace('"study.key"', '"../study.key"')
    (where / "site.toml").write_text(toml)
    accept(tmp_path, "study.toml")
    assert main(sketch_command(tmp_path, "first")) == 0
    return tmp_path


def accept(where: Path, name: str) -> None:
    told = ["--fingerprints", str(fingerprints(where / "clinic", where / name))]
    assert main(["site", "accept", str(where / "clinic"), str(where / name), *told]) == 0


def sketch_command(where: Path, name: str) -> list[str]:
    return ["site", "sketch", str(where / "clinic"), "--yes", "-o", str(where / f"{name}.sketch")]


def test_a_stored_sketch_that_the_disk_changed_is_never_sent(clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither it nor another one under the same Φ; from a backup the same bytes leave again, and a new run is another way."""
    (kept,) = clinic.glob("clinic/studies/*/sketch")
    backup = kept.read_bytes()
    flip(kept)
    told = refused(capsys, *sketch_command(clinic, "second"))
    assert f"{kept} is damaged" in told
    assert "Restore the site's folder from a backup; without one, ask for a new run of the study" in told
    assert not (clinic / "second.sketch").exists()
    assert not (clinic / "second.sketch.sig").exists()
    kept.write_bytes(backup)
    assert main(sketch_command(clinic, "second")) == 0
    assert (clinic / "second.sketch").read_bytes() == (clinic / "first.sketch").read_bytes()
    flip(kept)
    assert main(["study", "again", str(clinic / "study.toml"), "-o", str(clinic / "new.toml")]) == 0
    accept(clinic, "new.toml")
    run = next(path for path in (clinic / "clinic" / "accepted").iterdir() if path.stem not in kept.parent.name)
    assert main([*sketch_command(clinic, "new"), "--study", run.stem]) == 0
    assert (clinic / "new.sketch").read_bytes() != backup


@pytest.mark.parametrize("name", ["plain", "of-json.json", "message", "study.secret"])
def test_every_item_of_a_run_is_read_as_it_was_kept(name: str, tmp_path: Path) -> None:
    """A bit anywhere, a cut anywhere: never other bytes than were kept."""
    message = pack("thing", {"a": 1}, {"x": np.arange(3.0)})
    content = {"message": message, "of-json.json": b'{"a": 1}'}.get(name, bytes(32))
    store = RunStore(tmp_path)
    store.put("study.hash", b"ab" * 32)
    store.put(name, content)
    raw = (tmp_path / name).read_bytes()
    assert store.get(name) == content
    assert raw.startswith(MAGIC) == (name == "message")
    for at in range(len(raw)):
        for spoilt in (raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :], raw[:at]):
            (tmp_path / name).write_bytes(spoilt)
            with pytest.raises(DamagedFileError, match="is damaged"):
                store.get(name)


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Its items have no digests beside them: they are taken, and kept, as they are."""
    (tmp_path / "study.hash").write_bytes(b"ab" * 32)
    (tmp_path / "study.secret").write_bytes(bytes(range(32)))
    store = RunStore(tmp_path)
    assert store.get("study.secret") == bytes(range(32))
    store.put("offer", b'{"body": 1}')
    assert (tmp_path / "offer").read_bytes() == b'{"body": 1}'


SECRETS: dict[str, Callable[[Path], object]] = {
    "identity.key": Identity.load,
    "ledger.key": Ledger,
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_whole_or_refused(name: str, tmp_path: Path) -> None:
    if name == "identity.key":
        Identity.new("clinic").save(tmp_path)
    SECRETS[name](tmp_path)
    path = tmp_path / name
    raw = path.read_bytes()
    accepted = 0
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        os.chmod(path, 0o600)
        try:
            found = SECRETS[name](tmp_path)
        except (DamagedFileError, KeyFileError):
            continue
        accepted += 1  # a blank that became another, or the name of the digest's own entry
        assert name == "identity.key"
        path.write_bytes(raw)
        assert isinstance(found, Identity)
        assert found.fingerprint == Identity.load(tmp_path).fingerprint
    assert accepted < 40
