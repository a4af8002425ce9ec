"""Installed by one account, run by another without a home: compiled loops work and are kept, or found if they came along."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import intarsia
from intarsia import compilation

NOBODY = 65534
LOOPS = """
import json, sys
import numpy as np
import intarsia, intarsia.cli, intarsia.estimator
from intarsia.server.assess import diagnostics as loops
from intarsia.site.sketch import stream_compiled
assert intarsia.__file__.startswith(sys.argv[1])
out = np.empty(1)
loops.effective(np.random.default_rng(0).standard_normal((1, 2, 50)), 1e-9, out)
words = np.arange(4096, dtype=np.uint64) << np.uint64(50)
stream_compiled.gaussianise(words, words.view(np.float64))
stats = [loops.effective.stats, stream_compiled.gaussianise.stats]
print(json.dumps([sum(sum(s.cache_hits.values()) for s in stats), sum(sum(s.cache_misses.values()) for s in stats)]))
"""


def as_nobody() -> tuple[list[str], dict[str, object]]:
    """An interpreter that another account may run, and how; root's own Python in a closed home is none."""
    who: dict[str, object] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    system = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/bin")
    for python in filter(None, (sys.executable, system)):
        try:
            if subprocess.run([python, "-c", "import json"], cwd="/", **who).returncode == 0:  # type: ignore[call-overload]
                return [python], who
        except PermissionError:
            continue
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable], {}  # root, held to the files' modes


class Installed:
    """A copy of the package that its user can read but not write, and a temporary folder that everybody can write to."""

    def __init__(self, root: Path) -> None:
        self.packages, self.temporary = root / "packages", root / "tmp"
        ignored = shutil.ignore_patterns("*.nbi", "*.nbc", "*.pyc")
        shutil.copytree(Path(intarsia.__file__).parent, self.packages / "intarsia", ignore=ignored)
        self.temporary.mkdir(mode=0o777)
        root.chmod(0o755)
        self.temporary.chmod(0o1777)

    def close(self) -> None:
        """Nobody may write to it."""
        for path in [self.packages, *self.packages.rglob("*")]:
            path.chmod(path.stat().st_mode & ~0o222)

    def run(self, python: list[str], **who: object) -> list[int]:
        """How often a compiled loop was found where it is kept, and how often not."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG", "HOME", "INTARSIA"))}
        beside = next(path for path in sys.path if path.endswith("site-packages"))
        env |= {"PYTHONPATH": f"{self.packages}:{beside}", "TMPDIR": str(self.temporary), "HOME": "/nonexistent"}
        command = [*python, "-c", LOOPS, str(self.packages)]
        done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, **who)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))


@pytest.fixture
def installed() -> Iterator[Installed]:
    root = Path(tempfile.mkdtemp(prefix="intarsia-installed-"))  # that of the tests is closed to other users
    place = Installed(root)
    try:
        yield place
    finally:
        for path in root.rglob("*"):
            if not path.is_symlink() and path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(root)


def test_a_user_without_a_home_keeps_the_loops_in_a_folder_of_its_own(installed: Installed) -> None:
    installed.close()
    python, who = as_nobody()
    assert installed.run(python, **who) == [0, 2]
    (own,) = installed.temporary.iterdir()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert own.stat().st_uid == who.get("user", os.geteuid())
    assert installed.run(python, **who) == [2, 0]


def test_what_the_installer_compiled_is_used_by_all(installed: Installed) -> None:
    python, who = as_nobody()
    assert installed.run(python[-1:]) == [0, 2]
    assert list(installed.packages.rglob("*.nbi"))
    installed.close()
    assert installed.run(python, **who) == [2, 0]


@pytest.mark.skipif(sys.platform == "win32", reason="sys.platform: Windows has no owners and modes of this kind")
def test_a_folder_that_others_could_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies there is unpickled: whoever writes it runs code."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = compilation.own_folder()
    assert compilation.own_folder() == path
    for wrong in (0o777, 0o750, 0o701):
        path.chmod(wrong)
        with pytest.raises(PermissionError):
            compilation.own_folder()
    path.rmdir()
    other = tmp_path / "elsewhere"
    other.mkdir(mode=0o700)
    path.symlink_to(other)
    with pytest.raises(PermissionError):
        compilation.own_folder()
    path.unlink()
    path.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 9999)
    os.rename(path, tmp_path / f"intarsia-{os.geteuid()}")
    with pytest.raises(PermissionError):
        compilation.own_folder()


def test_switched_off_or_with_no_folder_at_all_it_works_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core.dispatcher import Dispatcher

    def nowhere() -> Path:
        raise FileNotFoundError

    def refused(self: Dispatcher) -> None:
        raise RuntimeError("cannot cache function 'f': no locator available for file")

    monkeypatch.setattr(compilation, "own_folder", nowhere)
    monkeypatch.setattr(Dispatcher, "enable_caching", refused)
    assert compilation.compiled(nogil=True)(lambda x: x + 1.0)(2.0) == 3.0
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", 1)
    assert compilation.compiled(lambda x: x + 1.0)(2.0) == 3.0
