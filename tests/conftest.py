"""A test may be skipped only for what this installation cannot have.

With INTARSIA_ALL_EXTRAS=1, which `make test` sets because it has installed every tested extra, a run fails when a test was
skipped for another reason: an import that broke, or an extra that should be there. No test of the default path vanishes unseen.
"""

import os
import re

import pytest

# `test` brings what the readers of tables and databases need, too.
TESTED_EXTRAS = {"dask", "federation", "gpu", "lab", "docs", "test", "postgresql", "sqlite", "duckdb", "hdf5", "zarr"}
# Programs of the system, data sets that are not ours to ship, another operating system, an experiment of scikit-learn's.
ALLOWED = re.compile(r"make system-packages|INTARSIA_DATA|sys\.platform|reads the process's highest memory|SCIPY_ARRAY_API")

# Begun first, so that two workers end together: files with few long tests that wait for processes of their own, each beside
# one that computes.
LONG = ("test_network.py", "test_joint.py", "test_live.py", "test_jax_backend.py", "test_network_audit.py", "test_docs.py",
        "test_demo.py")  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


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
