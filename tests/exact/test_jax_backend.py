"""The sweep on JAX: same noise in, same state out as NumPy, for every kind of model; and the random numbers of its own."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest
from sweep_cases import CASES, close, problem

from intarsia.server.sampler import adapt, backends, conditionals, device, exchange, without_b
from intarsia.server.sampler.exchange import Alike
from intarsia.server.sampler.schedule import DEEP, FULL, LIGHT, PLAIN, SHORT, Sweep, draw_noise, with_start
from intarsia.server.sampler.sparse_start import sparse_start
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.state import State, Tuning, prepare
from intarsia.server.sampler.sweep import factored, strength, sweep

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402

from intarsia.server.sampler.backends.jax import by_panels, split_gram  # noqa: E402

NUMPY, JAX = backends.get("numpy"), backends.on_device()


def readable(**options):
    X, Y, plan = problem(**options)
    return X, Y, replace(plan, compiled=False)


# Laws and shapes whose steps other cases make too: each costs a compilation.
ALSO = {"row, student", "row, jeffreys", "row, one feature", "row, some blocks", "element, student", "element, independent noise"}
ALSO |= {"row, independent noise, P < m", "element, P < m", "row, fractional", "row, group lasso", "row, small tau"}
ALSO |= {"row, rank 2", "row, independent noise", "element, lasso"}
assert set(CASES) > ALSO


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(pytest.param(name, FULL, marks=[pytest.mark.slow] if name in ALSO else []) for name in CASES),
        *(("row, factored", FULL), ("row", LIGHT), ("row", SHORT)),
    ],
)
def test_the_same_noise_gives_the_same_state(name, kind, monkeypatch):
    """Forty sweeps with adaptation; each starts from NumPy's state, so that rounding cannot add up to another decision."""
    if "factored" in name:  # as systems of middle size are: Cholesky factors in place of eigenvalues
        monkeypatch.setattr("intarsia.server.sampler.backends.jax.SMALL", 0)
    X, Y, plan = readable(**CASES.get(name, {}))
    rng = np.random.default_rng(1)
    warmup = 40
    with JAX.precision():
        here, there = (prepare(be, X, Y, block=plan.block) for be in (NUMPY, JAX))
        state = initial(plan, here, rng)
        tuning, memory = initial_tuning(plan), adapt.start(plan)

        @jax.jit
        def step(state, tuning, memory, noise, number):
            data = there._replace(m=float(plan.m))
            new, stats = sweep(Sweep(JAX, plan, data, tuning, noise, kind), state)
            seen = adapt.Seen(number, warmup, kind, stats, strength(JAX, plan, data, new))
            return new, *adapt.adapt(JAX, plan, tuning, memory, seen)

        moved = 0
        for number in range(warmup):
            noise = draw_noise(plan, rng, kind)
            other = step(state, tuning, memory, noise, number)
            with np.errstate(all="ignore"):
                state, stats = sweep(Sweep(NUMPY, plan, here, tuning, noise, kind), state)
            moved += int(np.asarray(stats.steps).sum() + np.asarray(stats.single).sum())
            seen = adapt.Seen(number, warmup, kind, stats, strength(NUMPY, plan, here, state))
            tuning, memory = adapt.adapt(NUMPY, plan, tuning, memory, seen)
            for one, two in zip((state, tuning, memory), other, strict=True):
                close(one, two)
    assert moved or not (plan.mixing and (kind.collapse or kind.sites))


LARGE, SMALL = (SHORT, FULL), (DEEP, LIGHT, PLAIN)


