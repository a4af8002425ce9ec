"""Sparse draws say what the same draws say dense, in any unit and among more columns; files keep them sparse."""

from dataclasses import replace
from pathlib import Path

import arviz
import numpy as np
import pytest
from tests.sparse_draws import CHAINS, DRAWS, P, Q, at_random, made

from intarsia.errors import InputError, MessageError
from intarsia.server.assess.effects import unshrunk
from intarsia.server.assess.leave_one_out import to_arviz
from intarsia.server.posterior import sparse as module
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import CovariateEffects, Names, Posterior
from intarsia.server.posterior.sparse import SparseEffects

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def both() -> tuple[Draws, Draws]:
    draws, C = made(at_random(), background=True)
    return draws, replace(draws, C=C, inclusion=None)


def test_every_number_is_that_of_the_dense_draws(both: tuple[Draws, Draws], monkeypatch: pytest.MonkeyPatch) -> None:
    sparse, dense = both
    rng = np.random.default_rng(1)
    X, places, at = rng.standard_normal((7, P)), np.array([0, 3, 9]), np.array([1, 70, 179])
    Y = rng.standard_normal((7, Q))
    for chunk in (module.CHUNK, CHAINS * DRAWS * Q * 2):
        monkeypatch.setattr(module, "CHUNK", chunk)
        for name, given in (
            ("mean", ()), ("sd", ()), ("prediction_mean", ()), ("times", (X,)), ("fitted", (X, at)),
            ("quantile", ([0.0, 0.025, 0.25, 0.5, 0.975, 1.0],)), ("quantile", ([0.025, 0.975],)),
            ("quantile", ([0.05, 0.9], places)), *(("quantile", ([q],)) for q in (0.84, 0.88, 0.9, 0.92, 0.94)),
        ):  # fmt: skip
            np.testing.assert_allclose(getattr(sparse, name)(*given), getattr(dense, name)(*given), atol=1e-12, err_msg=name)
    for name, given in (("signs", ()), ("singular_values", ()), ("some", (places, at)), ("dense", (places,))):
        np.testing.assert_allclose(getattr(sparse.effects, name)(*given), getattr(dense.effects, name)(*given), atol=1e-12)
    np.testing.assert_allclose(unshrunk(X, Y, sparse), unshrunk(X, Y, dense), atol=1e-12)


def test_other_units_and_more_columns_are_those_of_the_dense_draws(both: tuple[Draws, Draws]) -> None:
    sparse, dense = both
    rng = np.random.default_rng(2)
    features, responses = np.ones(P + 2, dtype=bool), np.array([True, False, True])
    features[[0, 9]] = False
    units = rng.uniform(0.1, 9, P + 2), rng.uniform(0.1, 9, 3)
    one, other = (draws.spread_out(features, responses).scaled(*units) for draws in (sparse, dense))
    np.testing.assert_allclose(one.effects.dense(), other.effects.dense())
    for name in ("Sigma", "background"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name))
    assert one.inclusion is not None
    np.testing.assert_allclose(one.inclusion.effects.dense(), other.effects.dense())
    assert one.inclusion.mean()[[0, 9]].tolist() == [0, 0]


def test_the_posterior_predicts_with_the_background_and_tells_effects_without(both: tuple[Draws, Draws]) -> None:
    X = np.random.default_rng(3).standard_normal((5, P))
    one, other = (Posterior.from_draws(draws) for draws in both)
    assert both[0].background is not None
    for mine, theirs in zip(one.predict(X), other.predict(X), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)
    np.testing.assert_allclose(one.predict(X)[0], X @ (one.mean().values + both[0].background))
    loud = (each.predictive_draws(X, rng=np.random.default_rng(0), thin=7) for each in (one, other))
    np.testing.assert_allclose(*loud, atol=1e-12)
    for name, value in one.rank_summary().items():
        np.testing.assert_allclose(value, other.rank_summary()[name], atol=1e-12)


