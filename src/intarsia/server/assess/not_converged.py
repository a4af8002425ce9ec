"""The warning of a fit that has not converged, given wherever a fit is made from Python."""

import warnings

from sklearn.exceptions import ConvergenceWarning


class NotConvergedWarning(ConvergenceWarning):
    """The chains do not agree, or there are too few draws: what was found is provisional."""


def warn_unless(converged: bool, verdict: str, stacklevel: int) -> None:
    """Warn with the verdict; `stacklevel` counts from the caller of this function."""
    if not converged:
        warnings.warn(verdict, NotConvergedWarning, stacklevel=stacklevel + 1)
