"""r/: the package's own tests under R, files of this version and of 0.1.0, and numbers that are those Python reads."""

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.reports import made_up
from tests.sparse_draws import at_random, made

from intarsia.cli import main
from intarsia.server.posterior.posterior import Names, Posterior
from intarsia.server.posterior.sparse import SparseEffects

PACKAGE = Path(__file__).parents[2] / "r"
FIXTURES = PACKAGE / "tests" / "testthat" / "fixtures"
MISSING = "make system-packages R_PACKAGES='r-base-core r-cran-ncdf4 r-cran-posterior r-cran-testthat'"


def told(C: Any, sigma2: Any, features: Sequence[str], responses: Sequence[str]) -> list[list[Any]]:
    """Every variable of `read_draws`: name, mean, standard deviation, chains, the first draw of the second chain."""
    rows = [[f"C[{name},{response}]", C[:, :, p, q]] for q, response in enumerate(responses) for p, name in enumerate(features)]
    rows += [[f"sigma2[{name}]", sigma2[:, :, q]] for q, name in enumerate(responses)]
    return [[name, x.mean(), x.std(ddof=1), len(x), x[1, 0]] for name, x in rows]


def of_posterior(posterior: Any) -> list[list[Any]]:
    C = posterior.draws.C
    dense = C.dense() if isinstance(C, SparseEffects) else np.asarray(C)
    return told(dense, posterior.draws.sigma2, posterior.features, posterior.responses)


def of_file(path: Path) -> list[list[Any]]:
    """As HDF5 has it: this version reads no posterior of 0.1.0 any more, R's package does."""
    with h5py.File(path) as file:
        names = [[one.decode() for one in file[f"posterior/{dim}"][:]] for dim in ("feature", "response")]
        return told(file["posterior/C"][:], file["posterior/sigma2"][:], *names)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_what_r_is_compared_with_is_in_the_kept_files(version: str) -> None:
    """The kept file of 0.1.0 was written by that version."""
    path = FIXTURES / f"posterior-{version}.nc"
    found = of_file(path) if version == "0.1.0" else of_posterior(Posterior.load(path))
    with (FIXTURES / f"posterior-{version}-means.csv").open(encoding="utf-8") as file:
        kept = list(csv.reader(file))[1:]
    assert [row[0] for row in kept] == [row[0] for row in found]
    np.testing.assert_allclose(
        np.array([row[1:] for row in kept], float), np.array([row[1:] for row in found], float), rtol=1e-12
    )


def test_the_package_says_the_programs_version() -> None:
    import intarsia

    text = (PACKAGE / "DESCRIPTION").read_text(encoding="utf-8")
    (said,) = re.findall(r"^Version: (.*)$", text, re.M)
    assert intarsia.__version__.split(".dev")[0] == said
    exported = set(re.findall(r"^export\((\w+)\)", (PACKAGE / "NAMESPACE").read_text(encoding="utf-8"), re.M))
    assert exported == {path.stem for path in (PACKAGE / "man").glob("*.Rd")}


class Installed:
    """The package in a library of its own."""

    def __init__(self, library: Path) -> None:
        self.library = library
        copy = library / "source"
        shutil.copytree(PACKAGE, copy)
        done = subprocess.run(["R", "CMD", "INSTALL", f"--library={library}", str(copy)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def r(self, script: str) -> str:
        env = os.environ | {"R_LIBS_USER": str(self.library)}
        done = subprocess.run(["Rscript", "-e", script], capture_output=True, text=True, env=env, cwd=self.library)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    wanted = "ncdf4", "posterior", "testthat"
    ask = "cat(" + ", ".join(f'requireNamespace("{name}", quietly = TRUE)' for name in wanted) + ")"
    there = shutil.which("Rscript") and subprocess.run(["Rscript", "-e", ask], capture_output=True, text=True).stdout.split()
    if there != ["TRUE"] * len(wanted):
        pytest.skip(f"R or its packages {', '.join(wanted)} are not installed: {MISSING}")
    return Installed(tmp_path_factory.mktemp("r-library"))


def test_its_own_tests_pass(installed: Installed) -> None:
    where = installed.library / "source" / "tests" / "testthat"
    out = installed.r(f"""
        found <- testthat::test_dir("{where}", package = "intarsia", load_package = "installed", reporter = "check",
                                    stop_on_failure = FALSE)
        r <- as.data.frame(found)
        cat("RAN", sum(r$nb), sum(r$failed), sum(r$skipped), sum(r$error))
    """)
    ran, failed, skipped, errors = map(int, re.search(r"RAN (\d+) (\d+) (\d+) (\d+)", out).groups())  # type: ignore[union-attr]
    assert (failed, skipped, errors) == (0, 0, 0), out
    assert ran >= 30


@pytest.mark.parametrize("sparse", [False, True])
def test_a_study_of_today_is_read_in_r_as_in_python(installed: Installed, tmp_path: Path, sparse: bool) -> None:
    if sparse:
        draws, _ = made(at_random(3, (3, 20, 30)), seed=3)
        posterior = Posterior.from_draws(draws, Names([f"g{i}" for i in range(30)], ["y0", "y1"]), attrs={"n": 300, "m": 30})
    else:
        posterior = made_up(P=8, Q=3, active=3, chains=2, draws=25)[0]
    posterior.save(tmp_path / "posterior.nc")
    out = installed.r(f"""
        d <- intarsia::read_draws("{tmp_path / "posterior.nc"}")
        variables <- posterior::variables(d)
        cat("ROWS\\n")
        for (v in variables) cat(sprintf('"%s",%.15g,%.15g\\n', v, mean(d[[v]]), sd(d[[v]])))
    """)
    got = {row[0]: [float(x) for x in row[1:3]] for row in csv.reader(out.split("ROWS\n")[1].splitlines())}
    expected = {row[0]: row[1:3] for row in of_posterior(posterior)}
    assert set(got) == set(expected)
    for name, numbers in expected.items():
        np.testing.assert_allclose(got[name], np.array(numbers, float), rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_table_of_today_is_read_in_r(installed: Installed, tmp_path: Path) -> None:
    posterior = made_up(P=12, Q=2, active=3)[0]
    posterior.save(tmp_path / "posterior.nc")
    main(["report", str(tmp_path / "posterior.nc"), "--table", str(tmp_path / "results.csv")])
    out = installed.r(f"""
        r <- intarsia::read_results("{tmp_path / "results.csv"}")
        pdf(NULL)
        intarsia::plot_effects(r)
        intarsia::plot_inclusion(r)
        cat("FOUND", nrow(r), length(intarsia::sets(r)$pip), sum(r$selected))
    """)
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        selected = sum(row["selected"] == "True" for row in csv.DictReader(file))
    assert out.split("FOUND")[1].split() == ["24", "12", str(selected)]
    assert selected > 0
