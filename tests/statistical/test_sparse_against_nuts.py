"""Agreement with an independent implementation: NumPyro's NUTS on the sparse model with every inclusion summed out."""

import itertools

import numpy as np
import pytest

from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.sparse.sample import SparseModel, sample

P, Q, M = 4, 2, 14


def data():
    """Columns and responses of mean square 1, as the sampler's priors ask."""
    rng = np.random.default_rng(11)
    X = rng.standard_normal((M, P))
    X[:, 1] = 0.8 * X[:, 0] + 0.6 * X[:, 1]
    Y = np.outer(X[:, 0], [0.9, 0.5]) + np.outer(X[:, 2], [0.0, 0.7]) + 0.8 * rng.standard_normal((M, Q))
    return X / np.sqrt(np.square(X).mean(axis=0)), Y / np.sqrt(np.square(Y).mean(axis=0))


def nuts(X, Y):
    """Inclusion probabilities, those of each response, and draws of log noise variances and of log π."""
    jax = pytest.importorskip("jax")
    numpyro = pytest.importorskip("numpyro")
    import jax.numpy as jnp
    import numpyro.distributions as dist
    from jax.scipy.special import logsumexp
    from numpyro.infer import MCMC, NUTS

    patterns = list(itertools.product([0.0, 1.0], repeat=Q))
    models = np.array(list(itertools.product(patterns, repeat=P)))  # (models, P, Q)

    def logs(Sigma, V, pi, rho):
        """Log joint probability of the data and each model, its effects integrated out."""
        K = jnp.asarray(models)
        within = K[:, :, :, None] * V * K[:, :, None, :]  # covariance of each feature's effects
        cov = jnp.einsum("ip,kpqr,jp->kiqjr", X, within, X).reshape(len(models), M * Q, M * Q)
        root = jnp.linalg.cholesky(cov + jnp.kron(jnp.eye(M), Sigma))
        z = jax.vmap(lambda L: jax.scipy.linalg.solve_triangular(L, Y.reshape(-1), lower=True))(root)
        fit = -0.5 * (z**2).sum(axis=1) - jnp.log(jnp.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        anywhere = K.max(axis=2)
        of_patterns = (K * jnp.log(rho) + (1 - K) * jnp.log1p(-rho)).sum(axis=2) - jnp.log1p(-jnp.prod(1 - rho))
        return fit + (anywhere * (jnp.log(pi) + of_patterns) + (1 - anywhere) * jnp.log1p(-pi)).sum(axis=1)

    def model():
        Sigma = jnp.linalg.inv(numpyro.sample("noise", dist.Wishart(Q + 2.0, jnp.eye(Q) / 0.3)))
        s = numpyro.sample("spread", dist.Gamma(2.0, 20.0))
        V = jnp.linalg.inv(numpyro.sample("slab", dist.Wishart(2 * Q + 10.0, jnp.eye(Q) / ((Q + 9) * s))))
        pi = numpyro.sample("pi", dist.Beta(1.0, P / 3.0))
        rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0).expand([Q]).to_event(1))
        mostly = dist.Beta(20.0, 1.0).log_prob(rho).sum()
        numpyro.factor("everywhere", jnp.logaddexp(jnp.log(0.7), jnp.log(0.3) + mostly))
        joint = logs(Sigma, V, pi, rho)
        numpyro.factor("data", logsumexp(joint))
        numpyro.deterministic("model", jnp.exp(joint - logsumexp(joint)))
        numpyro.deterministic("log noise", jnp.log(jnp.diagonal(Sigma)))

    jax.config.update("jax_enable_x64", True)
    try:
        how = NUTS(model, target_accept_prob=0.9)
        mcmc = MCMC(how, num_warmup=500, num_samples=1500, num_chains=2, chain_method="sequential", progress_bar=False)
        mcmc.run(jax.random.PRNGKey(1))
        got = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    finally:
        jax.config.update("jax_enable_x64", False)
    acting = np.tensordot(got["model"], models, 1)  # (chain, draw, P, Q)
    inside = np.tensordot(got["model"], models.max(axis=2), 1)
    return inside, acting, got["log noise"], np.log(got["pi"])


def mean_and_error(traces):
    """Of traces (chain, draw, …), the error by batches."""
    flat = traces.reshape(traces.shape[0], 10, -1, *traces.shape[2:]).mean(axis=2)
    batches = flat.reshape(-1, *traces.shape[2:])
    return batches.mean(axis=0), batches.std(axis=0, ddof=1) / np.sqrt(len(batches))


@pytest.mark.slow
def test_inclusion_noise_and_prior_agree_with_nuts():
    X, Y = data()
    theirs = [mean_and_error(traces) for traces in nuts(X, Y)]
    run = sample(X, Y, SparseModel(compare=False), Settings(draws=20_000, warmup=500, chains=4, seed=1))
    dense = run.effects.dense()
    ours = [
        mean_and_error((dense != 0).any(axis=3).astype(float)), mean_and_error((dense != 0).astype(float)),
        mean_and_error(np.log(np.diagonal(run.Sigma, axis1=2, axis2=3))),
        mean_and_error(np.log(run.parameters["prior_inclusion"])),
    ]  # fmt: skip
    for (mean, error), (other, of_other) in zip(theirs, ours, strict=True):
        z = (mean - other) / np.sqrt(error**2 + of_other**2)
        assert np.abs(z).max() < 4.5, (mean, other, z)
        assert max(error.max(), of_other.max()) < 0.03  # close enough to tell
