"""The posterior is labelled, exact from disk, and readable by plain ArviZ."""

import importlib.util
from dataclasses import replace

import arviz
import numpy as np
import pytest
import xarray

from intarsia.errors import InputError, MessageError
from intarsia.server.assess.convergence import diagnose
from intarsia.server.assess.findings import select
from intarsia.server.posterior import draws as kept
from intarsia.server.posterior import posterior as module
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import CovariateEffects, Names, Posterior, effective_rank

FEATURES = [f"roi {i}" for i in range(7)]
SITES = ["clinic"] * 3 + ["mri"] * 4


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    C = rng.standard_normal((3, 41, 7, 2)) * rng.gamma(1, size=(7, 2))
    info = {"seconds": 2.5, "model": {"local": "row"}, "seed": 4, "stopped": True}
    G = rng.standard_normal((3, 41, 2, 5))
    return Draws(C, G @ G.swapaxes(-1, -2), {"tau": rng.gamma(2, size=(3, 41, 2))}, rng.uniform(size=7), info)


@pytest.fixture
def posterior(draws):
    return Posterior.from_draws(
        draws, Names(FEATURES, ["age", "iq"], SITES, ["clinic"] * 2),
        attrs={"study": "s1"},
    )  # fmt: skip


def test_labels_and_no_copy(draws, posterior):
    assert np.shares_memory(posterior.C.values, draws.C)
    assert posterior.C.dims == ("chain", "draw", "feature", "response")
    assert posterior.features == FEATURES
    assert posterior.responses == ["age", "iq"]
    at_mri = posterior.mean().isel(feature=posterior.C.coords["site"].values == "mri")
    assert at_mri.coords["feature"].values.tolist() == FEATURES[3:]
    assert set(posterior.tree.children) == {"posterior", "sample_stats", "constant_data"}


