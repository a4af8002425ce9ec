"""The joint law of parameters and data, sampled in two ways (Geweke 2004), for the sparse engine and for copies with a bug.

Once parameters are drawn from the prior; once a sweep and new data given the parameters take turns. Where the sweep leaves
the posterior as it is, both give the same law.
"""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

import intarsia.server.sampler.sparse as package
from intarsia.server.assess.diagnostics import ess
from intarsia.server.sampler.sparse import laws, problem, state

MODULES = ("state", "scan", "places", "together", "laws", "sweep")


def copy_with(*changes: tuple[str, str, str]) -> Any:
    """The engine's modules as plain Python, with pieces of text replaced: (module, what stands there, what shall)."""
    texts = {name: (Path(package.__file__).parent / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
    for module, old, new in changes:
        assert texts[module].count(old) == 1, (module, old, texts[module].count(old))
        texts[module] = texts[module].replace(old, new)
    made: dict[str, Any] = {}
    for name in MODULES:
        text = texts[name].replace("from intarsia.server.sampler import compiled", "compiled = lambda f: f")
        for other in MODULES:
            text = text.replace(f"intarsia.server.sampler.sparse.{other} ", f"intarsia_copy_{other} ")
        module = types.ModuleType(f"intarsia_copy_{name}")
        sys.modules[module.__name__] = module
        exec(compile(text, name, "exec"), module.__dict__)
        made[name] = module
    return types.SimpleNamespace(**made)


def case(P: int = 6, m: int = 7, Q: int = 2, *, background: bool = True, looked_at: float = 9.0, **options: Any) -> Any:
    """A small problem whose priors are narrow enough for moments to exist; the data are to be drawn."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((m, P))
    X[:, 1] = 0.8 * X[:, 0] + 0.6 * X[:, 1]
    prior = problem.Prior(looked_at, **options)
    made, _scales = problem.prepare(X, rng.standard_normal((m, Q)), prior, background=background)
    return made


def prior_draw(made: Any, rng: np.random.Generator, rank: int = 0) -> Any:
    """Parameters from the prior, in the form of a state."""
    P, Q = made.X.shape[0], made.Y.shape[1]
    st = problem.start(made, rng, rank=rank)
    unseen = made.looked_at - P  # features that were looked at and are out
    st.scalars[state.PI] = rng.beta(1, made.looked_at / made.expected + unseen)
    if Q > 1:
        a = laws.MOSTLY if rng.random() < laws.EVERYWHERE else 1.0
        st.rho[:] = np.clip(rng.beta(a, 1.0, Q), 1e-6, 1 - 1e-6)
    degrees = 2.0 * Q + laws.SLAB_DEGREES
    if rank:
        st.scalars[state.SPREAD] = 0.02 / rng.standard_gamma(2.0)
        st.loadings[:] = rng.standard_normal((Q, rank)) * np.sqrt(laws.SPREAD_MEAN / rank)
        st.V[:] = st.loadings @ st.loadings.T + st.scalars[state.SPREAD] * np.eye(Q)
    else:
        st.scalars[state.SPREAD] = rng.gamma(laws.SPREAD_SHAPE, laws.SPREAD_MEAN / laws.SPREAD_SHAPE)
        st.V[:] = laws.inverse_wishart(rng, degrees, (Q + 9.0) * st.scalars[state.SPREAD] * np.eye(Q))
    st.Sigma[:] = laws.inverse_wishart(rng, Q + laws.NOISE_DEGREES, laws.NOISE_SCATTER * np.eye(Q))
    if made.independent:
        st.Sigma[:] = np.diag(0.5 * laws.NOISE_SCATTER / rng.standard_gamma((1 + laws.NOISE_DEGREES) / 2, Q))
    st.scalars[state.RATIO] = rng.choice(made.ratios.size, p=np.exp(made.ratio_prior) / np.exp(made.ratio_prior).sum())
    root = np.linalg.cholesky(st.V)
    k = 0
    for p in range(P):
        if rng.random() < st.scalars[state.PI]:
            acts = np.ones(1, dtype=bool) if Q == 1 else rng.random(Q) < st.rho
            while not acts.any():
                acts = rng.random(Q) < st.rho
            st.slot[p], st.feature[k], st.acts[k] = k, p, acts
            st.effect[k] = np.where(acts, root @ rng.standard_normal(Q), 0.0)
            k += 1
    st.count[0] = k
    return st


def new_data(made: Any, st: Any, rng: np.random.Generator) -> None:
    """Y given the parameters, in place. Only with every row within the features' reach and the likelihood's power 1."""
    w = made.ratios[int(st.scalars[state.RATIO])]
    noise = rng.standard_normal(made.Y.shape) @ np.linalg.cholesky(st.Sigma).T
    made.Y[:] = made.X.T @ state.dense_effects(st) + np.sqrt(1 + w * made.d)[:, None] * noise


def looks(made: Any, st: Any) -> np.ndarray:
    """Functions of parameters and data whose moments are compared."""
    k = int(st.count[0])
    B, pi, spread = state.dense_effects(st), st.scalars[state.PI], st.scalars[state.SPREAD]
    Y = made.Y / np.sqrt(np.diagonal(st.Sigma))
    values = [
        k, k * k, k == 0, st.acts[:k].sum(), st.acts[:k, 0].sum(), (st.acts[:k].all(axis=1)).sum(), np.log(pi), np.log(spread),
        st.scalars[state.RATIO], st.scalars[state.RATIO] == 0, np.linalg.slogdet(st.Sigma)[1], np.linalg.slogdet(st.V)[1],
        np.log(st.rho).sum(), np.log1p(-st.rho).sum(), np.tanh(B[0]).sum(), np.tanh(5 * B[1, 0]), np.tanh(5 * np.abs(B)).sum(),
        np.tanh(B[0] @ B[1] * 20), np.tanh((Y * Y).sum() / 50), np.tanh((made.X.T @ B * Y).sum() / 10),
    ]  # fmt: skip
    if B.shape[1] > 1:
        V, S = st.V, st.Sigma
        values += [
            V[0, 1] / np.sqrt(V[0, 0] * V[1, 1]),
            S[0, 1] / np.sqrt(S[0, 0] * S[1, 1]),
            np.tanh(50 * (B[:, 0] * B[:, 1]).sum()),
        ]
    return np.array(values, dtype=float)


def of_card(chain: Any) -> Any:
    """The position of a chain of an accelerator, as a state of all features."""
    st, k = problem.start(chain.whole, np.random.default_rng(0)), len(chain.ids)
    st.slot[chain.ids], st.feature[:k], st.count[0] = np.arange(k), chain.ids, k
    st.acts[:k], st.effect[:k] = chain.acts, chain.effect
    for name in ("Sigma", "V", "rho", "scalars"):
        getattr(st, name)[:] = getattr(chain, name)
    return st


def differences_on_card(made: Any, chains: int, sweeps: int, near: Any = None, seed: int = 1, direct: int = 20_000) -> np.ndarray:
    """As `differences`, of an accelerator's sweeps: many chains, each begun at a draw from the joint law."""
    from intarsia.server.sampler.sparse.card import CardChains
    from intarsia.server.sampler.sparse.card_problem import from_host

    rng, wanted = np.random.default_rng(seed), []
    for _ in range(direct):
        st = prior_draw(made, rng)
        new_data(made, st, rng)
        wanted.append(looks(made, st))
    starts = [prior_draw(made, rng) for _ in range(chains)]
    card = CardChains(from_host(made, width=4), seed, range(chains), starts)
    for chain, st in zip(card.all.chains, starts, strict=True):
        chain.whole = made._replace(Y=made.Y.copy())
        chain.problem = chain.problem._replace(Y=chain.whole.Y)
        new_data(chain.whole, st, rng)
        if near is not None:
            at = np.array(near, dtype=np.int64)
            chain.know(at, made.X[at])
    means = np.zeros((chains, len(wanted[0])))
    for _ in range(sweeps):
        card.advance(1, keep=False)
        for c, chain in enumerate(card.all.chains):
            st = of_card(chain)
            new_data(chain.whole, st, rng)
            means[c] += looks(chain.whole, st) / sweeps
    spread = np.var(wanted, axis=0) / direct + means.var(axis=0, ddof=1) / chains
    return np.asarray((np.mean(wanted, axis=0) - means.mean(axis=0)) / np.sqrt(np.maximum(spread, 1e-300)))


def differences(made: Any, sweep: Any, number: int, seed: int = 1, rank: int = 0, near: Any = None) -> np.ndarray:
    """Standardised differences of the means of all looks, between the two ways."""
    rng = np.random.default_rng(seed)
    direct = np.empty((number, len(looks(made, prior_draw(made, rng, rank)))))
    for t in range(number):
        st = prior_draw(made, rng, rank)
        new_data(made, st, rng)
        direct[t] = looks(made, st)
    st = prior_draw(made, rng, rank)
    if near is not None:
        st = st._replace(near=np.array(near))
    new_data(made, st, rng)
    P, Q = made.X.shape[0], made.Y.shape[1]
    wide = np.zeros((P, Q), np.float32)
    trace = state.Trace(np.zeros(P, np.float32), np.zeros(P, np.int32), wide, wide.copy(), np.zeros(1, np.int64))
    chain = np.empty_like(direct)
    for t in range(number):
        sweep(rng, made, st, trace)
        new_data(made, st, rng)
        chain[t] = looks(made, st)
    effective = np.minimum(ess(chain.T[:, None]), number)
    spread = direct.var(axis=0) / number + chain.var(axis=0) / effective
    return (direct.mean(axis=0) - chain.mean(axis=0)) / np.sqrt(np.maximum(spread, 1e-300))