@pytest.mark.parametrize(
    ("costly", "kinds"), [(0, LARGE), pytest.param(2e7, SMALL, marks=pytest.mark.slow)], ids=["large", "small"]
)
def test_the_compiled_schedule_makes_the_sweeps_of_a_chain(monkeypatch, costly, kinds):
    """A round of full, light and shorter sweeps that share G where they can, against NumPy's with the same random numbers."""
    monkeypatch.setattr("intarsia.server.sampler.schedule.COSTLY", costly)
    X, Y, plan = readable(P=40)
    assert {plan.kind(i) for i in range(plan.every)} == set(kinds)
    with JAX.precision():
        here, there = (prepare(be, X, Y, block=plan.block) for be in (NUMPY, JAX))
        runner = device.Runner(plan, there, be=JAX)
        chains = jax.tree.map(lambda x: x[0], runner.start(1, 1))
        G, step = runner._stepper(there, None)
        step = jax.jit(step)
        factor = None
        for i in range(plan.every + 2):
            kind, state = plan.kind(i), State(*map(np.asarray, chains.state))
            tuning = Tuning(*map(np.asarray, chains.tuning))
            noise = {name: np.asarray(x) for name, x in JAX.draw_noise(plan, chains.words, kind)[1].items()}
            if not kind.collapse:
                same = factor is not None and np.array_equal(factor.lam, state.lam)
                factor = factor if same else factored(NUMPY, plan, here, state)
            with np.errstate(all="ignore"):
                wanted, _ = sweep(Sweep(NUMPY, plan, here, tuning, noise, kind, None if kind.collapse else factor), state)
            chains, G = step(chains, G, i, i == 0)
            close(wanted, chains.state, 1e-9)