def test_the_file_keeps_draws_sparse_and_arviz_opens_it(both: tuple[Draws, Draws], tmp_path: Path) -> None:
    draws = both[0]
    names = Names([f"rs{p}" for p in range(P)], ["y", "z"], ["chip"] * P, ["clinic"] * Q)
    effects = CovariateEffects(np.random.default_rng(4).standard_normal((CHAINS, DRAWS, 1, Q)), ("age",), ("clinic",))
    posterior = Posterior.from_draws(draws, names, attrs={"n": 100, "response_scales": [2.0, 3.0]}, effects=effects)
    back = Posterior.load(posterior.save(tmp_path / "fit.nc"))
    assert isinstance(back.draws.C, SparseEffects)
    for name in ("offsets", "features", "effects"):
        np.testing.assert_array_equal(getattr(back.draws.C, name), getattr(draws.C, name))
        if name != "effects":
            np.testing.assert_array_equal(getattr(back.draws.inclusion, name), getattr(draws.inclusion, name))
    for name, values in draws.parameters.items():
        np.testing.assert_array_equal(back.draws.parameters[name], values)
    np.testing.assert_array_equal(back.draws.background, draws.background)
    assert (back.features, back.feature_sites, back.covariate_sites) == ([f"rs{p}" for p in range(P)], ["chip"] * P, ["clinic"])
    assert back.response_scales == {"y": 2.0, "z": 3.0}
    np.testing.assert_array_equal(back.Gamma, effects.Gamma)
    theirs = arviz.from_netcdf(str(tmp_path / "fit.nc"))
    groups = theirs.children if hasattr(theirs, "children") else theirs.groups()  # a tree from ArviZ 1 on
    assert {"posterior", "sparse_effects", "inclusion"} <= set(groups)
    np.testing.assert_array_equal(theirs["posterior"]["included"], draws.parameters["included"])
    told = theirs["posterior"].attrs["comment"]
    assert "sparse_effects" in told
    assert "to_arviz(" in told
    summary = arviz.summary(theirs, round_to="none")
    assert summary.loc["included", "mean"] == pytest.approx(draws.parameters["included"].mean())
    assert not summary.index.str.startswith("C[").any()
    whole = to_arviz(back, ["rs3", "rs0"])
    summary = arviz.summary(whole, round_to="none")["mean"]
    of_C = summary[["C[rs3, y]", "C[rs3, z]", "C[rs0, y]", "C[rs0, z]"]].to_numpy()
    np.testing.assert_allclose(of_C.reshape(2, 2), back.mean().values[[3, 0]], atol=1e-12)
    of_Gamma = arviz.summary(whole, var_names=["Gamma"], round_to="none")["mean"][["Gamma[age, y]", "Gamma[age, z]"]]
    np.testing.assert_allclose(of_Gamma, effects.Gamma.mean(axis=(0, 1, 2)), atol=1e-12)
    np.testing.assert_array_equal(back.dense(["rs3", "rs0"]), both[1].effects.dense([3, 0]))
    assert back.dense(["rs3"]).coords["site"].values.tolist() == ["chip"]


def test_files_of_format_2_are_opened(both: tuple[Draws, Draws], tmp_path: Path) -> None:
    """Dense draws, judged by an earlier version."""
    made = Posterior.from_draws(
        Draws(both[1].effects.dense(), both[1].Sigma, {"tau": np.ones((CHAINS, DRAWS, 2))}), attrs={"n": 9}
    )
    tree = made.tree
    tree.attrs["intarsia_format"] = 2
    tree["constant_data"] = tree["posterior"].to_dataset()[["feature"]].assign(selection_selected=("feature", np.ones(P, "i1")))
    tree.to_netcdf(tmp_path / "old.nc", engine="h5netcdf")
    back = Posterior.load(tmp_path / "old.nc")
    np.testing.assert_array_equal(back.C, both[1].effects.dense())
    assert back.attrs["n"] == 9
    tree["every_feature"] = tree["posterior"].to_dataset()
    tree.to_netcdf(tmp_path / "bounded.nc", engine="h5netcdf")
    with pytest.raises(MessageError, match="draws of some features alone"):
        Posterior.load(tmp_path / "bounded.nc")


def test_too_many_dense_draws_are_refused_with_what_would_be_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = Posterior.from_draws(made(at_random())[0])
    monkeypatch.setattr(module, "MOST_BYTES", 8 * CHAINS * DRAWS * Q * 5)
    with pytest.raises(InputError, match="Ask for at most 5 features"):
        posterior.dense()
    assert posterior.dense(["x1", "x2"]).shape == (CHAINS, DRAWS, 2, Q)
    with pytest.raises(InputError, match="1 of the features asked for are not"):
        posterior.dense(["x1", "who"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offsets": np.array([0, 2, 1, 3])}, "never fall"),
        ({"offsets": np.array([0, 1, 3])}, "offsets have shape"),
        ({"features": np.array([1, 0, 2])}, "must ascend"),
        ({"features": np.array([0, 1, 9])}, "between 0 and 3"),
        ({"effects": np.zeros((3, 1))}, "effects have shape"),
    ],
)
def test_lists_that_do_not_fit_together_are_refused(change: dict[str, np.ndarray], said: str) -> None:
    good = {"offsets": np.array([0, 2, 2, 3]), "features": np.array([0, 1, 0]), "effects": np.zeros((3, 2))}
    SparseEffects((1, 3, 4, 2), **good)
    with pytest.raises(InputError, match=said):
        SparseEffects((1, 3, 4, 2), **good | change)


def test_the_estimator_s_way_to_a_posterior_needs_no_xarray() -> None:
    import subprocess
    import sys

    code = "import sys, intarsia.regression, intarsia.server.assess.assessment; print('xarray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=None)
    assert done.stdout.strip() == "False"
