"""The row- and element-scale models in NumPyro, written from their priors: for agreement and for comparison of speed."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def model(X: np.ndarray, Y: np.ndarray, local: str, noise: str = "correlated") -> Callable[[], Any]:
    """The model of X (m×P) and Y (m×Q), R = Q, B = z·lam·tau non-centred; its noise `correlated` or `independent`."""
    P, Q = X.shape[1], Y.shape[1]
    scale = np.sqrt((Y**2).mean(axis=0))

    def sampled() -> None:
        lam = numpyro.sample("lam", dist.HalfCauchy(jnp.ones((P, Q) if local == "element" else (P, 1))).to_event(2))
        tau = numpyro.sample("tau", dist.HalfCauchy(jnp.ones(Q)).to_event(1))
        A = numpyro.sample("A", dist.Normal(jnp.zeros((Q, Q)), 1.0).to_event(2))
        z = numpyro.sample("z", dist.Normal(jnp.zeros((P, Q)), 1.0).to_event(2))
        C = numpyro.deterministic("C", (z * lam * tau) @ A.T)
        if noise == "independent" or Q == 1:
            sigma = numpyro.sample("sigma", dist.HalfCauchy(scale).to_event(1))
            numpyro.deterministic("Sigma", jnp.diag(sigma**2))
            numpyro.sample("Y", dist.Normal(X @ C, sigma).to_event(2), obs=Y)
            return
        L = root(scale)
        numpyro.deterministic("Sigma", L @ L.T)
        numpyro.sample("Y", dist.MultivariateNormal(X @ C, scale_tril=L).to_event(1), obs=Y)

    return sampled


def root(scale: np.ndarray, nu: float = 2.0) -> Any:
    """Cholesky's factor of Sigma | a ~ IW(nu + Q - 1, 2 nu diag(1/a)), a_q ~ IG(1/2, 1/scale_q²) (Huang & Wand 2013)."""
    Q = len(scale)
    a = numpyro.sample("a", dist.InverseGamma(jnp.full(Q, 0.5), 1 / scale**2).to_event(1))
    free = dist.constraints.lower_cholesky
    L = numpyro.sample("L", dist.ImproperUniform(free, (), (Q, Q)))
    diagonal = jnp.diagonal(L)
    inverse = jnp.linalg.inv(L)
    degrees = nu + Q - 1
    density = -(degrees + Q + 1) * jnp.log(diagonal).sum() - nu * ((inverse**2).sum(axis=0) / a).sum()
    density = density - degrees / 2 * jnp.log(a).sum()  # the inverse Wishart's normaliser knows a
    volume = ((Q - jnp.arange(Q)) * jnp.log(diagonal)).sum()  # from L to Sigma = LLᵀ
    numpyro.factor("Sigma's prior", density + volume)
    return L
