"""JAX behind the sampler: the same sweep on an accelerator, in double precision, whole stretches of it compiled.

The systems I + d_j² G are solved by Cholesky factors, all j (and all chains) in one batch; G itself is kept unrotated. Double
precision is switched on inside `precision()` only, so that a user's own JAX programs keep their setting.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr, ndtri

from intarsia.server.sampler.backends.protocol import Array

# Memory of the device is taken as it is needed: what is set aside at once takes a thirtieth as much memory of the host. JAX reads
# this when it first looks for devices; who sets it otherwise has it otherwise.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

HALVES = 24.0  # gamma variates of shape n/2 up to here are sums of exponentials and one squared normal
WIDE = 2**26  # numbers in X from which its products are cut into parts
PARTS = 40  # about so many parts of the features
SUMMED = 6_144  # features whose products are added up in single precision
# Systems up to one size and from the other are diagonalised once rather than factored for each evaluation: for sizes between,
# the eigenvalue routines of the device take longer than all the factors.
SMALL, LARGE = 128, 400
CHAINS = "chains"  # the axis along which they lie side by side
PANEL = 256  # columns factored at a time in a batch of large systems
ALONE = 2048  # a batch of systems of this size is solved one after the other: the batched routine is slower


class Cholesky:
    """Systems (I + d_j² G) by batched Cholesky factors. Nothing is rotated."""

    def __init__(self, G: Array) -> None:
        self.G = G

    def rotate(self, V: Array) -> Array:
        return V

    def unrotate(self, V: Array) -> Array:
        return V

    def log_marginal(self, d: Array, Yr: Array) -> Array:
        """Σ_j [log det(I + d_j² G) + y_jᵀ(I + d_j² G)⁻¹ y_j]."""
        L, half = self._forward(d, Yr.T[:, :, None])
        return 2 * jnp.log(jnp.diagonal(L, axis1=1, axis2=2)).sum() + (half**2).sum()

    def evidence(self, M: Array, Yw: Array) -> Array:
        """log det K + vec(Yw)ᵀ K⁻¹ vec(Yw) for K = I + M Mᵀ ⊗ G, M (Q×R) and Yw (m×Q)."""
        U, d, _ = jnp.linalg.svd(M, full_matrices=False)
        Yr = Yw @ U
        return self.log_marginal(d, Yr) + (Yw**2).sum() - (Yr**2).sum()

    def solve(self, d: Array, rhs: Array) -> Array:
        """Solve for each j: rhs is (R, m, columns)."""
        return backward(*self._forward(d, rhs))

    def apply(self, V: Array) -> Array:
        """G V."""
        return self.G @ V

    def root(self, z: Array) -> Array:
        """R z with R Rᵀ = G."""
        w, V = _eigh(self.G)
        return V @ (jnp.sqrt(jnp.maximum(w, 0.0))[:, None] * z)

    def apply_rotated(self, V: Array) -> Array:
        return self.G @ V

    def trace(self) -> Array:
        return jnp.trace(self.G)

    def _forward(self, d: Array, rhs: Array) -> tuple[Array, Array]:
        """Factors L_j and L_j⁻¹ rhs; where rounding has eaten the identity, with the smallest ridge that restores it."""
        scaled = (d**2)[:, None, None] * self.G
        ridge = (jnp.finfo(scaled.dtype).eps * jnp.trace(scaled, axis1=1, axis2=2))[:, None, None]
        eye = jnp.eye(self.G.shape[0])

        def failed(carry: Any) -> Array:
            return ~jnp.isfinite(carry[1]).all() & (carry[2] < 8)

        def again(carry: Any) -> Any:
            bad = ~jnp.isfinite(carry[1]).all(axis=(1, 2), keepdims=True)
            new = forward(scaled + (1 + 10.0 ** carry[2] * ridge) * eye, rhs)
            return jnp.where(bad, new[0], carry[0]), jnp.where(bad, new[1], carry[1]), carry[2] + 1

        return lax.while_loop(failed, again, (*forward(scaled + eye, rhs), 0))[:2]


class Eigen(Cholesky):
    """The same systems once G has been diagonalised: every further d costs next to nothing."""

    def __init__(self, G: Array) -> None:
        super().__init__(G)
        w, self.V = (jax.custom_batching.sequential_vmap(_eigh) if G.shape[0] >= LARGE else _eigh)(G)
        self.w = jnp.maximum(w, 0.0)

    def rotate(self, V: Array) -> Array:
        return self.V.T @ V

    def unrotate(self, V: Array) -> Array:
        return self.V @ V

    def root(self, z: Array) -> Array:
        return jnp.sqrt(self.w)[:, None] * z

    def apply_rotated(self, V: Array) -> Array:
        return self.w[:, None] * V

    def log_marginal(self, d: Array, Yr: Array) -> Array:
        scaled = d**2 * self.w[:, None]
        return jnp.log1p(scaled).sum() + (Yr**2 / (1 + scaled)).sum()

    def evidence(self, M: Array, Yw: Array) -> Array:
        """Gauss elimination of I + w_i M Mᵀ for all i at once: a device takes longer over one small SVD than over this."""
        K = jnp.eye(M.shape[0]) + self.w[:, None, None] * (M @ M.T)
        y, total = Yw, jnp.zeros(Yw.shape[0])
        for q in range(M.shape[0]):
            pivot, first = K[:, 0, 0], y[:, 0]
            total = total + jnp.log(pivot) + first**2 / pivot
            if q + 1 < M.shape[0]:
                below = K[:, 1:, 0] / pivot[:, None]
                y = y[:, 1:] - below * first[:, None]
                K = K[:, 1:, 1:] - below[:, :, None] * K[:, :1, 1:]
        return total.sum()

    def solve(self, d: Array, rhs: Array) -> Array:
        return rhs / (1 + (d**2)[:, None] * self.w)[:, :, None]


def _eigh(G: Array) -> tuple[Array, Array]:
    return tuple(jnp.linalg.eigh(G))  # type: ignore[return-value]


def forward(M: Array, rhs: Array) -> tuple[Array, Array]:
    """The Cholesky factor L of each M, and L⁻¹ rhs."""
    if LARGE <= M.shape[-1] < ALONE and jax.default_backend() != "cpu":
        return by_panels(M, rhs, PANEL)
    L = jnp.linalg.cholesky(M)
    return L, lax.linalg.triangular_solve(L, rhs, left_side=True, lower=True)


def by_panels(M: Array, rhs: Array, panel: int) -> tuple[Array, Array]:
    """The same, a panel of columns after the other, the right-hand sides as further rows: no solve of its own for them."""
    n = M.shape[-1]
    tall = jnp.concatenate([M, jnp.swapaxes(rhs, -1, -2)], axis=-2)
    L = jnp.zeros_like(tall)
    for i in range(0, n, panel):
        j = min(n, i + panel)
        S = tall[..., i:, i:j] - L[..., i:, :i] @ jnp.swapaxes(L[..., i:j, :i], -1, -2)
        D = jnp.linalg.cholesky(S[..., : j - i, :])
        rest = lax.linalg.triangular_solve(D, S[..., j - i :, :], left_side=False, lower=True, transpose_a=True)
        L = L.at[..., i:j, i:j].set(D).at[..., j:, i:j].set(rest)
    return L[..., :n, :], jnp.swapaxes(L[..., n:, :], -1, -2)


def backward(L: Array, b: Array) -> Array:
    """Lᵀ⁻¹ b for stacked lower factors."""
    return lax.linalg.triangular_solve(L, b, left_side=True, lower=True, transpose_a=True)


class JaxBackend:
    """JAX on whatever device it finds."""

    xp: Any = jnp
    ndtr = staticmethod(ndtr)
    ndtri = staticmethod(ndtri)

    @staticmethod
    def precision() -> Any:
        """Double precision while this context lasts."""
        return jax.enable_x64(True)

    @staticmethod
    def device() -> str:
        """What it runs on, in words."""
        first = jax.devices()[0]
        return f"{first.platform}: {first.device_kind}"

    @staticmethod
    def memory() -> float:
        """Bytes of the device's memory."""
        found = jax.devices()[0].memory_stats()
        return float(found["bytes_limit"]) if found and "bytes_limit" in found else 8e9

    @staticmethod
    def gram(Xl: Array) -> Array:
        """Xl Xlᵀ, both triangles."""
        return Xl @ Xl.T

    @staticmethod
    def weigh(X: Array, lam: Array, Z: Array) -> tuple[Array, Array]:
        """X diag(lam²) Xᵀ and X diag(lam) Z."""
        m, P = X.shape
        if m * P < WIDE:
            Xl = X * lam
            return Xl @ Xl.T, Xl @ Z
        return split_gram(X, lam), JaxBackend.times(X, lam[:, None] * Z)

    @staticmethod
    def times(X: Array, V: Array) -> Array:
        """X V for a few columns V; where the sum over the features is long, in parts that keep all of a device busy."""
        m, P = X.shape
        if m * P < WIDE:
            return X @ V
        parts = _divisor(P, PARTS)
        return jnp.einsum("cpi,cpr->cir", X.T.reshape(parts, P // parts, m), V.reshape(parts, P // parts, -1)).sum(axis=0)

    @staticmethod
    def cross(X: Array, W: Array) -> Array:
        return X.T @ W

    @staticmethod
    def columns(X: Array, chosen: Array) -> Array:
        return X[:, chosen]

    @staticmethod
    def factor(G: Array, X: Array, lam: Array, top: Array, *, many: bool = False) -> Cholesky:
        """`many` evaluations may follow: then G is diagonalised where that is quick enough."""
        del X, lam, top
        G, m = (G + G.T) / 2, G.shape[0]
        return Eigen(G) if many and (m <= SMALL or m >= LARGE) else Cholesky(G)

    @staticmethod
    def branch(condition: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], x: Any) -> Any:
        """Of chains side by side all take `yes`, or all take `no`: a device that branches for each chain computes both."""
        with suppress(NameError):  # raised where a chain runs alone
            condition = lax.pmin(jnp.asarray(condition).astype(int), CHAINS) > 0
        return lax.cond(condition, yes, no, x)

    @staticmethod
    def scan(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: tuple[Array, ...]) -> tuple[Any, Any]:
        return lax.scan(step, jax.tree.map(jnp.asarray, carry), xs)

    @staticmethod
    def settle(f: Callable[[Array], Array], x: Array) -> Array:
        def again(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            # Two rounds a turn: asking a device whether it is done costs more than the round.
            new = f(carry[1])
            return new, f(new)

        return lax.while_loop(lambda carry: (carry[0] != carry[1]).any(), again, (x, f(x)))[1]

    @staticmethod
    def put(x: Array, index: Array, value: Array) -> Array:
        return x.at[index].set(value)

    @staticmethod
    def largest(x: Array, k: int) -> Array:
        if k >= x.shape[0]:
            return jnp.arange(x.shape[0])
        return jnp.sort(lax.top_k(x, k)[1]).astype(jnp.int64)

    @staticmethod
    def members(mask: Array, k: int) -> Array:
        number, place = mask.sum(), jnp.arange(1, k + 1)
        inside = jnp.searchsorted(jnp.cumsum(mask), place)
        others = jnp.searchsorted(jnp.cumsum(~mask), place - number)
        return jnp.where(place <= number, inside, others)

    @staticmethod
    def over_blocks(step: Callable[..., tuple[Any, Any]], carry: Any, same: tuple[Array, ...], cut: tuple[Array, ...]) -> Any:
        return lax.scan(lambda carry, x: step(carry, *x), carry, (same, cut))

    @staticmethod
    def together(x: Array) -> Array:
        return x

    @staticmethod
    def over_chains(x: Array) -> Array:
        with suppress(NameError):
            return lax.pmean(x, CHAINS)
        return x

    @staticmethod
    def asarray(x: Array) -> Array:
        return jnp.asarray(x, dtype=jnp.float64)

    @staticmethod
    def grams(X: Array, scale: Array) -> Array:
        """X diag(scale_r²) Xᵀ for each column r of `scale`."""
        return jnp.stack([(X * scale[:, r] ** 2) @ X.T for r in range(scale.shape[1])])

    @staticmethod
    def spd_solve(make: Callable[[], Array], b: Array) -> Array:
        """M⁻¹ b for a symmetric M = make() ≥ I."""
        M = make()

        def solve(M: Array, b: Array) -> Array:
            return Cholesky(M - jnp.eye(M.shape[0])).solve(jnp.ones(1), b[None, :, None])[0, :, 0]

        return (jax.custom_batching.sequential_vmap(solve) if M.shape[0] >= ALONE else solve)(M, b)

    @staticmethod
    def triangular_solve(L: Array, b: Array) -> Array:
        return lax.linalg.triangular_solve(L, b, left_side=True, lower=True)

    @staticmethod
    def normal_rows(F: Array, Y: Array, s: Array, Z: Array) -> Array:
        """Row q ~ N(Ω_q⁻¹ h_q, Ω_q⁻¹), Ω_q = FᵀF/s_q² + I, h_q = Fᵀy_q/s_q²; Z (Q×R) is standard normal."""
        Omega = (F.T @ F)[None] / s[:, None, None] ** 2 + jnp.eye(F.shape[1])
        h = (F.T @ Y).T / s[:, None] ** 2
        L = jnp.linalg.cholesky(Omega)
        half = lax.linalg.triangular_solve(L, h[:, :, None], left_side=True, lower=True)
        return backward(L, half + Z[:, :, None])[:, :, 0]

    # What only a compiled run needs.
    @staticmethod
    def lanes() -> int:
        return len(jax.devices())

    @staticmethod
    def over(P: int) -> "JaxBackend":
        from intarsia.server.sampler.backends.spread import SpreadBackend

        return SpreadBackend(P)

    @staticmethod
    def sent(shape: tuple[int, int, int], part: Callable[[int, int, int], Any], step: int) -> Array:
        return sent(shape, lambda i, j: jnp.asarray(part(0, i, j)), step)

    @classmethod
    def rows(cls, x: Array, first: int, last: int) -> Any:
        """x[..., first:last, :] on the host; compiled once for all parts of one length."""
        with cls.precision():
            return np.asarray(jnp.take(x, first + jnp.arange(last - first), axis=-2))

    @staticmethod
    def everywhere(tree: Any) -> Any:
        return tree

    @staticmethod
    def design(Xt: Array, P: int) -> Array:
        return Xt.reshape(-1, Xt.shape[2])[:P].T

    def bounds(self, Xt: Array) -> Any:
        """`moves.bound` of every block, one after the other."""
        from intarsia.server.sampler.moves import bound

        return jax.jit(lambda Xt: lax.map(lambda one: bound(self, one), Xt))(Xt)

    @staticmethod
    def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Compiled; a GPU's library has the products in double precision, to look for better kernels takes a minute."""
        compiler = {"xla_gpu_enable_triton_gemm": False} if jax.default_backend() == "gpu" else None
        return jax.jit(function, compiler_options=compiler, **options)

    @staticmethod
    def vmap(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return jax.vmap(function, axis_name=CHAINS, **options)

    @staticmethod
    def switch(index: Array, branches: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
        return lax.switch(index, branches, *arguments)

    @staticmethod
    def tree_map(function: Callable[..., Any], *trees: Any) -> Any:
        return jax.tree.map(function, *trees)

    @staticmethod
    def shapes(tree: Any) -> Any:
        """Shapes and types in place of the arrays."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)

    @staticmethod
    def simulated(P: int, m: int, Q: int, block: int) -> Any:
        """Data of a random design with 50 signals, made where they are needed (P a multiple of the block; m ≤ P)."""
        from intarsia.server.sampler.state import Blocks, Data

        def make() -> Any:
            one, two, three = jax.random.split(jax.random.key(0), 3)
            Xt = jax.random.normal(one, (P // block, block, m), jnp.float64)
            first = Xt.reshape(P, m)[:50].T
            Y = first @ jax.random.normal(two, (50, Q), jnp.float64) / 5 + jax.random.normal(three, (m, Q), jnp.float64)
            return Xt, Y, (Xt**2).sum(axis=2).reshape(P)

        Xt, Y, norm2 = jax.jit(make)()
        return Data(None, Y, jnp.zeros((Q, Q)), float(m), norm2, jnp.sqrt((Y**2).mean(axis=0)), Blocks(Xt, None))

    @staticmethod
    def keys(seed: int, chains: int) -> Array:
        """A generator for each chain, split from the seed (raw words, so that they can be saved)."""
        first = jax.random.key_data(jax.random.key(seed))
        return jax.vmap(lambda k: _word(jax.random.fold_in(jax.random.wrap_key_data(first), k)))(jnp.arange(chains))

    @staticmethod
    def draw_noise(plan: Any, words: Array, *kind: Any) -> tuple[Array, dict[str, Array]]:
        """One sweep's random numbers, and the generator after it: each kind of variate is drawn in one go and cut up."""
        after, normal, uniform, small, large = jax.random.split(jax.random.wrap_key_data(words), 5)
        spec = plan.noise(*kind)
        out = _cut(spec, "normal", lambda n: jax.random.normal(normal, (n,), jnp.float64))
        # In (0, 1]: its logarithm is finite.
        out |= _cut(spec, "uniform", lambda n: 1.0 - jax.random.uniform(uniform, (n,), jnp.float64))
        wide: list[str] = []
        for name, (kind, shape, parameter) in spec.items():
            if kind != "gamma":
                continue
            if int(np.prod(shape)) > 256 and (2 * parameter).is_integer() and parameter <= HALVES:
                small, use = jax.random.split(small)
                out[name] = _gamma_of_halves(use, parameter, shape)
            else:
                wide.append(name)
        if wide:
            parameters = np.concatenate([np.broadcast_to(spec[n][2], spec[n][1]).ravel() for n in wide])
            values = jax.random.gamma(large, jnp.asarray(parameters), dtype=jnp.float64)
            at = 0
            for name in wide:
                size = int(np.prod(spec[name][1]))
                out[name] = values[at : at + size].reshape(spec[name][1])
                at += size
        return _word(after), out


def split_gram(X: Array, lam: Array) -> Array:
    """X diag(lam²) Xᵀ of many features at the speed of half precision, as exact as the identity that it is added to needs.

    Each number of X diag(lam) is the sum of two with eight bits each; the product of the two small ones is left out, and sums are
    in single precision within a part of the features. As many features as rows, those with the largest scales, are weighed in
    double precision: of the others no one is large beside the identity.
    """
    m, P = X.shape
    few = lax.top_k(lam.astype(jnp.float32), min(m, P))[1]
    rest, strong = lam.at[few].set(0.0), X[:, few] * lam[few]

    def products(Xt: Array, scales: Array) -> Array:
        x = Xt * scales[:, :, None]
        # Not by `astype` there and back, which a compiler may leave out.
        high = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
        high, low = high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)
        square, mixed = (
            jnp.einsum("cpi,cpj->cij", high, other, preferred_element_type=jnp.float32).astype(jnp.float64).sum(axis=0)
            for other in (high, low)
        )
        return square + mixed + mixed.T

    G, whole = strong @ strong.T, P // SUMMED * SUMMED
    for first, last, size in ((0, whole, SUMMED), (whole, P, P - whole)):
        if last > first:
            G = G + products(X.T[first:last].reshape(-1, size, m), rest[first:last].reshape(-1, size))
    return G


def sent(shape: tuple[int, int, int], part: Callable[[int, int], Array], step: int) -> Array:
    """Blocks (blocks, k, m) from their columns, a few at a time: the host has room for those alone."""
    each = []
    for i in range(0, shape[0], step):
        columns = part(i, min(shape[0], i + step))
        each.append(columns.T.reshape(-1, shape[1], shape[2]).block_until_ready())
    return jnp.concatenate(each)


def _divisor(P: int, near: int) -> int:
    """A divisor of P from `near` to thrice that; 1 where there is none."""
    return next((n for n in range(near, 3 * near) if P % n == 0), 1)


def _word(key: Array) -> Array:
    return jax.random.key_data(key)


def _cut(spec: dict[str, Any], kind: str, draw: Callable[[int], Array]) -> dict[str, Array]:
    names = [name for name, entry in spec.items() if entry[0] == kind]
    sizes = [int(np.prod(spec[name][1])) for name in names]
    values = draw(sum(sizes))
    ends = np.cumsum([0, *sizes])
    return {name: values[ends[i] : ends[i + 1]].reshape(spec[name][1]) for i, name in enumerate(names)}


def _gamma_of_halves(key: Array, a: float, shape: tuple[int, ...]) -> Array:
    """Gamma(n/2): no rejection, which an accelerator would repeat for all until the last is done."""
    one, two = jax.random.split(key)
    whole = int(a)
    total = jax.random.exponential(one, (whole, *shape), jnp.float64).sum(axis=0) if whole else jnp.zeros(shape)
    return total + jax.random.normal(two, shape, jnp.float64) ** 2 / 2 if a > whole else total
