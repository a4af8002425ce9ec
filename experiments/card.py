"""Sparse fits on an accelerator: `python -m experiments.card SIZE … [--beside FILE]`.

A size is P:m:Q:s:design:sweeps, design one of independent, blocks (of ten, correlated at .9) and ar (AR(1) at .9). Four chains,
two started at s wrong features; the first WARM sweeps are left out. A line of experiments/results/card.jsonl (or --out) per fit:
time per sweep, how long until the four chains agree on PIPs and R̂ of E[effect | rest] is low, and what is found at a Bayesian
false discovery rate of 5 %. Every fit is made twice, the first one compiles; `--once` makes one. `--beside` names a program with
functions `run`
and `sweep` of the prototype, which is timed on the same data.
"""

import argparse
import importlib.util
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from intarsia.server.sampler.sparse import card, card_problem

RESULT = Path(__file__).parent / "results" / "card.jsonl"
CHAINS, WARM, LOOK = 4, 20, 20
GAP, LOW = 0.05, 1.01


@partial(jax.jit, static_argnames=("width", "m", "design"))
def window(key: Any, width: int, m: int, design: str) -> Any:
    """Columns (width, m)."""
    a, b = jax.random.split(key)
    X = jax.random.normal(a, (width, m))
    if design == "blocks":
        shared = jnp.repeat(jax.random.normal(b, (width // 10 + 1, m)), 10, axis=0)[:width]
        return jnp.sqrt(0.9) * shared + jnp.sqrt(0.1) * X
    if design == "ar":
        step = lambda last, new: (0.9 * last + jnp.sqrt(0.19) * new,) * 2  # noqa: E731
        return jax.lax.scan(step, X[0], X)[1]
    return X


def make(P: int, m: int, Q: int, s: int, design: str) -> tuple[list[Any], Any, Any]:
    """The design on the card, Y and which features are in truth there."""
    width = card_problem.width_of(P)
    keys = jax.random.split(jax.random.key(1), -(-P // width))
    windows = [window(key, width, m, design) for key in keys]
    left = P - (len(windows) - 1) * width
    windows[-1] = windows[-1].at[left:].set(0.0)
    rng = np.random.default_rng(1)
    true = np.sort(rng.choice(P, s, replace=False))
    columns = np.stack([np.asarray(windows[p // width][p % width]) for p in true])
    Y = columns.T @ (0.5 * rng.standard_normal((s, Q))) + rng.standard_normal((m, Q))
    return windows, Y - Y.mean(axis=0), true


def rhat(traces: Any) -> Any:
    """Split R̂ of traces (chain, draw, …)."""
    half = traces.shape[1] // 2
    x = np.concatenate([traces[:, :half], traces[:, half : 2 * half]])
    within, between = x.var(axis=1, ddof=1).mean(axis=0), x.mean(axis=1).var(axis=0, ddof=1)
    return np.sqrt((half - 1) / half + np.where(between == 0, 0.0, between / np.maximum(within, 1e-30)))


def expected(draws: Any, features: Any, Q: int) -> Any:
    """E[effect | rest] (chain, draw, feature, Q) of some features."""
    out = np.zeros((CHAINS, len(draws), len(features), Q), np.float32)
    for t, of_sweep in enumerate(draws):
        for c, draw in enumerate(of_sweep):
            _, a, b = np.intersect1d(features, draw.listed, return_indices=True)
            out[c, t, a] = draw.expected[b]
    return out


def found(pip: Any, true: Any) -> tuple[int, int]:
    """Features found and false ones at a Bayesian false discovery rate of 5 %."""
    order = np.argsort(-pip)[:10_000]
    order = order[pip[order] >= 0.5]
    mean = np.cumsum(1 - pip[order]) / np.arange(1, len(order) + 1)
    chosen = order[: int((mean <= 0.05).sum())]
    right = int(np.isin(chosen, true).sum())
    return right, len(chosen) - right


class Times:
    """Seconds spent in parts of the sampler."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.originals = {name: getattr(card, name) for name in ("scan", "place")}

    def __enter__(self) -> "Times":
        for name, work in self.originals.items():
            setattr(card, name, self.timed(name, work))
        return self

    def timed(self, name: str, work: Any) -> Any:
        def run(*args: Any) -> Any:
            t = time.perf_counter()
            out = work(*args)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - t
            return out

        return run

    def __exit__(self, *_: Any) -> None:
        for name, work in self.originals.items():
            setattr(card, name, work)


def look_every(P: int) -> int:
    return LOOK if P <= 100_000 else 2 * LOOK if P <= 1_000_000 else 5 * LOOK


def chains_of(made: Any, s: int) -> card.CardChains:
    starts = [made.start(np.random.default_rng(c), s if c >= CHAINS // 2 else 0) for c in range(CHAINS)]
    return card.CardChains(made, 3, range(CHAINS), starts)


def fit(made: Any, true: Any, sweeps: int, *, whole: bool) -> dict[str, Any]:
    """One fit. `whole`: with looks at how far the chains agree, whose time does not count."""
    began = time.perf_counter()
    Q = made.problem.Y.shape[1]
    chains, draws, looks, spent, sizes = chains_of(made, len(true)), [], [], 0.0, []
    made_up = time.perf_counter() - began
    with Times() as parts:
        while chains.all.sweep < sweeps:
            began = time.perf_counter()
            new = chains.advance(LOOK)
            if chains.all.sweep == WARM:
                chains.find_near()
            spent += time.perf_counter() - began
            draws += new if chains.all.sweep > WARM else []
            sizes.append([len(draw.features) for draw in new[-1]])
            if not whole or not draws or chains.all.sweep % look_every(made.features):
                continue
            pip = chains.pip()
            features = np.flatnonzero((pip > 1e-3).any(axis=0))
            R = rhat(expected(draws, features, Q)).max(axis=1) if len(draws) > 3 else np.full(len(features), np.inf)
            sure = (pip[:, features] >= 0.05).any(axis=0)
            look = {
                "sweeps": chains.all.sweep, "seconds": round(spent, 3), "gap": round(float(np.ptp(pip, axis=0).max()), 4),
                "rhat": round(float(R.max()), 4), "rhat_from_.05": round(float(R[sure].max()), 4), "features": len(features),
            }  # fmt: skip
            looks.append(look)
            print(look, sizes[-1], flush=True)
    out: dict[str, Any] = {"seconds": round(spent + made_up, 2), "parts": {k: round(v, 2) for k, v in parts.seconds.items()}}
    if whole:
        agree = [look for look in looks if look["gap"] <= GAP]
        low = [look for look in agree if look["rhat_from_.05"] <= LOW]
        out |= {
            "ms_per_sweep": round(1e3 * spent / chains.all.sweep, 2), "sizes": sizes[:2] + sizes[-1:], "looks": looks[-1:],
            "seconds_to_agree": agree[0]["seconds"] if agree else None, "sweeps_to_agree": agree[0]["sweeps"] if agree else None,
            "seconds_to_low_rhat": low[0]["seconds"] if low else None, "sweeps_to_low_rhat": low[0]["sweeps"] if low else None,
            "found": found(chains.pip().mean(axis=0), true),
        }  # fmt: skip
    return out


def measure(P: int, m: int, Q: int, s: int, design: str, sweeps: int, beside: Any, once: bool) -> list[dict[str, Any]]:
    about = {"device": str(jax.devices()[0].device_kind), "P": P, "m": m, "Q": Q, "s": s, "design": design, "sweeps": sweeps}
    t = time.perf_counter()
    windows, Y, true = make(P, m, Q, s, design)
    jax.block_until_ready(windows)
    print("made", round(time.perf_counter() - t, 1), flush=True)
    rows = []
    if beside is not None:
        rows.append(about | {"engine": "prototype"} | prototype(beside, windows, P, Y, true, sweeps))
        print(json.dumps(rows[-1]), flush=True)
    t = time.perf_counter()
    made, _scales = card_problem.prepare(windows, P, Y)
    jax.block_until_ready(made.windows)
    prepared = time.perf_counter() - t
    del windows
    compiling = None  # in the seconds of the fit
    if not once:
        first = fit(made, true, 3 * LOOK, whole=False)
        again = fit(made, true, 3 * LOOK, whole=False)
        compiling = round(first["seconds"] - again["seconds"], 2)
    whole = fit(made, true, sweeps, whole=True)
    rows.append(about | {"engine": "card", "seconds_prepared": round(prepared, 2), "seconds_compiling": compiling} | whole)
    print(json.dumps(rows[-1]), flush=True)
    return rows


def prototype(module: Any, windows: list[Any], P: int, Y: Any, true: Any, sweeps: int) -> dict[str, Any]:
    """The same data by the prototype, in 16 blocks."""
    blocks, (m, Q), s = 16, Y.shape, len(true)
    joined = windows[0][:P] if len(windows) == 1 else jnp.concatenate(windows)[:P]
    X = jnp.swapaxes(joined.reshape(blocks, P // blocks, m), 1, 2).copy()
    del joined
    room, size = 2 * s + 32, P // blocks
    rng = np.random.default_rng(1)
    Ys = jnp.asarray(Y / Y.std(axis=0), jnp.float32)
    on, B = np.zeros((CHAINS, blocks, size), bool), np.zeros((CHAINS, blocks, size, Q), np.float32)
    R = np.repeat(np.asarray(Ys)[None], CHAINS, 0).copy()
    for c in range(CHAINS // 2, CHAINS):
        for p in rng.choice(P, s, replace=False):
            b = 0.05 * rng.standard_normal(Q).astype(np.float32)
            on[c, p // size, p % size], B[c, p // size, p % size] = True, b
            R[c] -= np.outer(np.asarray(X[p // size, :, p % size]), b)
    xx, noise = jnp.square(X).sum(1), jnp.asarray(np.cov(np.asarray(Ys).T), jnp.float32)
    held = (
        jnp.asarray(on), jnp.asarray(B), jnp.asarray(R), jnp.repeat(noise[None], CHAINS, 0),
        jnp.repeat(0.2 * jnp.eye(Q)[None], CHAINS, 0), jnp.full(CHAINS, 5.0 / P),
    )  # fmt: skip
    del on, B, R
    key, pips, means = jax.random.split(jax.random.key(1), CHAINS), jnp.zeros((CHAINS, P)), jnp.zeros((CHAINS, blocks, size, Q))
    spent, looks, times = 0.0, [], []
    for done in range(0, sweeps, 10):
        t = time.perf_counter()
        keys = jax.vmap(lambda q, done=done: jax.random.fold_in(q, 1000 + done))(key)
        held, pips, means, k, _n, _ = module.run(X, xx, Ys, held, pips, means, keys, room, 3, 10, jnp.float32(done >= WARM))
        sizes = np.asarray(k)
        times.append(time.perf_counter() - t)
        spent += times[-1]
        if done >= WARM and done % LOOK == LOOK - 10:
            gap = float(np.ptp(np.asarray(pips) / (done + 10 - WARM), axis=0).max())
            looks.append({"sweeps": done + 10, "seconds": round(spent, 3), "gap": round(gap, 4)})
    steady = float(np.median(times[2:])) / 10
    agree = [look for look in looks if look["gap"] <= GAP]
    compiling = times[0] - 10 * steady
    return {
        "seconds": round(spent, 2), "seconds_compiling": round(compiling, 2), "ms_per_sweep": round(1e3 * steady, 2),
        "sizes": sizes.tolist(), "looks": looks[-1:], "sweeps_to_agree": agree[0]["sweeps"] if agree else None,
        "seconds_to_agree": round(agree[0]["seconds"] - compiling, 3) if agree else None,
        "found": found(np.asarray(pips).mean(axis=0) / (sweeps - WARM), true),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="+")
    parser.add_argument("--beside")
    parser.add_argument("--once", action="store_true", help="one fit, compiling included")
    parser.add_argument("--out", default=str(RESULT))
    args = parser.parse_args()
    module = None
    if args.beside:
        spec = importlib.util.spec_from_file_location("beside", args.beside)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    for size in args.sizes:
        P, m, Q, s, design, sweeps = size.split(":")
        try:
            rows = measure(int(P), int(m), int(Q), int(s), design, int(sweeps), module, args.once)
        except Exception as error:  # the sizes that follow are measured all the same
            print(f"{size}: {error!r}", file=sys.stderr, flush=True)
            continue
        with open(args.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
