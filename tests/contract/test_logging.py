"""What the package says while it works goes through `logging`, by the name "intarsia"; no cell, id or key is in it."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import intarsia
from intarsia.cli import main
from intarsia.progress import Bar
from intarsia.server.sampler.settings import Progress

LOG = logging.getLogger("intarsia")
DONE = Progress([10], total=10, warmup=5, seconds=9.0, seconds_left=0.0, rhat=1.0)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    handlers, level = LOG.handlers[:], LOG.level
    LOG.handlers, LOG.level = [], logging.NOTSET
    yield
    LOG.handlers, LOG.level = handlers, level
    LOG.setLevel(level)


def site(folder: Path) -> Path:
    rows = "".join(f"secret-{i:02d},{i % 7 + 0.125},{i % 5 + 0.0625}\n" for i in range(40))
    (folder / "t.csv").write_text("id,x,y\n" + rows, encoding="utf-8")
    main(["-q", "site", "init", str(folder / "clinic"), "--name", "clinic", "--table", str(folder / "t.csv"), "--responses", "y"])
    return folder / "clinic"


def test_v_says_on_stderr_what_is_done_and_q_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = site(tmp_path)
    capsys.readouterr()
    said = {}
    for flags in ([], ["-v"], ["-q"]):
        for command in ([*flags, "site", "check", str(folder)], ["site", "check", str(folder), *flags]):
            main(command)
            out, err = capsys.readouterr()
            assert "1 feature" in out  # results are no log
            said[tuple(flags)] = err
    assert said[()] == said[("-q",)] == ""
    (line,) = said[("-v",)].splitlines()
    assert "intarsia.site.data.table: opened a table: CsvSource, 40 rows, 2 columns" in line
    assert "secret" not in line
    assert ".125" not in line


def test_progress_goes_where_the_program_logs(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO, "intarsia"), Bar() as bar:
        bar(DONE)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "sampling 100%" in caplog.text
    caplog.clear()
    LOG.setLevel(logging.WARNING)
    with Bar() as bar:
        bar(DONE)
    assert caplog.text == "" == capsys.readouterr().err
    LOG.setLevel(logging.NOTSET)
    own = io.StringIO()
    with Bar(own) as bar:
        bar(DONE)
    assert own.getvalue().startswith("  sampling 100%")


def test_a_fit_in_python_says_its_steps_to_whoever_listens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "intarsia")
    people = [f"secret-{i:03d}" for i in range(300)]
    x = {f"x{j}": [((i * (j + 3)) % 17) + 0.03125 * (i % 3) for i in range(300)] for j in range(4)}
    sites = [
        intarsia.Site("a", {"id": people, **x}, id="id"),
        intarsia.Site("b", {"id": people, "y": [float(i % 17) for i in range(300)]}, id="id", responses=["y"]),
    ]
    intarsia.fit(sites, m=30, progress=False)
    assert "site a takes step 'sketch'" in caplog.text
    assert "sampling SparseModel given 30 rows of 4 features" in caplog.text
    assert "secret" not in caplog.text
    assert ".03125" not in caplog.text
