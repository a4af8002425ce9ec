"""The array libraries behind the sampler. Nothing outside this folder knows which one it is."""

from intarsia.errors import InputError
from intarsia.server.sampler.backends.protocol import Backend, DeviceBackend


def get(name: str) -> Backend:
    """The backend called `numpy` or `jax`."""
    if name == "numpy":
        from intarsia.server.sampler.backends.numpy import NumpyBackend

        return NumpyBackend()
    if name == "jax":
        return on_device()
    raise InputError(f"Backend {name!r} is not known; expected 'numpy' or 'jax'.")


def engine(name: str) -> str:
    """Who makes the chains of a run: `cpu`, a process per chain, or `device`, all of them at once on an accelerator."""
    return "device" if name == "jax" else "cpu"


def on_device() -> DeviceBackend:
    """The backend for an accelerator."""
    try:
        from intarsia.server.sampler.backends.jax import JaxBackend
    except ModuleNotFoundError as error:
        if error.name not in ("jax", "jaxlib"):
            raise
        raise InputError("backend='jax' needs JAX, which is not installed. Run: pip install 'intarsia[gpu]'.") from None
    return JaxBackend()