@pytest.mark.parametrize("chunk", [8_000_000, 3 * 41 * 2 * 2])
def test_summaries_are_exact_whatever_the_chunk_and_from_disk(draws, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(kept, "CHUNK", chunk)
    np.save(tmp_path / "C.npy", draws.C)
    posterior = Posterior.from_draws(replace(draws, C=np.load(tmp_path / "C.npy", mmap_mode="r")))
    flat = draws.C.reshape(-1, 7, 2)
    np.testing.assert_allclose(posterior.mean(), flat.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(posterior.sd(), flat.std(axis=0, ddof=1), rtol=1e-13)
    lower, upper = posterior.interval(0.9)
    np.testing.assert_allclose([lower, upper], np.quantile(flat, [0.05, 0.95], axis=0), rtol=1e-13)
    assert lower.attrs["probability"] == 0.9
    np.testing.assert_allclose(posterior.singular_values, np.linalg.svd(draws.C, compute_uv=False), rtol=1e-12)
    X = np.random.default_rng(1).standard_normal((9, 7))
    mean, sd = posterior.predict(X)
    each = np.einsum("ip,spq->siq", X, flat)
    np.testing.assert_allclose(mean, each.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(sd, np.sqrt(each.var(axis=0, ddof=1) + draws.sigma2.mean(axis=(0, 1))), rtol=1e-12)


def test_predictive_draws(draws, posterior):
    X = np.random.default_rng(1).standard_normal((4, 7))
    quiet = posterior.predictive_draws(X, noise=False)
    assert quiet.dims == ("chain", "draw", "row", "response")
    np.testing.assert_allclose(quiet, np.einsum("ip,cspq->csiq", X, draws.C), atol=1e-12)
    loud = posterior.predictive_draws(X, rng=np.random.default_rng(5), thin=2)
    again = posterior.predictive_draws(X, rng=np.random.default_rng(5), thin=2)
    np.testing.assert_array_equal(loud, again)
    noise = (loud.values - quiet.values[:, ::2]).swapaxes(-1, -2)
    z = np.linalg.solve(np.linalg.cholesky(draws.Sigma[:, ::2]), noise).swapaxes(-1, -2).reshape(-1, 2)
    assert len(z) == 252
    np.testing.assert_allclose(z.T @ z / len(z), np.eye(2), atol=0.2)  # independent only after Σ's own rotation
    assert loud.coords["draw"].values.tolist() == list(range(0, 41, 2))
    with pytest.raises(InputError, match="expected \\(rows, 7\\)"):
        posterior.predictive_draws(X[:, :3])


def test_arviz_puts_the_right_label_to_every_number(draws, tmp_path):
    """The summary of ArviZ 1.3 goes by the order of the variables, so C comes first, and Gamma is to be asked for alone."""
    Gamma = np.random.default_rng(3).standard_normal((3, 41, 2, 2))
    names = Names(FEATURES, ["age", "iq"], SITES, ["clinic"] * 2)
    made = Posterior.from_draws(draws, names, effects=CovariateEffects(Gamma, ("sex", "smoking")))
    theirs = arviz.from_netcdf(str(made.save(tmp_path / "fit.nc")))
    mean = arviz.summary(theirs, round_to="none")["mean"]
    alone = arviz.summary(theirs, var_names=["Gamma"], round_to="none")["mean"]
    assert "var_names=['Gamma']" in theirs["posterior"].attrs["comment_on_covariates"]
    for q, response in enumerate(("age", "iq")):
        of_C = mean[[f"C[{feature}, {response}]" for feature in FEATURES]]
        np.testing.assert_allclose(of_C, made.mean()[:, q], atol=1e-9)
        of_Gamma = alone[[f"Gamma[{covariate}, {response}]" for covariate in ("sex", "smoking")]]
        np.testing.assert_allclose(of_Gamma, Gamma.mean(axis=(0, 1))[:, q], atol=1e-9)


def test_netcdf_round_trip_and_plain_arviz(posterior, tmp_path):
    path = posterior.save(tmp_path / "fit.nc")
    back = Posterior.load(path)
    np.testing.assert_array_equal(back.C, posterior.C)
    np.testing.assert_array_equal(back.Sigma, posterior.Sigma)
    np.testing.assert_array_equal(back.sigma2, posterior.sigma2)
    np.testing.assert_array_equal(back.tau, posterior.tau)
    assert back.features == FEATURES
    assert back.C.coords["site"].values.tolist() == SITES
    assert back.attrs["study"] == back.tree.attrs["study"] == "s1"
    assert back.attrs["seconds"] == 2.5
    assert back.attrs["model"] == {"local": "row"}
    theirs = arviz.from_netcdf(str(path))
    summary = arviz.summary(theirs, round_to="none")  # of everything in the file
    ours = diagnose(back)
    of_C = summary.loc[[f"C[{feature}, {response}]" for feature in FEATURES for response in ("age", "iq")]]
    np.testing.assert_allclose(of_C["ess_bulk"].to_numpy().reshape(7, 2), ours.ess_bulk, rtol=1e-6)
    np.testing.assert_allclose(of_C["mean"].to_numpy().reshape(7, 2), back.mean(), atol=1e-9)
    assert not {"site", "response_site"} & set(theirs["posterior"].coords)  # ArviZ 1 stops at these
    assert ours.worst(1)[0]["feature"] in FEATURES
    np.testing.assert_array_equal(select(back).local_fdr, select(posterior).local_fdr)


@pytest.mark.skipif(importlib.util.find_spec("zarr") is None, reason="zarr is not installed")
def test_zarr_round_trip(posterior, tmp_path):
    back = Posterior.load(posterior.save(tmp_path / "fit.zarr"))
    np.testing.assert_array_equal(back.C, posterior.C)


def test_rank_summary_and_effective_rank(posterior):
    assert effective_rank(np.array([[1.0, 1, 1, 0]]))[0] == pytest.approx(3)
    assert effective_rank(np.array([[5.0, 0]]))[0] == pytest.approx(1)
    told = posterior.rank_summary()
    values = np.linalg.svd(posterior.C.values, compute_uv=False)
    share = values / values.sum(axis=-1, keepdims=True)
    assert told["effective_rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum(axis=-1)).mean())
    assert sum(told["share"]) == pytest.approx(1)
    assert len(told["singular_value_intervals"]) == 2


def test_draws_that_are_not_finite_still_make_a_posterior_to_look_at(draws):
    draws.C[0, 3, 1, 1] = np.nan
    posterior = Posterior.from_draws(draws)
    rank = posterior.tree["sample_stats"]["effective_rank"].values
    assert np.isnan(rank).sum() == 1
    assert "not finite" in diagnose(posterior).verdict


def test_spoilt_files_are_refused(posterior, tmp_path):
    with pytest.raises(MessageError, match="no posterior"):
        Posterior.load(tmp_path / "none.nc")
    path = posterior.save(tmp_path / "fit.nc")
    whole = path.read_bytes()
    for bytes_ in (b"", b"not a file", whole[: len(whole) // 2]):
        path.write_bytes(bytes_)
        with pytest.raises(MessageError):
            Posterior.load(path)
    other = xarray.Dataset({"mu": (("chain", "draw"), np.zeros((2, 5)))})
    xarray.DataTree.from_dict({"/posterior": other}).to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    with pytest.raises(MessageError, match="not a posterior"):
        Posterior.load(tmp_path / "other.nc")
    tree = posterior.tree
    del tree["posterior"]["Sigma"]
    tree.to_netcdf(tmp_path / "less.nc", engine="h5netcdf")
    with pytest.raises(MessageError, match="lacks"):
        Posterior.load(tmp_path / "less.nc")


def test_labels_must_fit(draws):
    with pytest.raises(InputError, match="3 feature names for 7"):
        Posterior.from_draws(draws, Names(["a", "b", "c"]))
    with pytest.raises(InputError, match="not unique"):
        Posterior.from_draws(draws, Names(responses=["a", "a"]))
    with pytest.raises(InputError, match="between 0 and 1"):
        Posterior.from_draws(draws).interval(95)
