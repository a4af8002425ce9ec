"""Many features over several devices: the same sweeps as on one, on virtual devices of the CPU.

In a process of its own: the number of devices is fixed when JAX starts.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

PROGRAM = """
import sys
from dataclasses import replace
import numpy as np
import jax
from intarsia.server.sampler.exchange import Alike
from intarsia.server.sampler import backends, device, schedule, moves
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.schedule import plan as make_plan, with_start
from intarsia.server.sampler.sparse_start import sparse_start

P = int(sys.argv[1])
schedule.SEARCHED = schedule.WIDE_FROM = 100
schedule.WIDE_RESHAPES = 4
device.SENT_BYTES = 4000
be = backends.on_device()
assert be.lanes() == 4
rng = np.random.default_rng(0)
X = rng.standard_normal((12, P))
Y = X[:, :2] @ np.array([[3.0, 1.0], [-2.0, 2.0]]) + rng.standard_normal((12, 2))
found = replace(sparse_start(X, Y), alike=Alike(np.array([[0, 5, 6], [9, 3, 9]]), np.array([3, 2])))
made = device.on_device(with_start(make_plan(Model(), X, Y, compiled=False), found), be.device(), 4)
assert made.refreshes and made.lanes == 4 and made.block % 4 == 0
ends = {}
with be.precision():
    for name, be in (("several", be.over(P)), ("one", be)):
        if name == "several":
            data = device.prepare_on_device(be, made, X, Y)
            assert {shard.data.shape[1] for shard in data.blocks.Xt.addressable_shards} == {made.block // 4}
            np.testing.assert_array_equal(moves.out_of_blocks(np, np.asarray(data.blocks.Xt), 4, P), X.T)
        else:  # the same blocks on one device
            data = jax.tree.map(lambda x: jax.numpy.asarray(np.asarray(x)), data)._replace(X=jax.numpy.asarray(X), m=data.m)
        plan, data = device.with_bounds(be, made, data)
        data = data._replace(alike=jax.tree.map(jax.numpy.asarray, found.alike))
        runner = device.Runner(plan, be.everywhere(data), be=be)
        chains, summary = be.everywhere((runner.start(3, 2, found=found), runner.blank(2)))
        chains = runner.warm_up(chains, 0, 2, 2)
        chains, summary, kept = runner.draw(chains, summary, 2, 1, 2)
        ends[name] = [np.asarray(x) for x in (*chains.state, kept.C, kept.Sigma, summary.kappa)]
for here, there in zip(ends["one"], ends["several"]):
    np.testing.assert_allclose(there, here, rtol=1e-10, atol=1e-10 * np.abs(here).max())
print("the same")
"""


@pytest.mark.parametrize("P", [400, pytest.param(397, marks=pytest.mark.slow)])  # divided evenly, and not
def test_the_same_noise_gives_the_same_state_on_four_devices(P):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    # A device waits for the others in a thread of one common pool, as large as NPROC: fewer threads than devices never end.
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "NPROC": "16"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(P)], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "the same"
