"""On what a fit and its page were made: versions, processor, linear algebra; and how to cite the software."""

import contextlib
import io
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import intarsia
from intarsia.report.gather import Material

LIBRARIES = ("numpy", "scipy", "numba", "xarray")
PAPER = (
    "Halverson B, Guha S, Bernard J, Guhaniyogi R. A Bayesian vertical federated learning framework for multivariate "
    "reduced-rank high-dimensional regression. Manuscript, Texas A&M University (departments of Statistics and of "
    "Psychological & Brain Sciences)."
)


def rows(m: Material) -> list[list[Any]]:
    """What made the fit, as it was kept with the draws, and what made this page."""
    out: list[list[Any]] = []
    versions = m.attrs.get("versions")
    if isinstance(versions, dict):
        out.append(["Fitted with", ", ".join(f"{name} {number}" for name, number in versions.items())])
    out.append(["This page made with", ", ".join(f"{name} {number}" for name, number in installed().items())])
    out.append(["On", "; ".join(filter(None, (platform.platform(terse=True), processor(), linear_algebra())))])
    return out


def installed() -> dict[str, str]:
    found = {"intarsia": intarsia.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def processor() -> str:
    """Its model, where the system says it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def linear_algebra() -> str:
    """The library behind NumPy's matrix products: draws agree bit for bit on the same one."""
    import numpy as np

    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[index]
        return f"BLAS {blas['name']} {blas['version']}"
    return ""


def citation() -> list[str]:
    """The software, then the paper whose model it began with."""
    software = (
        f"The intarsia developers. intarsia {intarsia.__version__}: Bayesian regression across institutions that may not show"
    )
    return [f"{software} each other their data. Software.", PAPER]
