"""Agreement with an independent implementation: NumPyro's NUTS on the same model, written there from its priors."""

import numpy as np
import pytest

from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings


def nuts(X, Y, local, noise, draws=4000, seed=0):
    jax = pytest.importorskip("jax")
    pytest.importorskip("numpyro")
    from numpyro.infer import MCMC, NUTS
    from tests.statistical.nuts_model import model

    jax.config.update("jax_enable_x64", True)
    mcmc = MCMC(
        NUTS(model(X, Y, local, noise), target_accept_prob=0.95), num_warmup=2000, num_samples=draws, num_chains=4,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.PRNGKey(seed))
    got = mcmc.get_samples(group_by_chain=True)
    return np.asarray(got["C"]), np.asarray(got["Sigma"])


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["correlated", "independent"])
@pytest.mark.parametrize("local", ["row", "element"])
def test_means_and_sds_agree_with_nuts(local, noise):
    from intarsia.server.assess.convergence import diagnose

    rng = np.random.default_rng(7)
    X = rng.standard_normal((30, 5))
    C = np.zeros((5, 2))
    C[0], C[1] = [1.0, -0.8], [0.4, 0.3]
    Y = X @ C + rng.standard_normal((30, 2)) @ np.array([[0.7, 0.4], [0.0, 0.5]])
    theirs, their_Sigma = nuts(X, Y, local, noise)
    ours = sample(X, Y, Model(local=local, noise=noise), Settings(draws=4000, warmup=1000, chains=4, thin=3, seed=1))
    a, b = diagnose(theirs), diagnose(ours.C)
    sd = ours.C.std((0, 1))
    error = np.hypot(sd / np.sqrt(a.ess_bulk), sd / np.sqrt(b.ess_bulk))
    assert np.abs(theirs.mean((0, 1)) - ours.C.mean((0, 1))).max() < 5 * error.max()
    np.testing.assert_allclose(theirs.std((0, 1)), sd, rtol=0.1)
    np.testing.assert_allclose(np.median(their_Sigma, (0, 1)), np.median(ours.Sigma, (0, 1)), rtol=0.05)
