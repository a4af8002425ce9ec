"""Geweke's joint test of a chain with missing responses: parameters, observed and missing responses keep their joint law."""

import numpy as np
import pytest
from joint import Setting, sweeps_of
from scipy.stats import ks_2samp

from intarsia.server.sampler import missing as module
from intarsia.server.sampler.horseshoe.chain import Missing
from intarsia.server.sampler.missing import draw_missing

FAILURE = 1e-4


def lacking(Y: np.ndarray) -> np.ndarray:
    """Rows of three kinds: all responses, the first missing, the last missing."""
    out = Y.copy()
    out[1::3, 0] = np.nan
    out[2::3, -1] = np.nan
    return out


def functions(setting: Setting, state, Y: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Those of the joint test, and how the noise of rows with a gap hangs together."""
    white = np.linalg.solve(np.linalg.cholesky(state.Sigma), (Y - setting.X @ state.B @ state.A.T).T)
    noise = white[:, np.isnan(lacking(Y)).any(axis=1)]
    return np.r_[setting.functions(state, Y), (noise[0] * noise[-1]).sum(), (noise[0] ** 2).sum(), (noise[-1] ** 2).sum()]


def smallest(setting: Setting, replicates: int = 400, sweeps: int = 3, seed: int = 1) -> float:
    rng = np.random.default_rng(seed)
    before, after = [], []
    with np.errstate(all="ignore"):
        for _ in range(replicates):
            other = setting.prior(rng)
            before.append(functions(setting, other, setting.data(other, rng)[0]))
            state = setting.prior(rng)
            Y, data = setting.data(state, rng)
            missing = Missing(setting.X, lacking(Y))
            for _ in range(sweeps):
                data = missing.fill(data, state.B @ state.A.T, state.Sigma, rng)
                state = sweeps_of(setting, data, state, rng, 1)
            # With missing responses drawn once more, rows have the law of data given the parameters again.
            Y = module.draw_missing(
                missing.Y, setting.X @ state.B @ state.A.T, state.Sigma, missing.patterns, rng.standard_normal(Y.shape)
            )
            after.append(functions(setting, state, Y))
    first, last = np.array(before), np.array(after)
    p = [ks_2samp(first[:, i], last[:, i]).pvalue for i in range(first.shape[1])]
    return float(min(p) * len(p))


@pytest.mark.parametrize("options", [{"Q": 3, "R": 2, "m": 6}, {"Q": 2, "m": 8, "P": 3}])
def test_the_joint_law_is_kept(options: dict[str, int]) -> None:
    assert smallest(Setting(**options)) > FAILURE


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"Q": 3, "R": 2, "m": 6}, {"Q": 2, "m": 8, "P": 3}])
def test_the_joint_law_is_kept_at_length(options: dict[str, int]) -> None:
    assert smallest(Setting(**options), replicates=10_000, sweeps=5, seed=2) > FAILURE


def without_the_others(Y, fitted, Sigma, found, normal):  # type: ignore[no-untyped-def]
    """The planted bug: what the row has is not looked at, as if the noise of responses were independent."""
    return draw_missing(Y, fitted, np.diag(np.diag(Sigma)), found, normal)


def as_the_mean(Y, fitted, Sigma, found, normal):  # type: ignore[no-untyped-def]
    """Another: the conditional mean in place of a draw, single imputation."""
    return draw_missing(Y, fitted, Sigma, found, 0 * normal)


@pytest.mark.parametrize("bug", [without_the_others, as_the_mean])
def test_a_planted_bug_is_found(bug, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "draw_missing", bug)
    assert smallest(Setting(Q=2, m=8, P=3)) < FAILURE
