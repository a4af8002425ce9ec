"""JAX on several devices, each with an equal part of the features of the design and all else whole.

Only products with the design are cut over the devices, and brought together at once; everything after that each device does for
itself, on the same numbers. So a sweep talks to other devices once per product and twice per block of features.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from intarsia.server.sampler.backends.jax import JaxBackend, sent
from intarsia.server.sampler.backends.protocol import Array

FEATURES = "features"  # the axis along which the design is cut
BLOCKS = Spec(None, FEATURES)  # of arrays (blocks, k, …): a part of each block


class SpreadBackend(JaxBackend):
    """`design` is the design in blocks (blocks, k, m); device number i has the features from i · (blocks · k / devices) on."""

    def __init__(self, P: int) -> None:
        self.P, self.mesh = P, Mesh(np.array(jax.devices()), (FEATURES,))

    def sent(self, shape: tuple[int, int, int], part: Callable[[int, int, int], Any], step: int) -> Array:  # type: ignore[override]
        own, each = (shape[0], shape[1] // self.mesh.size, shape[2]), []
        for lane, device in enumerate(self.mesh.devices):
            each.append(sent(own, partial(_put, part, lane, device), step))
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self.mesh, BLOCKS), each)

    def everywhere(self, tree: Any) -> Any:  # type: ignore[override]
        whole = NamedSharding(self.mesh, Spec())
        cut = lambda x: isinstance(x, jax.Array) and x.sharding.device_set == set(self.mesh.devices.flat)  # noqa: E731
        return jax.tree.map(lambda x: x if cut(x) else jax.device_put(x, whole), tree)

    @staticmethod
    def design(Xt: Array, P: int) -> Array:
        del P
        return Xt

    def weigh(self, X: Array, lam: Array, Z: Array) -> tuple[Array, Array]:  # type: ignore[override]
        def own(X: Array, lam: Array, Z: Array) -> tuple[Array, Array]:
            return lax.psum(JaxBackend.weigh(_columns(X), self._own(X, lam), self._own(X, Z)), FEATURES)

        return self._cut(own, X, lam, Z)

    def times(self, X: Array, V: Array) -> Array:  # type: ignore[override]
        return self._cut(lambda X, V: self.together(JaxBackend.times(_columns(X), self._own(X, V))), X, V)

    def cross(self, X: Array, W: Array) -> Array:  # type: ignore[override]
        def own(X: Array, W: Array) -> Array:
            return lax.all_gather(JaxBackend.cross(_columns(X), W), FEATURES, tiled=True)

        return self._cut(own, X, W)[: self.P]

    def columns(self, X: Array, chosen: Array) -> Array:  # type: ignore[override]
        def own(X: Array, chosen: Array) -> Array:
            here = _columns(X)
            place = chosen - lax.axis_index(FEATURES) * here.shape[1]
            mine = (place >= 0) & (place < here.shape[1])
            return self.together(jnp.where(mine, here[:, jnp.where(mine, place, 0)], 0.0))

        return self._cut(own, X, chosen)

    def over_blocks(  # type: ignore[override]
        self, step: Callable[..., tuple[Any, Any]], carry: Any, same: tuple[Array, ...], cut: tuple[Array, ...]
    ) -> Any:
        X, *others = cut

        def own(X: Array, carry: Any, same: tuple[Array, ...], others: list[Array]) -> Any:
            width = X.shape[1]
            mine = [lax.dynamic_slice_in_dim(x, lax.axis_index(FEATURES) * width, width, axis=1) for x in others]
            carry, made = lax.scan(lambda carry, x: step(carry, *x), carry, (same, (X, *mine)))
            return carry, jax.tree.map(lambda x: lax.all_gather(x, FEATURES, axis=1, tiled=True), made)

        return self._cut(own, X, carry, same, others)

    @staticmethod
    def together(x: Array) -> Array:
        return lax.psum(x, FEATURES)

    def _cut(self, function: Callable[..., Any], X: Array, *others: Any) -> Any:
        """What `function` gives of the design's parts. All else is given whole: JAX would cut what it is made of, too."""
        specs = (BLOCKS, *(Spec() for _ in others))
        # What comes out is the same on every device, which JAX cannot see by itself.
        return shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=Spec(), check_vma=False)(X, *others)

    def _own(self, X: Array, x: Array) -> Array:
        """The rows of x (P, …) that belong to this device's features, filled up with zeros."""
        number = X.shape[0] * X.shape[1]
        filled = jnp.concatenate([x, jnp.zeros((number * self.mesh.size - self.P, *x.shape[1:]), x.dtype)])
        return lax.dynamic_slice_in_dim(filled, lax.axis_index(FEATURES) * number, number)


def _put(part: Callable[[int, int, int], Any], lane: int, device: Any, first: int, last: int) -> Array:
    return jax.device_put(part(lane, first, last), device)


def _columns(Xt: Array) -> Array:
    """The design (m, features) from its blocks."""
    return Xt.reshape(-1, Xt.shape[2]).T
