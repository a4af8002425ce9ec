"""The row- and element-scale models in NumPyro, written from their priors: for agreement and for comparison of speed."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def model(X: np.ndarray, Y: np.ndarray, local: str) -> Callable[[], Any]:
    """The model of X (m×P) and Y (m×Q), R = Q, B = z·lam·tau non-centred; half-Cauchy noise on the responses' scale."""
    P, Q = X.shape[1], Y.shape[1]
    scale = np.sqrt((Y**2).mean(axis=0))

    def sampled() -> None:
        lam = numpyro.sample("lam", dist.HalfCauchy(jnp.ones((P, Q) if local == "element" else (P, 1))).to_event(2))
        tau = numpyro.sample("tau", dist.HalfCauchy(jnp.ones(Q)).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(scale).to_event(1))
        A = numpyro.sample("A", dist.Normal(jnp.zeros((Q, Q)), 1.0).to_event(2))
        z = numpyro.sample("z", dist.Normal(jnp.zeros((P, Q)), 1.0).to_event(2))
        C = numpyro.deterministic("C", (z * lam * tau) @ A.T)
        numpyro.sample("Y", dist.Normal(X @ C, sigma).to_event(2), obs=Y)

    return sampled