@pytest.mark.parametrize("alike", [False, True])
def test_the_sweep_of_many_features_is_numpy_s(monkeypatch, alike):
    """Scores in the warm-up, all scales of a block at once, look-alikes that exchange theirs: as an accelerator runs it, against
    NumPy with the same noise.
    """
    for name, value in (("SEARCHED", 20), ("WIDE_FROM", 20), ("WIDE_RESHAPES", 4)):
        monkeypatch.setattr(f"intarsia.server.sampler.schedule.{name}", value)
    X, Y, plan = problem(P=90)
    found = sparse_start(X, Y)
    sets = Alike(np.array([[0, 5, 6, 7], [9, 20, 9, 9]]), np.array([4, 2])) if alike else None
    found = replace(found, alike=sets)
    plan = device.on_device(with_start(plan, found), "gpu: any")
    assert plan.refreshes
    assert -(-plan.P // plan.block) > 1
    warmup, moved, rng = 6, 0, np.random.default_rng(1)
    with JAX.precision():
        plan, there = device.with_bounds(JAX, plan, prepare(JAX, X, Y, block=plan.block))
        here = prepare(NUMPY, X, Y, block=plan.block)
        here = here._replace(blocks=here.blocks._replace(bound=jax.tree.map(np.asarray, there.blocks.bound)), alike=sets)
        there = there._replace(alike=jax.tree.map(jax.numpy.asarray, sets))
        state, tuning, memory = initial(plan, here, rng, found), initial_tuning(plan), adapt.start(plan)

        @jax.jit
        def step(state, tuning, memory, noise, number):
            data, kind = there._replace(m=float(plan.m)), plan.kind(0)
            new, stats = sweep(Sweep(JAX, plan, data, tuning, noise, kind), state)
            seen = adapt.Seen(number, warmup, kind, stats, strength(JAX, plan, data, new))
            return new, *adapt.adapt(JAX, plan, tuning, memory, seen)

        for number in range(warmup):
            kind = plan.kind(number)
            noise = draw_noise(plan, rng, kind)
            other = step(state, tuning, memory, noise, number)
            with np.errstate(all="ignore"):
                state, stats = sweep(Sweep(NUMPY, plan, here, tuning, noise, kind), state)
            moved += int(np.asarray(stats.single).sum())
            seen = adapt.Seen(number, warmup, kind, stats, strength(NUMPY, plan, here, state))
            tuning, memory = adapt.adapt(NUMPY, plan, tuning, memory, seen)
            for one, two in zip((state, tuning, memory), other, strict=True):
                close(one, two, 1e-8)
    assert moved


def test_chains_side_by_side_exchange_what_each_would_alone(monkeypatch):
    """Also where some of them exchange nothing."""
    for name in ("SEARCHED", "WIDE_FROM"):
        monkeypatch.setattr(f"intarsia.server.sampler.schedule.{name}", 20)
    X, Y, plan = problem(P=90)
    X[:, 5] = X[:, 0] + 0.1 * X[:, 5]
    plan, ways = replace(plan, exchanges=2), without_b.Ways(None, exchange.scales)
    rng, sets = np.random.default_rng(0), Alike(np.array([[0, 5, 6, 7], [9, 20, 9, 9]]), np.array([4, 2]))
    states, noises, moved = [], [], []
    for k in range(6):
        state, noise = initial(plan, prepare(NUMPY, X, Y), rng), draw_noise(plan, rng, FULL)
        lam = state.lam.copy()
        lam[[0, 9]] = 0.0 if k % 3 == 2 else 30.0  # nothing is in in every third
        states.append(state._replace(lam=lam))
        noises.append({name: value for name, value in noise.items() if name == "Z" or name.startswith("exchange.")})
    with JAX.precision():
        data = prepare(JAX, X, Y)._replace(alike=jax.tree.map(jax.numpy.asarray, sets))
        tuning = initial_tuning(plan)._replace(limit=np.asarray(4.0))

        def one(state, noise):
            now = Sweep(JAX, plan, data, tuning, noise, FULL)
            factor = without_b.factored(now, state, JAX.weigh(data.X, state.lam, noise["Z"])[0], many=False)
            new, G, more = without_b.exchanged(now, state, factor, ways)
            return new.lam, G, more

        together = JAX.vmap(one)(*(jax.tree.map(lambda *x: jax.numpy.stack(x), *each) for each in (states, noises)))
        for k, (state, noise) in enumerate(zip(states, noises, strict=True)):
            alone = one(*jax.tree.map(jax.numpy.asarray, (state, noise)))
            moved.append(not np.array_equal(alone[0], state.lam))
            for mine, theirs in zip(alone, together, strict=True):
                np.testing.assert_allclose(mine, theirs[k], rtol=1e-9, atol=1e-9)
    assert {True, False} == set(moved)


def test_its_random_numbers_have_the_laws_that_are_asked_for():
    plan = readable(P=2000, Q=4)[2]
    draws = {}
    with JAX.precision():
        words = JAX.keys(3, 2)
        one = [np.asarray(v) for v in JAX.draw_noise(plan, words[1])[1].values()]
        for _ in range(40):
            after, noise = JAX.draw_noise(plan, words[0])
            assert not np.array_equal(after, words[0])
            words = words.at[0].set(after)
            for name, value in noise.items():
                draws.setdefault(name, []).append(np.asarray(value, dtype=float).ravel())
    assert not any(np.array_equal(a, b[0]) for a, b in zip(one, draws.values(), strict=True))
    for name, (kind, shape, parameter) in plan.noise().items():
        x = np.concatenate(draws[name])
        assert x.size == 40 * int(np.prod(shape))
        for i, value in enumerate(np.atleast_1d(parameter)):  # one law per entry, or one for all
            y = x if np.ndim(parameter) == 0 else x.reshape(40, -1)[:, i]
            law = {"normal": ("norm", ()), "uniform": ("uniform", ()), "gamma": ("gamma", (value,))}[kind]
            assert kstest(y, law[0], args=law[1]).pvalue > 1e-4, name
        if kind == "uniform":
            assert x.min() > 0


def test_a_stiff_system_is_still_factored():
    """Scales so large that I + d²G loses digits of the identity, then all of it; a ridge puts back what rounding asks.

    With d² tr(G) of 1e13 the solution is that of singular values to 1e-4; of 1e19 it is finite and shorter, nothing more.
    """
    rng = np.random.default_rng(2)
    X = rng.standard_normal((6, 4))
    lam = np.array([1e9, 1.0, 1.0, 1.0])
    d, V = np.array([2.0, 1e-3]), rng.standard_normal((2, 6, 1))
    exact = NUMPY.factor(NUMPY.gram(X * lam), X, lam, 4.0)
    with JAX.precision():
        factor = JAX.factor(JAX.gram(JAX.asarray(X * lam)), X, lam, 4.0)
        got = np.asarray(factor.solve(JAX.asarray(d), JAX.asarray(V)))
        assert np.isfinite(float(factor.log_marginal(JAX.asarray(d), JAX.asarray(V[:, :, 0].T))))
    wanted = [exact.unrotate(exact.solve(d, np.stack([exact.rotate(V[j])] * 2))[j]) for j in range(2)]
    np.testing.assert_allclose(got[1], wanted[1], atol=1e-4)
    assert np.linalg.norm(got[0]) < np.linalg.norm(wanted[0])


def test_a_long_product_in_parts_is_the_product(monkeypatch):
    monkeypatch.setattr("intarsia.server.sampler.backends.jax.WIDE", 0)
    rng = np.random.default_rng(4)
    X, Z, lam = rng.standard_normal((7, 320)), rng.standard_normal((320, 2)), np.exp(rng.normal(size=320))
    with JAX.precision():
        G, XZ = JAX.weigh(JAX.asarray(X), JAX.asarray(lam), JAX.asarray(Z))
        product = JAX.times(JAX.asarray(X), JAX.asarray(Z))
    np.testing.assert_allclose(G, (X * lam**2) @ X.T, atol=1e-5 * (lam**2).sum())
    np.testing.assert_allclose(XZ, (X * lam) @ Z, rtol=1e-11)
    np.testing.assert_allclose(product, X @ Z, rtol=1e-11)


def error_of_split_product():
    """Largest relative error of I + d²G, d such that the small features together are as large as the noise; in two parts of which
    the second is shorter, under a compiler, for chains side by side. Most scales are small, twenty very large.
    """
    rng = np.random.default_rng(0)
    X, lam = rng.standard_normal((60, 7000)), np.abs(rng.standard_cauchy(7000))
    lam[:20] *= 1e4
    with JAX.precision():
        # A function of its own each time: what is compiled for one is not taken for the next.
        compiled = jax.jit(jax.vmap(lambda X, lam: split_gram(X, lam), in_axes=(None, 0)))
        G = np.asarray(compiled(JAX.asarray(X), JAX.asarray(np.stack([lam[::-1], lam])))[1])
    exact = (X * lam**2) @ X.T
    d2 = 1 / np.square(np.sort(lam)[:-200]).sum()
    half = np.linalg.inv(np.linalg.cholesky(np.eye(60) + d2 * exact))
    return np.abs(np.linalg.eigvalsh(half @ (d2 * (G - exact)) @ half.T)).max()


def test_a_product_in_two_halves_serves_as_well_as_one_in_double_precision():
    assert error_of_split_product() < 1e-5


@pytest.mark.parametrize("left_out", ["the lower halves", "the large scales in double precision"])
def test_it_would_not_without(left_out, monkeypatch):
    if left_out == "the lower halves":
        monkeypatch.setattr(lax, "reduce_precision", lambda x, **_: x)
    else:
        smallest = lax.top_k
        monkeypatch.setattr(lax, "top_k", lambda x, k: smallest(-x, k))
    assert error_of_split_product() > 1e-4


def test_the_signs_of_a_device_s_singular_vectors_do_not_matter(monkeypatch):
    """cuSOLVER gives other signs than LAPACK; the same noise must still give the same state."""
    rng = np.random.default_rng(6)
    A, tau, s = rng.standard_normal((4, 3)), rng.random(3) + 0.1, rng.random(4) + 0.1
    here = conditionals.whiten(NUMPY, A, tau, s)
    right = jax.numpy.linalg.svd
    for signs in np.array([[1, 1, 1], [-1, 1, -1], [-1, -1, -1]]):

        def other(M, signs=signs, **options):
            U, d, Vt = right(M, **options)
            return U * signs, d, Vt * signs[:, None]

        monkeypatch.setattr(jax.numpy.linalg, "svd", other)
        with JAX.precision():
            there = conditionals.whiten(JAX, *map(JAX.asarray, (A, tau, s)))
        for one, two in zip(here, there, strict=True):
            np.testing.assert_allclose(two, one, atol=1e-12)


def test_factors_by_panels_are_the_factors():
    rng = np.random.default_rng(5)
    X, rhs = rng.standard_normal((3, 23, 30)), rng.standard_normal((3, 23, 2))
    M = X @ X.transpose(0, 2, 1) + np.eye(23)
    with JAX.precision():
        L, half = by_panels(JAX.asarray(M), JAX.asarray(rhs), 8)
    np.testing.assert_allclose(L, np.linalg.cholesky(M), atol=1e-12)
    np.testing.assert_allclose(half, np.linalg.solve(np.linalg.cholesky(M), rhs), atol=1e-11)
