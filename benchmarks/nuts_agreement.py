"""Agreement with an independent implementation: NumPyro's NUTS on the same model, `python -m benchmarks.nuts_agreement --jobs 8`.

Row and element scales, correlated and independent noise, two sizes. For every entry of C: the difference of the means in
units of its Monte Carlo error, and the ratio of the standard deviations; medians of Sigma likewise. Rows go to
benchmarks/results/nuts_agreement.json.
"""

import os
from pathlib import Path
from typing import Any

from benchmarks import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from intarsia.server.assess.convergence import diagnose
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings

RESULT = Path(__file__).parent / "results" / "nuts_agreement.json"
SIZES = {(30, 5, 2): 0.5, (40, 12, 3): 0.7}  # m, P, Q: correlation of the noise
Task = tuple[int, int, int, str, str]  # m, P, Q, local, noise


def key(task: Task) -> resumed.Row:
    return dict(zip(("m", "P", "Q", "local", "noise"), task, strict=True))


def problem(m: int, P: int, Q: int) -> tuple[np.ndarray, np.ndarray]:
    rng, rho = np.random.default_rng([m, P, Q]), SIZES[m, P, Q]
    X, C = rng.standard_normal((m, P)), np.zeros((P, Q))
    C[:2] = 0.7 * rng.standard_normal((2, Q))
    return X, X @ C + np.sqrt(rho) * rng.standard_normal((m, 1)) + np.sqrt(1 - rho) * rng.standard_normal((m, Q))


def theirs(X: np.ndarray, Y: np.ndarray, local: str, noise: str, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of C and Sigma, (chain, draw, …)."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    from numpyro.infer import MCMC, NUTS

    from benchmarks.nuts import model

    jax.config.update("jax_enable_x64", True)
    kernel = NUTS(model(X, Y, local, noise), target_accept_prob=0.95)
    run = MCMC(kernel, num_warmup=draws // 2, num_samples=draws, num_chains=4, chain_method="sequential", progress_bar=False)
    run.run(jax.random.PRNGKey(0))
    got = run.get_samples(group_by_chain=True)
    return np.asarray(got["C"]), np.asarray(got["Sigma"])


def one(task: Task, draws: int = 4000) -> resumed.Row:
    m, P, Q, local, noise = task
    X, Y = problem(m, P, Q)
    C, Sigma = theirs(X, Y, local, noise, draws)
    ours = sample(X, Y, Model(local=local, noise=noise), Settings(draws, 1000, 4, 3, 1, workers=1))
    a, b = diagnose(C, workers=1), diagnose(ours.C, workers=1)
    sd = ours.C.std((0, 1))
    error = sd * np.sqrt(1 / a.ess_bulk + 1 / b.ess_bulk)
    ratio = C.std((0, 1)) / sd
    medians = np.median(Sigma, (0, 1)), np.median(ours.Sigma, (0, 1))
    size = np.sqrt(np.outer(np.diag(medians[1]), np.diag(medians[1])))
    found: dict[str, Any] = {
        "largest_z": np.abs((C.mean((0, 1)) - ours.C.mean((0, 1))) / error).max(), "sd_ratio_least": ratio.min(),
        "sd_ratio_most": ratio.max(), "Sigma_difference": np.abs((medians[0] - medians[1]) / size).max(),
        "rhat_nuts": np.nanmax(a.rhat), "rhat_ours": np.nanmax(b.rhat), "ess_nuts": np.nanmin(a.ess_bulk),
        "ess_ours": np.nanmin(b.ess_bulk),
    }  # fmt: skip
    return {name: round(float(value), 4) for name, value in found.items()}


def main() -> None:
    args = resumed.options(__doc__, RESULT, 1).parse_args()
    tasks = [(*size, local, noise) for size in SIZES for local in ("row", "element") for noise in ("correlated", "independent")]
    tasks.sort(key=lambda task: -task[1])
    resumed.gather(tasks, key, one, args.out, args.jobs)


if __name__ == "__main__":
    main()
