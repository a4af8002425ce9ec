"""The joint test of `test_joint` on the JAX path: its sweep and random numbers, replicates side by side, and a planted bug."""

from dataclasses import replace

import numpy as np
import pytest
from joint import Setting
from scipy.stats import ks_2samp

from intarsia.server.sampler import backends, conditionals, device
from intarsia.server.sampler.schedule import FULL, SHORT
from intarsia.server.sampler.state import State, prepare

jax = pytest.importorskip("jax")

FAILURE = 1e-4
NUMPY, JAX = backends.get("numpy"), backends.on_device()


def smallest(setting, replicates=3000, sweeps=4, seed=1, first=0):
    """The smallest p-value, times their number, after sweeps number first, first + 1, … of the schedule."""
    plan, rng = setting.plan, np.random.default_rng(seed)
    before, states, data = [], [], []
    for _ in range(replicates):
        other = setting.prior(rng)
        before.append(setting.functions(other, setting.data(other, rng)[0]))
        states.append(setting.prior(rng))
        Y, prepared = setting.data(states[-1], rng)
        data.append((Y, prepared._replace(blocks=prepare(NUMPY, setting.X, Y, block=plan.block).blocks)))
    with JAX.precision():

        def run(words, state, own):
            chains = device.Chains(state, setting.tuning, (), words)
            G, step = device.Runner(plan, own, be=JAX)._stepper(own, None)
            one = lambda carry, x: (step(*carry, first + x[0], x[0] == 0), None)  # noqa: E731
            return JAX.scan(one, (chains, G), (np.arange(sweeps),))[0][0].state

        stack = lambda trees: jax.tree.map(lambda *x: np.stack(x), *trees)  # noqa: E731
        after = jax.jit(jax.vmap(run))(JAX.keys(seed, replicates), stack(states), stack([own for _, own in data]))
        after = jax.tree.map(np.asarray, after)
    found = [setting.functions(State(*(x[i] for x in after)), data[i][0]) for i in range(replicates)]
    before, found = np.array(before), np.array(found)
    p = [ks_2samp(before[:, i], found[:, i]).pvalue for i in range(before.shape[1])]
    return min(p) * len(p)


def in_blocks(**options):
    setting = Setting(compiled=False, **options)
    setting.plan = replace(setting.plan, block=2, visits=2)  # two of three blocks of features per sweep
    return setting


@pytest.mark.parametrize("local", ["row", pytest.param("element", marks=pytest.mark.slow)])
def test_the_sweep_on_jax_keeps_the_joint_law(local):
    assert smallest(in_blocks(local=local), sweeps=1) > FAILURE


@pytest.mark.slow
def test_light_sweeps_that_share_a_system_keep_it_too(monkeypatch):
    monkeypatch.setattr("intarsia.server.sampler.schedule.COSTLY", 0)
    setting = in_blocks()
    assert [setting.plan.kind(i) for i in (2, 3, 4)] == [SHORT, SHORT, FULL]
    assert smallest(setting, sweeps=3, first=2) > FAILURE


@pytest.mark.slow
@pytest.mark.parametrize("local", ["row", "element"])
@pytest.mark.parametrize("law", ["horseshoe", "laplace", "student"])
def test_the_sweep_on_jax_keeps_the_joint_law_at_length(local, law):
    assert smallest(in_blocks(local=local, law=law), replicates=20_000, sweeps=4, seed=2) > FAILURE


@pytest.mark.slow
def test_a_planted_bug_is_caught(monkeypatch):
    right = conditionals.draw_lam
    monkeypatch.setattr(conditionals, "draw_lam", lambda *a: 1.3 * right(*a))
    assert smallest(in_blocks(), sweeps=2) < 1e-6
