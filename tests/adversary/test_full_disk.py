"""A server that asks again and again, with other words each time, to fill a site's disk or to push out what was noted of it."""

import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer

from intarsia.carriers.flare import tidy
from intarsia.site.counted_log import MOST_CHARACTERS, MOST_OF_A_KIND, CountedLog
from intarsia.site.run_store import RunStore
from intarsia.wire.steps import STEPS


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def rogue(tmp_path: Path) -> RogueServer:
    return RogueServer.after_collect(tmp_path)


def test_refusals_do_not_fill_the_disk_and_none_of_another_kind_is_pushed_out(tmp_path: Path) -> None:
    """Every step, with names and bytes that differ each time; then one refusal of a kind that had not come before."""
    rogue, grown = RogueServer.before(tmp_path), []
    for tries in range(2):
        for k in range(30):
            words = f"{tries}{k:04d}" * 1000
            for step in STEPS:
                told = rogue.ask("mri", step, {words: words.encode(), "request": words.encode()})
                assert told.words in FIXED_WORDS or told.message in rogue.seen
        grown.append(size(rogue.sites["mri"].folder or Path()))
    assert grown[1] - grown[0] < 4000  # counts have a digit more, and lines say so at powers of ten
    lines = len(rogue.log("mri"))
    assert lines > MOST_OF_A_KIND
    assert rogue.ask("mri", "shell").words in FIXED_WORDS
    assert "knows no step of that name" in rogue.log("mri")[-1]["text"]
    assert len(rogue.log("mri")) == lines + 1
    assert max(len(line["text"]) for line in rogue.log("mri")) <= MOST_CHARACTERS + 1


def test_a_message_asked_for_again_and_again_is_counted(rogue: RogueServer) -> None:
    store = rogue.sites["mri"].run_store(rogue.study)
    assert store.folder is not None
    before = (store.folder / "sent.jsonl").read_text()
    for _ in range(119):
        rogue.ask("mri", "sketch")
    added = (store.folder / "sent.jsonl").read_text().removeprefix(before).splitlines()
    assert [json.loads(line)["times"] for line in added] == [10, 100]
    assert json.loads((store.folder / "sent.counts.json").read_text())["sketch"]["times"] == 120
    assert len(store.log) == len({(line["step"], line["sha256"]) for line in store.log})  # nor does the memory grow
    for name in ("sent.jsonl", "sent.counts.json"):
        assert (store.folder / name).stat().st_mode & 0o777 == 0o600


def test_what_is_new_is_always_written(tmp_path: Path) -> None:
    """Every message that left is listed, however many there are; of refusals of one kind the first twenty."""
    store = RunStore(tmp_path)
    for k in range(50):
        store.sent("prediction", b"%d" % k)
        store.problem("Error", f"no {k}", "here")
    store.problem("Error", "no 0", "there")
    assert len((tmp_path / "sent.jsonl").read_text().splitlines()) == 50
    texts = [json.loads(line)["text"] for line in (tmp_path / "problems.jsonl").read_text().splitlines()]
    assert texts == [*(f"no {k}" for k in range(MOST_OF_A_KIND)), "no 0"]
    (tmp_path / "problems.counts.json").write_text('{"half')  # a crash while it was written: nothing is lost but the count
    store.problem("Error", "after", "here")
    assert json.loads((tmp_path / "problems.jsonl").read_text().splitlines()[-1])["text"] == "after"
    counts = (tmp_path / "problems.counts.json").read_text()
    (tmp_path / "problems.counts.json").write_text(counts.replace('"times"', '"tames"'))  # one bit on the disk
    store.problem("Error", "later", "here")
    assert json.loads((tmp_path / "problems.jsonl").read_text().splitlines()[-1])["text"] == "later"
    assert CountedLog(tmp_path, "problems", limited=True).counts.read_text().count("times") == 1


def test_what_comes_at_the_same_moment_is_counted(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: CountedLog(tmp_path, "sent", limited=False).note("sketch", {"k": k % 3}), range(400)))
    assert json.loads((tmp_path / "sent.counts.json").read_text())["sketch"]["times"] == 400
    lines = [json.loads(line) for line in (tmp_path / "sent.jsonl").read_text().splitlines()]
    assert sorted(line["k"] for line in lines if "times" not in line) == [0, 1, 2]


def test_a_disk_that_is_full_makes_no_answer_of_a_refusal(rogue: RogueServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CountedLog, "note", full)
    assert rogue.ask("mri", "shell").words in FIXED_WORDS


def test_the_engines_logs_and_job_folders_stay_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "MOST_LOG_BYTES", 1000)
    kit = tmp_path / "network"
    for folder in ("startup", "local", "secret"):
        (kit / folder).mkdir(parents=True)
        (kit / folder / "settings.json").write_text("x" * 5000)
    elsewhere = tmp_path / "table.txt"
    elsewhere.write_text("y" * 5000)
    (kit / "link.txt").symlink_to(elsewhere)
    (kit / str(uuid.UUID(int=999))).symlink_to(tmp_path)
    for k in range(60):
        job = kit / str(uuid.UUID(int=k))
        job.mkdir()
        (job / "log.txt").write_text("z" * (5000 if k == 59 else 10))
        os.utime(job, (k, k))
    log = kit / "serve.log"
    with log.open("ab") as engine:
        for _ in range(30):
            engine.write(b"a line of the engine" * 20)
            engine.flush()
            tidy.tidy(kit)
    kept = sorted(path.name for path in kit.iterdir() if path.is_dir() and not path.is_symlink())
    assert kept == sorted([*(str(uuid.UUID(int=k)) for k in range(40, 60)), "startup", "local", "secret"])
    assert log.stat().st_size <= 1000 + 400
    assert (kit / "serve.log.before").stat().st_size <= 1400
    assert (kit / str(uuid.UUID(int=59)) / "log.txt").stat().st_size == 0
    assert (kit / "local" / "settings.json").stat().st_size == 5000
    assert elsewhere.stat().st_size == 5000


def test_the_supervisor_tidies_while_the_engine_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from intarsia.carriers.flare import engine

    tidied: list[Path] = []
    monkeypatch.setattr(engine, "TIDY_SECONDS", 0.05)
    monkeypatch.setattr(engine, "tidy", tidied.append)
    monkeypatch.setattr(engine, "require_engine", lambda: None)
    command = [sys.executable, "-c", "import time; time.sleep(0.4)"]
    assert engine.supervise(command, dict(os.environ), tmp_path / "serve.log", lambda text: None) == 0
    assert set(tidied) == {tmp_path}


def test_a_job_that_is_long_is_refused() -> None:
    """The description of a job comes from the server and is written down at the site before the job starts."""
    pytest.importorskip("nvflare")
    from intarsia.carriers.flare.jobs import LIMIT_BYTES

    code = (
        "from intarsia.carriers.flare.guard import guard_site; guard_site();"
        "from nvflare.private.fed.utils.app_deployer import AppDeployer;"
        "from intarsia.carriers.flare import guard; guard.strange = lambda *a: '';"
        f"print(AppDeployer().deploy(None, '{uuid.UUID(int=1)}', {{'x': 'y' * {LIMIT_BYTES}}}, 'app', b'', None))"
    )
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "its description is long" in done.stdout, done.stderr[-500:]
