"""Agreement with an independent implementation: NumPyro's NUTS on the same model, written there from its priors."""

import numpy as np
import pytest

from intarsia.server.chains import sample
from intarsia.server.gibbs import Model


def nuts(X, Y, local, draws=4000, seed=0):
    jax = pytest.importorskip("jax")
    pytest.importorskip("numpyro")
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    P = X.shape[1]
    Q = Y.shape[1]
    scale = np.sqrt((Y**2).mean(axis=0))

    def model():
        lam = numpyro.sample("lam", dist.HalfCauchy(jnp.ones((P, Q) if local == "element" else (P, 1))).to_event(2))
        tau = numpyro.sample("tau", dist.HalfCauchy(jnp.ones(Q)).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(scale).to_event(1))
        A = numpyro.sample("A", dist.Normal(jnp.zeros((Q, Q)), 1.0).to_event(2))
        z = numpyro.sample("z", dist.Normal(jnp.zeros((P, Q)), 1.0).to_event(2))
        C = numpyro.deterministic("C", (z * lam * tau) @ A.T)
        numpyro.sample("Y", dist.Normal(X @ C, sigma).to_event(2), obs=Y)

    mcmc = MCMC(
        NUTS(model, target_accept_prob=0.95), num_warmup=2000, num_samples=draws, num_chains=4,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.PRNGKey(seed))
    got = mcmc.get_samples(group_by_chain=True)
    return np.asarray(got["C"]), np.asarray(got["sigma"]) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("local", ["row", "element"])
def test_means_and_sds_agree_with_nuts(local):
    from intarsia.server.diagnostics import diagnose

    rng = np.random.default_rng(7)
    X = rng.standard_normal((30, 5))
    C = np.zeros((5, 2))
    C[0], C[1] = [1.0, -0.8], [0.4, 0.3]
    Y = X @ C + 0.7 * rng.standard_normal((30, 2))
    theirs, their_sigma2 = nuts(X, Y, local)
    ours = sample(X, Y, Model(local=local), draws=4000, warmup=1000, chains=4, thin=3, seed=1)
    a, b = diagnose(theirs), diagnose(ours.C)
    sd = ours.C.std((0, 1))
    error = np.hypot(sd / np.sqrt(a.ess_bulk), sd / np.sqrt(b.ess_bulk))
    assert np.abs(theirs.mean((0, 1)) - ours.C.mean((0, 1))).max() < 5 * error.max()
    np.testing.assert_allclose(theirs.std((0, 1)), sd, rtol=0.1)
    np.testing.assert_allclose(np.median(their_sigma2, (0, 1)), np.median(ours.sigma2, (0, 1)), rtol=0.05)
