"""What an accelerator computes for the scan: everything that takes all features of a window at once.

A window is a range of features: their columns X (p, m), and for each chain c their scores (c, q, p). All chains share one pass
over X. The features that may change (`ids`, slots of fixed number, filled up with p, which is no feature) have their products
with all features of the window in `products`, so that scores at any moment of the scan are scores at its beginning less what the
steps of earlier features took away.

Single precision, with products of full single precision. Random numbers here are only the uniforms of the scan. `numbers` are the
sweep's, the window's first feature and how many features there are in all.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from intarsia.server.sampler.sparse.state import WORTH_LISTING

Array = jax.Array
AHEAD = 8  # features a call adds to those that may change, at most
LIKELY = 8.0  # a feature that is out is visited ahead of need where its uniform is below so many times its P(in | rest)
GROUPS = 1024  # of features, of each of which one at most is added in a call
NEAR = 32  # features of a neighbourhood
SOME = 1e-37  # mass at least, so that its logarithm is a number

# To try every way of a product takes minutes where the usual way is as fast.
compiled = partial(jax.jit, compiler_options={"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False})


class At(NamedTuple):
    """`scan.Coordinates` of all chains, as far as chances need them; log weights are relative to being out."""

    T: Array  # (c, q, q)
    v: Array  # (c, q)
    reach: Array  # (c, q): Ω_qq V_qq
    V: Array  # (c, q): V_qq
    log_all: Array  # (c,)
    log_alone: Array  # (c, q)


class Axes(NamedTuple):
    """`places.Axes` of effects, filled up to q axes of which `live` ones count."""

    of_score: Array  # (…, q, k)
    v: Array  # (…, k)
    live: Array  # (…, k)


class Window(NamedTuple):
    """A window while it is scanned."""

    scores: Array  # (c, q, p), as the scan of the window begins
    uniforms: Array  # (c, p); infinite where there is no feature
    x: Array  # (c, p): squares at each chain's ratio
    products: Array  # (c, slot, p)


class Seen(NamedTuple):
    """What the host needs of the features that may change, slot by slot."""

    ids: Array  # (c, slot)
    h: Array  # (c, slot, q)
    x: Array  # (c, slot)
    uniforms: Array  # (c, slot)
    products: Array  # (c, slot, slot)
    rows: Array  # (c, AHEAD, m): columns of the features added last


class Checked(NamedTuple):
    """Where a scan with given steps leads."""

    missed: Array  # (c,): does a feature change that was not among those that may?
    added: Array  # (c, AHEAD): features that change or are likely to
    number: Array  # (c,): of listed features
    listed: Array  # (c, most)
    chance: Array  # (c, most): P(in | rest)
    h: Array  # (c, most, q)
    x: Array  # (c, most)


class Placed(NamedTuple):
    """A feature of the window drawn by its chance as the place of an effect."""

    mass: Array  # (c,): log of the sum of Bayes factors in the window
    feature: Array  # (c,)
    h: Array  # (c, q)
    x: Array  # (c,)
    row: Array  # (c, m)


def product(formula: str, a: Array, b: Array) -> Array:
    return jnp.einsum(formula, a, b, precision=jax.lax.Precision.HIGHEST)


def log_odds(h: Array, x: Array, at: At) -> Array:
    """log P(in | rest) / P(out | rest) (c, p), of features that are out. h (c, q, p), x (c, p)."""
    wide = x[:, None] + at.v[:, :, None]
    everywhere = at.log_all[:, None] + 0.5 * (h * h / wide - jnp.log(wide / at.v[:, :, None])).sum(axis=1)
    if h.shape[1] == 1:
        return everywhere
    u = product("cqr,crp->cqp", at.T, h)
    wide = 1.0 + x[:, None] * at.reach[:, :, None]
    alone = at.log_alone[:, :, None] + 0.5 * (u * u * at.V[:, :, None] / wide - jnp.log(wide))
    top = jnp.maximum(everywhere, alone.max(axis=1))
    return top + jnp.log(jnp.exp(everywhere - top) + jnp.exp(alone - top[:, None]).sum(axis=1))


def uniforms_of(keys: Array, sweep: Array, first: Array, p: int, features: Array) -> Array:
    """One per feature, of 32 bits: at ten million features those of 23 bits are too often exactly zero."""

    def of_chain(key: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), sweep), first)
        return (jax.random.bits(key, (p,), jnp.uint32).astype(jnp.float32) + 0.5) * 2.0**-32

    return jnp.where(first + jnp.arange(p) < features, jax.vmap(of_chain)(keys), jnp.inf)


def with_added(odds: Array, uniforms: Array, ids: Array) -> tuple[Array, Array]:
    """Features whose uniform is below LIKELY times their P(in | rest), or the surest of them; and whether one is below it."""
    c, p = odds.shape
    over = set_at(jax.nn.log_sigmoid(odds) - jnp.log(uniforms), ids, -jnp.inf)
    groups = min(p, GROUPS)
    grouped = over.reshape(c, p // groups, groups)
    best, places = jax.lax.top_k(grouped.max(axis=1), min(AHEAD, groups))
    found = jnp.take_along_axis(grouped.argmax(axis=1), places, axis=1) * groups + places
    found = jnp.where(best > -jnp.log(LIKELY), found, p)
    return jnp.pad(found, ((0, 0), (0, AHEAD - found.shape[1])), constant_values=p), (over > 0).any(axis=1)


def set_at(values: Array, ids: Array, new: Any) -> Array:
    """values (c, p) with `new` at ids (c, n); ids that are p or more are no features."""
    return values.at[jnp.arange(len(ids))[:, None], ids].set(new, mode="drop")


def columns(X: Array, ids: Array) -> Array:
    return X.at[ids].get(mode="fill", fill_value=0)


def take(values: Array, ids: Array) -> Array:
    """values (c, …, p) at ids (c, n): (c, …, n)."""
    ids = jnp.minimum(ids, values.shape[-1] - 1)
    return jnp.take_along_axis(values, ids if values.ndim == 2 else ids[:, None], axis=-1)


def seen(window: Window, ids: Array, rows: Array) -> Seen:
    h = jnp.swapaxes(take(window.scores, ids), 1, 2)
    return Seen(ids, h, take(window.x, ids), take(window.uniforms, ids), take(window.products, ids), rows)


@compiled
def open_window(
    X: Array, squares: Array, ratio: Array, weight: Array, R: Array, at: At, keys: Array, numbers: Array, ids: Array,
    filled: Array,
) -> tuple[Window, Seen]:  # fmt: skip
    """Scores given residuals R (c, q, m), weighted; and the features that may change: `ids`, and some that likely come in."""
    (c, _), p, (sweep, first, features) = ids.shape, X.shape[0], numbers
    x, uniforms = squares[ratio], uniforms_of(keys, sweep, first, p, features)
    scores = product("cqm,pm->cqp", R, X)
    added, _missed = with_added(log_odds(scores, x, at), uniforms, ids)
    ids = ids.at[jnp.arange(c)[:, None], filled[:, None] + jnp.arange(AHEAD)].set(added, mode="drop")
    products = product("csm,pm->csp", columns(X, ids) * weight[:, None], X)
    window = Window(scores, uniforms, x, products)
    return window, seen(window, ids, columns(X, added))


@partial(compiled, donate_argnums=(1,))
def extend(X: Array, window: Window, weight: Array, ids: Array, filled: Array, added: Array) -> tuple[Window, Seen]:
    """More features that may change."""
    chains, slots = jnp.arange(len(ids))[:, None], filled[:, None] + jnp.arange(AHEAD)
    rows = columns(X, added)
    products = window.products.at[chains, slots].set(product("csm,pm->csp", rows * weight[:, None], X), mode="drop")
    window, ids = window._replace(products=products), ids.at[chains, slots].set(added, mode="drop")
    return window, seen(window, ids, rows)


@partial(compiled, static_argnames=("most",), donate_argnums=(6,))
def check(
    window: Window, at: At, ids: Array, steps: Array, chances: Array, keep: Array, sums: Array, numbers: Array, most: int
) -> tuple[Array, Checked]:  # fmt: skip
    """The scan, where the features `ids` take `steps` (c, slot, q), as all others see it when their turn comes.

    Where nobody was missed, P(in | rest) times `keep` (n, c) is added to sums (n, c, p); of the features `ids` it is `chances`.
    """
    p, (_sweep, first, features) = window.x.shape[1], numbers
    earlier = jnp.where(ids[:, :, None] < jnp.arange(p), window.products, 0.0)
    scores = window.scores - product("csp,csq->cqp", earlier, steps)
    odds = log_odds(scores, window.x, at)
    added, missed = with_added(odds, window.uniforms, ids)
    chance = jnp.where(first + jnp.arange(p) < features, jax.nn.sigmoid(odds), 0.0)
    worth = set_at(chance > WORTH_LISTING, ids, False)
    listed = jax.vmap(partial(places_of, most=most))(worth)
    sums = sums + jnp.where(missed.any(), 0.0, keep)[:, :, None] * set_at(chance, ids, chances)
    return sums, Checked(
        missed, added, worth.sum(axis=1), listed, take(chance, listed), jnp.swapaxes(take(scores, listed), 1, 2),
        take(window.x, listed),
    )  # fmt: skip


def places_of(mask: Array, most: int) -> Array:
    """Where it is true, filled up with p: first which groups have some, then which of these."""
    p = len(mask)
    groups = min(p, GROUPS)
    grouped = mask.reshape(p // groups, groups)
    busy = jnp.nonzero(grouped.any(axis=0), size=most, fill_value=groups)[0]
    found = jnp.nonzero(grouped.at[:, busy].get(mode="fill", fill_value=False), size=most, fill_value=p * most)
    places = found[0] * groups + busy[jnp.minimum(found[1], most - 1)]
    return jnp.where((found[0] < p // groups) & (found[1] < most), places, p)


def place_logs(X: Array, x: Array, R: Array, axes: Axes, taken: Array, numbers: Array) -> tuple[Array, Array]:
    """Log Bayes factors (c, p) of an effect (of each chain) at every feature of the window that is not `taken`, given residuals
    R (c, q, m), weighted, that are without it; and the scores (c, q, p).
    """
    _sweep, first, features = numbers
    scores = product("cqm,pm->cqp", R, X)
    pulls = product("cqk,cqp->ckp", axes.of_score, scores)
    wide = x[:, None] + axes.v[:, :, None]
    logs = 0.5 * (axes.live[:, :, None] * (pulls * pulls / wide - jnp.log(wide / axes.v[:, :, None]))).sum(axis=1)
    return set_at(jnp.where(first + jnp.arange(x.shape[1]) < features, logs, -jnp.inf), taken, -jnp.inf), scores


@partial(compiled, static_argnames=("most",))
def likely_places(
    X: Array, squares: Array, ratio: Array, R: Array, axes: Axes, taken: Array, numbers: Array, *, most: int
) -> tuple[Array, Array, Array]:
    """The likeliest places (c, most) of an effect, their log Bayes factors, and the log sum (c,) of those of all."""
    logs, _scores = place_logs(X, squares[ratio], R, axes, taken, numbers)
    best, places = jax.lax.top_k(logs, min(most, logs.shape[1]))
    return places, best, jax.nn.logsumexp(logs, axis=1)


@partial(compiled, static_argnames=("most",))
def largest(values: Array, *, most: int) -> tuple[Array, Array]:
    """The largest of values (c, p), and where they are."""
    return jax.lax.top_k(values, min(most, values.shape[1]))


@compiled
def draw_place(
    X: Array, squares: Array, ratio: Array, R: Array, axes: Axes, taken: Array, uniforms: Array, numbers: Array
) -> Placed:
    """Where in the window an effect (of each chain) goes that residuals R (c, q, m), weighted, are without; not where `taken`."""
    x = squares[ratio]
    c, p = x.shape
    logs, scores = place_logs(X, x, R, axes, taken, numbers)
    top = jnp.maximum(logs.max(axis=1), jnp.finfo(jnp.float32).min)
    mass = jnp.exp(logs - top[:, None])
    groups = min(p, GROUPS)
    grouped = mass.reshape(c, p // groups, groups)
    by_group = grouped.sum(axis=1)
    group = pick(by_group, uniforms[:, 0])
    inside = jnp.take_along_axis(grouped, group[:, None, None], axis=2)[:, :, 0]
    feature = pick(inside, uniforms[:, 1]) * groups + group
    at, total = feature[:, None], jnp.maximum(by_group.sum(axis=1), SOME)
    return Placed(top + jnp.log(total), feature, take(scores, at)[:, :, 0], take(x, at)[:, 0], X[feature])


@compiled
def place_near(
    X: Array, x: Array, weight: Array, R: Array, ids: Array, steps: Array, axes: Axes, back: Array, uniforms: Array,
    normals: Array, shift: Array, numbers: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Every effect of the window in turn is placed anew in its neighbourhood: NEAR features, cut at multiples less `shift`.

    R (c, q, m) are residuals without weights, `ids` (c, slot) the features with effects `steps` (c, slot, q) in the coordinates
    of the scan, `axes` those of each, `back` (c, slot, k, q) the way from them to these coordinates. Returns features, effects
    and the columns of the features.
    """
    _sweep, first, features = numbers
    p = X.shape[0]

    def body(held: Any, of_slot: Any) -> Any:
        R, ids = held
        j, step, slot, back, uniform, normal = of_slot
        here = ids[:, j]
        row = columns(X, here)
        R = R + step[:, :, None] * row[:, None]
        near = ((here + shift) // NEAR * NEAR - shift)[:, None] + jnp.arange(NEAR)
        taken = (near[:, :, None] == ids[:, None]).any(axis=2) & (near != here[:, None])
        free = (near >= 0) & (near < p) & (first + near < features) & ~taken
        near = jnp.clip(near, 0, p - 1)
        rows = X[near]
        pulls = product("cnq,cqk->cnk", product("cnm,cqm->cnq", rows, R * weight[:, None]), slot.of_score)
        wide = take(x, near)[:, :, None] + slot.v[:, None]
        logs = 0.5 * (slot.live[:, None] * (pulls * pulls / wide - jnp.log(wide / slot.v[:, None]))).sum(axis=2)
        logs = jnp.where(free, logs, -jnp.inf)
        at = pick(jnp.exp(logs - jnp.maximum(logs.max(axis=1), jnp.finfo(jnp.float32).min)[:, None]), uniform)[:, None]
        wide, pull = (jnp.take_along_axis(value, at[:, :, None], axis=1)[:, 0] for value in (wide, pulls))
        new = product("ck,ckq->cq", slot.live * (pull / wide + normal / jnp.sqrt(wide)), back)
        real = here < p  # or no feature is in this slot
        new = jnp.where(real[:, None], new, 0.0)
        to = jnp.where(real, jnp.take_along_axis(near, at, axis=1)[:, 0], p)
        R = R - new[:, :, None] * columns(X, to)[:, None]
        return (R, ids.at[:, j].set(to)), new

    first_axis = jax.tree.map(lambda value: jnp.swapaxes(value, 0, 1), (steps, axes, back, uniforms, normals))
    (_, ids), new = jax.lax.scan(body, (R, ids), (jnp.arange(ids.shape[1]), *first_axis))
    return ids, jnp.swapaxes(new, 0, 1), columns(X, ids)


def pick(mass: Array, uniform: Array) -> Array:
    """An index (c,) by its share of the mass (c, n)."""
    sums = jnp.cumsum(mass, axis=1)
    beyond = sums > (uniform * sums[:, -1])[:, None]
    return jnp.where(beyond.any(axis=1), beyond.argmax(axis=1), mass.argmax(axis=1))


@compiled
def cross(X: Array) -> Array:
    """Xᵀ X (m, m) of one window."""
    return product("pi,pj->ij", X, X)


@compiled
def rotate(X: Array, scale: Array, W: Array, weights: Array) -> tuple[Array, Array]:
    """Columns over their scales, rotated; and their squares (g, p) with weights (g, m)."""
    X = product("pm,mi->pi", X / scale[:, None], W)
    return X, product("pm,gm->gp", X * X, weights)


@compiled
def root_mean_square(X: Array, rows: Array) -> Array:
    size = jnp.sqrt((X * X).sum(axis=1) / rows)
    return jnp.where(size > 0, size, 1.0)
