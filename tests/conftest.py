"""What holds for every test: the same keys and examples in every run, and no test skipped unseen.

A test that drew other keys each time would fail now and then without a bug. So within this process new keys, shares and names
of runs come from a stream that begins anew with each test, and Hypothesis tries the same examples; a slow machine fails none of
them. One thing stays new in every run: the key that pinned sites agree on, because sealing a share draws bytes within the
cryptography library. A test that rests on what one Φ gives away uses sites with a fixed key (`pinned=False`).
`make test-slow` sets INTARSIA_EXPLORE=1, for new keys and new examples.

With INTARSIA_ALL_EXTRAS=1, which `make test` sets because it has installed every tested extra, a run fails when a test was
skipped for a reason not listed here: an import that broke, or an extra that should be there.
"""

import hashlib
import os
import re
import secrets

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, settings

# `test` brings what the readers of tables and databases need, too.
READERS = {"postgresql", "sqlite", "duckdb", "zarr", "pgen", "bgen"}
TESTED_EXTRAS = {"dask", "federation", "gpu", "lab", "docs", "test", *READERS}
# Programs of the system, data sets that are not ours to ship, another operating system, an experiment of scikit-learn's.
ALLOWED = re.compile(r"make system-packages|INTARSIA_DATA|sys\.platform|reads the process's highest memory|SCIPY_ARRAY_API")

# Begun first, so that two workers end together: files with few long tests that wait for processes of their own, each beside
# one that computes.
LONG = ("test_network.py", "test_joint.py", "test_live.py", "test_jax_backend.py", "test_network_audit.py", "test_docs.py",
        "test_demo.py")  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


class Stream:
    """Bytes that are the same for every run of a test and different within it."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, name: str) -> None:
        self.name, self.taken = name, 0

    def take(self, count: int | None = None) -> bytes:
        self.taken += 1
        return hashlib.shake_256(f"{self.name} {self.taken}".encode()).digest(32 if count is None else count)


STREAM = Stream()
EXPLORE = os.environ.get("INTARSIA_EXPLORE") == "1"


def pytest_configure(config: pytest.Config) -> None:
    """Before any test or module of the package is imported, some of which keep a function of `secrets`."""
    del config
    settings.register_profile("intarsia", deadline=None, derandomize=not EXPLORE, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("intarsia")
    if EXPLORE:
        return
    # A test on JAX is mostly compilation: half of it without optimising what runs for a moment. `make test-slow` optimises.
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    secrets.token_bytes = STREAM.take
    secrets.token_hex = lambda count=None: STREAM.take(count).hex()
    for kind in (X25519PrivateKey, Ed25519PrivateKey):
        kind.generate = classmethod(lambda cls: cls.from_private_bytes(STREAM.take(32)))  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    STREAM.begin(item.nodeid)


def may_be_missing(reason: str) -> bool:
    """Whether a test may be skipped for this reason where all tested extras are installed."""
    extras = {name.strip() for part in re.findall(r"intarsia\[([\w, ]+)\]", reason) for name in part.split(",")}
    return bool(ALLOWED.search(reason)) or bool(extras and not extras & TESTED_EXTRAS)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("INTARSIA_ALL_EXTRAS") != "1" or terminal is None:
        return
    found = {str(report.longrepr[2]) for report in terminal.stats.get("skipped", []) if isinstance(report.longrepr, tuple | list)}
    wrong = sorted(reason for reason in found if not may_be_missing(reason))
    if wrong and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        terminal.write_line("skipped although everything they need should be installed:")
        for reason in wrong:
            terminal.write_line(f"  {reason}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
