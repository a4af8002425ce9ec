"""What the sampler asks of an array library.

A backend gives `xp` (the array namespace), a few special functions, functional loops and the factorisation of
G = X diag(lam²) Xᵀ. Every backend solves the same systems, so the same noise gives the same state.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Array = Any  # an array of the backend's library


class Factor(Protocol):
    """Systems (I + d_j² G) for several d_j at once, in coordinates rotated by an orthogonal matrix of its own."""

    G: Array

    def rotate(self, V: Array) -> Array: ...
    def unrotate(self, V: Array) -> Array: ...
    def log_marginal(self, d: Array, Yr: Array) -> Array:
        """Σ_j [log det(I + d_j² G) + y_jᵀ(I + d_j² G)⁻¹ y_j], y_j the rotated columns of Yr."""
        ...

    def evidence(self, M: Array, Yw: Array) -> Array:
        """log det K + vec(Yw)ᵀ K⁻¹ vec(Yw) for K = I + M Mᵀ ⊗ G, M (Q×R) and Yw (m×Q) rotated."""
        ...

    def solve(self, d: Array, rhs: Array) -> Array:
        """Solve for each j: rhs is (R, m, columns), rotated."""
        ...

    def apply(self, V: Array) -> Array:
        """G V, nothing rotated."""
        ...

    def root(self, z: Array) -> Array:
        """R z with R Rᵀ = G, rotated."""
        ...

    def apply_rotated(self, V: Array) -> Array:
        """G V for V rotated, and so rotated."""
        ...

    def trace(self) -> Array: ...


class Backend(Protocol):
    """An array library with what the sweep needs beyond the array namespace."""

    @property
    def xp(self) -> Any:
        """The array namespace."""
        ...

    def ndtr(self, x: Array) -> Array: ...
    def ndtri(self, x: Array) -> Array: ...
    def asarray(self, x: Array) -> Array: ...

    def gram(self, Xl: Array) -> Array:
        """Xl Xlᵀ, its lower triangle at least."""
        ...

    def weigh(self, X: Array, lam: Array, Z: Array) -> tuple[Array, Array]:
        """X diag(lam²) Xᵀ (its lower triangle at least) and X diag(lam) Z."""
        ...

    def grams(self, X: Array, scale: Array) -> Array:
        """X diag(scale_r²) Xᵀ for each column r of `scale`."""
        ...

    def times(self, X: Array, V: Array) -> Array:
        """X V for a few columns V."""
        ...

    def cross(self, X: Array, W: Array) -> Array:
        """Xᵀ W for a few columns W."""
        ...

    def columns(self, X: Array, chosen: Array) -> Array:
        """X[:, chosen]."""
        ...

    def factor(self, G: Array, X: Array, lam: Array, top: Array, *, many: bool = False) -> Factor:
        """Factor G = X diag(lam²) Xᵀ; `top` bounds the d_j² to come, `many` evaluations may follow."""
        ...

    def spd_solve(self, make: Callable[[], Array], b: Array) -> Array:
        """M⁻¹ b for a symmetric M = make() ≥ I."""
        ...

    def normal_rows(self, F: Array, Y: Array, s: Array, Z: Array) -> Array:
        """Row q ~ N(Ω_q⁻¹ h_q, Ω_q⁻¹), Ω_q = FᵀF/s_q² + I, h_q = Fᵀy_q/s_q², from the standard normal Z (Q×R)."""
        ...

    def triangular_solve(self, L: Array, b: Array) -> Array:
        """L⁻¹ b for lower factors, stacked or not."""
        ...

    def branch(self, condition: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], x: Any) -> Any:
        """yes(x) where the condition holds, of chains side by side for all of them; else no(x), which must be right for all."""
        ...

    def scan(self, step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: tuple[Array, ...]) -> tuple[Any, Any]:
        """Fold `step` over the leading axis of xs; the outputs are stacked."""
        ...

    def settle(self, f: Callable[[Array], Array], x: Array) -> Array:
        """Iterate f from x until nothing changes (f is triangular, so it settles exactly)."""
        ...

    def put(self, x: Array, index: Array, value: Array) -> Array:
        """x with x[index] = value."""
        ...

    def largest(self, x: Array, k: int) -> Array:
        """Indices of the k largest entries, in ascending order of index."""
        ...

    def members(self, mask: Array, k: int) -> Array:
        """Indices where the mask holds, k at most; on a device k always, filled up with others."""
        ...

    def over_blocks(
        self, step: Callable[..., tuple[Any, Any]], carry: Any, same: tuple[Array, ...], cut: tuple[Array, ...]
    ) -> tuple[Any, Any]:
        """Fold step(carry, same, cut) over the blocks of features, the leading axis of both; devices that have a part of each
        block have that part of `cut`, and call `together` for sums over features.
        """
        ...

    def together(self, x: Array) -> Array:
        """In `over_blocks`: the sum over the devices; x itself where there is one."""
        ...

    def over_chains(self, x: Array) -> Array:
        """The mean over chains that run side by side; x itself where a chain runs alone."""
        ...


class DeviceBackend(Backend, Protocol):
    """An array library that compiles whole loops for an accelerator, chains side by side."""

    def precision(self) -> Any:
        """Double precision while this context lasts."""
        ...

    def device(self) -> str:
        """What it runs on, in words."""
        ...

    def memory(self) -> float:
        """Bytes of the device's memory."""
        ...

    def lanes(self) -> int:
        """How many devices there are."""
        ...

    def over(self, P: int) -> "DeviceBackend":
        """The same with P features spread over all devices."""
        ...

    def sent(self, shape: tuple[int, int, int], part: Callable[[int, int, int], Any], step: int) -> Array:
        """The design in blocks (blocks, k, m), each device with its part of every block; `part(number, first, last)` are the
        columns (m, …) of some blocks of device `number`, at most `step` of which are asked for at once.
        """
        ...

    def rows(self, x: Array, first: int, last: int) -> Any:
        """x[..., first:last, :], brought to the host."""
        ...

    def everywhere(self, tree: Any) -> Any:
        """Arrays that are not cut over the devices, whole on each of them."""
        ...

    def design(self, Xt: Array, P: int) -> Array:
        """What stands for the design X in `weigh`, `times`, `cross` and `columns`, from its blocks."""
        ...

    def bounds(self, Xt: Array) -> Any:
        """`moves.bound` of every block (blocks, k, m)."""
        ...

    def jit(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]: ...
    def vmap(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]: ...
    def switch(self, index: Array, branches: Sequence[Callable[..., Any]], *arguments: Any) -> Any: ...
    def tree_map(self, function: Callable[..., Any], *trees: Any) -> Any: ...

    def shapes(self, tree: Any) -> Any:
        """Shapes and types in place of the arrays."""
        ...

    def keys(self, seed: int, chains: int) -> Array:
        """A generator for each chain, split from the seed, as plain words."""
        ...

    def draw_noise(self, plan: Any, words: Array, *kind: Any) -> tuple[Array, dict[str, Array]]:
        """One sweep's random numbers, and the generator after it."""
        ...
