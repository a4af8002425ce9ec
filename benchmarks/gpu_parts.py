"""What the parts of a sweep among many features cost on an accelerator: `python -m benchmarks.gpu_parts`.

Four chains side by side on simulated designs, each part compiled for itself; kept in benchmarks/results/gpu_parts.json. From
these docs/performance.md reckons what a sweep of ten million features on eight cards would take (`benchmarks.quoted_answer`).
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).parent / "results" / "gpu_parts.json"
SIZES = ((100_000, 500, 5), (1_000_000, 1000, 10))  # P, m, Q
CHAINS, TIMES = 4, 5


def measure(P: int, m: int, Q: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from intarsia.server.sampler import backends, device, inclusion, integrated, small_shares, without_b
    from intarsia.server.sampler import sweep as one_sweep
    from intarsia.server.sampler.model import Model
    from intarsia.server.sampler.schedule import Sweep, plan
    from intarsia.server.sampler.state import Stats

    be = backends.on_device()

    def milliseconds(function: Any, *arguments: Any) -> float:
        jax.block_until_ready(function(*arguments))
        taken = []
        for _ in range(TIMES):
            began = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            taken.append(1e3 * (time.perf_counter() - began))
        return round(float(np.median(taken)), 2)

    shape = np.broadcast_to(0.0, (m, P)), np.broadcast_to(1.0, (m, Q))
    made = replace(device.on_device(plan(Model(), *shape), be.device()), length=float(np.sqrt(m))).expecting(m / 25, 1.0)
    with be.precision():
        made, data = device.with_bounds(be, made, be.simulated(P, m, Q, made.block))
        runner = device.Runner(made, data, be=be)
        states, tuning, _, words = runner.start(1, CHAINS)
        kind = made.kind(0, 0)
        over = lambda function: be.jit(be.vmap(function, in_axes=(None, 0)))  # noqa: E731
        noise = be.jit(jax.vmap(lambda word: be.draw_noise(made, word, kind)))(words)[1]

        def now(data: Any, tuning: Any, noise: Any) -> Sweep:
            return Sweep(be, made, data._replace(m=float(m), X=be.design(data.blocks.Xt, P)), tuning, noise, kind, None)

        def weigh(data: Any, x: Any) -> Any:
            return be.weigh(be.design(data.blocks.Xt, P), x[0].lam, x[2]["Z"])

        def passes(data: Any, x: Any) -> Any:
            X = be.design(data.blocks.Xt, P)
            return be.cross(X, be.times(X, x[2]["Z"]))

        def refresh(data: Any, x: Any) -> Any:
            state, tuning, noise, residual = x
            blank = Stats(jnp.zeros(P), jnp.zeros(Q + 1))
            return one_sweep.sites_row(now(data, tuning, noise), state, residual, blank)[0]

        def factor(data: Any, x: Any) -> Any:
            state, tuning, noise, G = x
            return without_b.factored(now(data, tuning, noise), state, G).w  # type: ignore[attr-defined]

        def walk(data: Any, x: Any) -> Any:
            state, tuning, noise, G = x
            here = now(data, tuning, noise)
            factor = without_b.factored(here, state, G)
            border = inclusion.choose(be, made, here.data, tuning, state.lam, noise["border.take"])
            columns = be.columns(here.data.X, border.features)
            packed = factor.rotate(jnp.concatenate([data.Y, noise["E"], noise["E"], columns], axis=1))
            return here, state, without_b.Systems(factor, packed, border, noise["Z"][border.features]), noise

        def walked(data: Any, x: Any) -> Any:
            return one_sweep.walk(*walk(data, x)).W

        def stretched(data: Any, x: Any) -> Any:
            here, state, systems, noise = walk(data, x)
            target = without_b.target(here, state, systems.factor, systems.packed[:, :Q])
            return small_shares.stretch(target, here.data, state, here.tuning.clear, noise).A

        def reshaped(data: Any, x: Any) -> Any:
            here, state, systems, noise = walk(data, x)
            target = without_b.target(here, state, systems.factor, systems.packed[:, :Q])
            root = made.covariance(data.noise_scale).rotation(be, state.Sigma).root()
            return integrated.collapsed_A(target, root, noise)

        def whole(data: Any, x: Any) -> Any:
            return one_sweep.sweep(now(data, x[1], x[2]), x[0])[0]

        given = states, tuning, noise
        G = over(weigh)(data, given)[0]
        parts = {
            "product": milliseconds(over(weigh), data, given),
            "passes": milliseconds(over(passes), data, given),
            "scales": milliseconds(over(refresh), data, (*given, jnp.ones((CHAINS, m, Q)))),
            "eigenvalues": milliseconds(over(factor), data, (*given, G)),
            "walk": milliseconds(over(walked), data, (*given, G)),  # this and the next two with the eigenvalues
            "stretch": milliseconds(over(stretched), data, (*given, G)),
            "reshape": milliseconds(over(reshaped), data, (*given, G)),
            "random": milliseconds(be.jit(jax.vmap(lambda word: be.draw_noise(made, word, kind))), words),
            "whole": milliseconds(over(whole), data, given),
        }
    return {"P": P, "m": m, "Q": Q, "chains": CHAINS, "device": be.device(), "blocks": -(-P // made.block), "ms": parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a problem of toy size, to see that it runs; nothing is kept")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    rows = []
    for size in ((4_000, 40, 2),) if args.small else SIZES:
        rows.append(measure(*size))
        print(json.dumps(rows[-1]), flush=True)
    if not args.small:
        args.out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
