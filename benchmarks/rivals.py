"""What a user might choose instead, each timed on the same rows: samplers for 1,000 effective draws, others for one fit.

Every function runs in a child process (`benchmarks.child`) and gives rows as it gets on. The samplers run two chains; the
processor time for 1,000 effective draws counts sweeps after the warm-up alone, for the coefficient in the middle and for the
slowest one.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from benchmarks import child
from benchmarks.sampler import sketched
from intarsia.lab.simulate import Scenario
from intarsia.server.assess.diagnostics import entries

EARLY = 1.05  # R̂ above which the effective sample size is not to be believed


def rows_of(rows: int, P: int, Q: int) -> tuple[np.ndarray, np.ndarray]:
    """Sketched rows of a simulated study with five times as many subjects, 10 % (at most 30) signals, ρ = .5."""
    return sketched(Scenario(n=5 * rows, P=P, Q=Q, s=min(30, P // 10), rho=0.5), rows, seed=7)


def effective(C: np.ndarray, seconds_per_draw: float) -> dict[str, Any]:
    """Seconds for 1,000 effective draws of C (chain, draw, P, Q), when a draw of one chain takes `seconds_per_draw`."""
    found, draws = entries(C), C.shape[0] * C.shape[1]
    each = 1000 * seconds_per_draw * draws / found["ess_bulk"]
    return {
        "s_per_1000_median": float(np.median(each)), "s_per_1000_worst": float(each.max()),
        "rhat_max": float(found["rhat"].max()), "ess_min": float(found["ess_bulk"].min()), "draws": draws,
        "settled": bool(found["rhat"].max() < EARLY),
    }  # fmt: skip


def ours(rows: int, P: int, Q: int, draws: int, warmup: int) -> Iterator[dict[str, Any]]:
    from intarsia.server.sampler.horseshoe.sample import sample
    from intarsia.server.sampler.settings import Settings

    run = Settings(draws=8, warmup=8, chains=2, thin=1, seed=1, workers=1)
    sample(*rows_of(20, 30, Q), settings=run)  # compiles
    yield {"imports_mb": child.high_mb()}
    found = sample(*rows_of(rows, P, Q), settings=replace(run, draws=draws, warmup=warmup))
    each = median(found.info["ms_per_sweep"]) / 1e3
    found = effective(found.C, each)
    yield {"ms_per_sweep": 1e3 * each, "seconds": 2 * each * (draws + warmup), **found}


def paper(rows: int, P: int, Q: int, draws: int, warmup: int, budget: float) -> Iterator[dict[str, Any]]:
    """The paper's sampler: time of its Kronecker sweeps; effective draws of its kernel from cheaper algebra (the same draws)."""
    from intarsia.lab.baselines import paper_kron

    X, Y = rows_of(rows, P, Q)
    rng, times = np.random.default_rng(1), []
    state = paper_kron.start(X, Y, rng)
    while len(times) < 9 and sum(times) < budget / 3:
        begin = time.process_time()
        state = paper_kron.sweep(X, Y, state, rng)
        times.append(time.process_time() - begin)
        yield {"ms_per_sweep": 1e3 * median(times)}
    fast = paper_kron.Variant(structured=True)
    chains = [paper_kron.run(X, Y, rng, draws=draws, warmup=warmup, variant=fast, seconds=budget / 4).C for _ in range(2)]
    kept = min(len(C) for C in chains)
    yield effective(np.stack([C[:kept] for C in chains]), median(times))


def nuts(rows: int, P: int, Q: int, draws: int, warmup: int, budget: float) -> Iterator[dict[str, Any]]:
    """NumPyro's NUTS on our default model: stretches of the two chains in turn until the draws or the budget are used up."""
    import jax
    from numpyro.infer import NUTS

    from benchmarks.nuts import model

    yield {"imports_mb": child.high_mb()}
    jax.config.update("jax_enable_x64", True)
    X, Y = rows_of(rows, P, Q)
    began, stretch = time.process_time(), 25
    kernel = NUTS(model(X, Y, "row"), target_accept_prob=0.9)
    states = [kernel.init(jax.random.PRNGKey(seed), warmup, None, (), {}) for seed in (0, 1)]
    constrain = jax.jit(jax.vmap(kernel.postprocess_fn((), {})))

    @jax.jit
    def run(state: Any) -> Any:
        return jax.lax.scan(lambda s, _: ((new := kernel.sample(s, (), {})), new.z), state, None, length=stretch)

    run = run.lower(states[0]).compile()
    yield {"compiling_s": time.process_time() - began}
    kept: list[list[np.ndarray]] = [[], []]
    made, spent, began = 0, 0.0, time.process_time()
    while made < warmup + draws and time.process_time() - began < budget:
        begin = time.process_time()
        for k in (0, 1):
            states[k], z = run(states[k])
            kept[k].append(np.asarray(constrain(z)["C"]))
        made, last = made + stretch, time.process_time() - begin
        if made <= warmup:
            kept = [[], []]
            yield {"warmed_up": made, "ms_per_sweep": 1e3 * last / (2 * stretch)}
            continue
        spent += last
        each = spent / (2 * stretch * len(kept[0]))
        yield {"ms_per_sweep": 1e3 * each, **effective(np.stack([np.concatenate(C) for C in kept]), each)}


def elastic_net(rows: int, P: int, Q: int) -> Iterator[dict[str, Any]]:
    """scikit-learn's MultiTaskElasticNetCV as it comes but for three folds and twenty penalties."""
    from intarsia.lab.baselines import ElasticNet

    yield from fits(ElasticNet(), rows, P, Q)


def locus(rows: int, P: int, Q: int) -> Iterator[dict[str, Any]]:
    from intarsia.lab.baselines import Locus

    yield from fits(Locus(), rows, P, Q)


def fits(baseline: Any, rows: int, P: int, Q: int) -> Iterator[dict[str, Any]]:
    """Seconds per fit: the median of up to three."""
    X, Y = rows_of(rows, P, Q)
    times: list[float] = []
    while len(times) < 3 and sum(times) < 10:
        begin = time.process_time()
        baseline.fit(X, Y)
        times.append(time.process_time() - begin)
        yield {"seconds": median(times), "fits": len(times)}
