"""R reads what docs/from-r.md says it reads: the table of results with base R, the posterior with ncdf4, the estimator through
reticulate."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reports import made_up

from intarsia.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "from-r.md"
TABLE, PLOT, POSTERIOR, RETICULATE = re.findall(r"^```r\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def r(folder: Path, script: str) -> str:
    command = ["Rscript", "--vanilla", "-e", script]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    if shutil.which("Rscript") is None:
        pytest.skip("Rscript is not installed: make system-packages R_PACKAGES='r-base-core r-cran-ncdf4'")
    folder = tmp_path_factory.mktemp("r")
    posterior, _, C = made_up(P=12, Q=2, active=3)
    posterior.save(folder / "posterior.nc")
    assert main(["report", str(folder / "posterior.nc"), "--table", str(folder / "results.csv")]) == 0
    return folder, (posterior, C)


def test_the_table(study: tuple[Path, Any]) -> None:
    folder, (posterior, C) = study
    told = r(folder, TABLE + PLOT + 'cat("FOUND", sort(unique(found$feature)), "\\n"); cat(sprintf("%.6f", found$effect))')
    true = [posterior.features[p] for p in np.flatnonzero(C.any(axis=1))]
    assert re.search(r"FOUND (.*) \n", told)[1].split() == sorted(true)  # type: ignore[index]
    effects = np.array(told.rsplit("\n", 1)[1].split(), dtype=float)
    mean = posterior.mean().sel(feature=true).values
    np.testing.assert_allclose(np.sort(effects), np.sort(mean.ravel()), atol=1e-6)
    assert (folder / "Rplots.pdf").stat().st_size > 1000


def test_the_posterior(study: tuple[Path, Any]) -> None:
    folder, (posterior, _) = study
    if r(folder, 'cat(requireNamespace("ncdf4", quietly = TRUE))') != "TRUE":
        pytest.skip("R has no package ncdf4: make system-packages R_PACKAGES='r-base-core r-cran-ncdf4'")
    told = r(folder, POSTERIOR + 'cat("MEANS", sprintf("%.6f", apply(C, c(1, 2), mean)["y1", c("f000", "f007")]))')
    mean = posterior.mean().sel(response="y1", feature=["f000", "f007"]).values
    np.testing.assert_allclose(np.array(told.split("MEANS")[1].split(), dtype=float), mean, atol=1e-6)


def test_the_estimator(study: tuple[Path, Any]) -> None:
    """R's matrices go in, the table comes back; the first feature acts on the first response and no other does."""
    folder, _ = study
    known = 'cat(requireNamespace("reticulate", quietly = TRUE) && packageVersion("reticulate") >= "1.38")'
    if r(folder, known) != "TRUE":
        pytest.skip("R has no reticulate of 1.38 or later, which knows NumPy 2 (beyond what make system-packages installs)")
    data = "set.seed(1); X <- matrix(rnorm(600), 100); Y <- cbind(2 * X[, 1] + rnorm(100), rnorm(100))\n"
    script = RETICULATE.replace('".venv/bin/python"', f'"{sys.executable}"').replace("draws = 500L", "draws = 60L, warmup = 60L")
    seen = 'cat("SEEN", nrow(results), unique(results$feature[results$selected == "True"]))'
    told = r(folder, data + script + seen)
    assert "coefficients" in told.split("SEEN")[0]  # the verdict
    assert told.split("SEEN")[1].split() == ["12", "x0"]
