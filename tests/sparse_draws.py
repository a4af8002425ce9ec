"""Made-up draws of a sparse posterior whose truth is known, and the same draws dense."""

import numpy as np

from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.sparse import Inclusion, SparseEffects

CHAINS, DRAWS, P, Q = 3, 60, 30, 2


def ragged(C: np.ndarray, inside: np.ndarray) -> SparseEffects:
    """Dense draws (chain, draw, P, Q), of which those features `inside` (chain, draw, P) are in."""
    flat = inside.reshape(-1, inside.shape[2])
    offsets = np.concatenate([[0], np.cumsum(flat.sum(axis=1))])
    return SparseEffects(C.shape, offsets, np.nonzero(flat)[1], C.reshape(-1, *C.shape[2:])[flat])


def made(
    inside: np.ndarray, seed: int = 0, background: bool = False, without: np.ndarray | None = None, noise: float = 1.0
) -> tuple[Draws, np.ndarray]:
    """Draws in which features are in as given: effects around 1, one in five of them zero on a response."""
    rng = np.random.default_rng(seed)
    chains, draws, p = inside.shape
    C = (1 + 0.2 * rng.standard_normal((chains, draws, p, Q))) * inside[..., None]
    C[..., 1] *= rng.random((chains, draws, p)) < 0.8
    known = Inclusion(inside.mean(axis=1), *_parts(C, inside), pip_without=without)
    slab = np.exp(0.1 * rng.standard_normal((chains, draws, 1, 1))) * np.eye(Q)
    parameters = {
        "included": inside.sum(axis=2).astype(float), "slab": slab, "prior_inclusion": np.full((chains, draws), 0.05),
        "background_ratio": rng.choice([0.0, 0.2], (chains, draws)) if background else np.zeros((chains, draws)),
    }  # fmt: skip
    Sigma = noise * np.exp(0.1 * rng.standard_normal((chains, draws, 1, 1))) * np.eye(Q)
    D = 0.1 * rng.standard_normal((p, Q)) if background else None
    return Draws(ragged(C, inside), Sigma, parameters, inclusion=known, background=D), C


def _parts(C: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    there = ragged(C, inside)
    return there.offsets, there.features, np.ones(len(there.features)), there.effects


def at_random(seed: int = 0, shape: tuple[int, int, int] = (CHAINS, DRAWS, P)) -> np.ndarray:
    """Four features in most of the time, one now and then, the others seldom."""
    rng = np.random.default_rng(seed)
    place = np.arange(shape[2])
    return rng.random(shape) < np.select([place < 4, place == 4], [0.9, 0.1], 0.02)
