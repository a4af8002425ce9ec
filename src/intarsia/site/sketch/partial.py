"""Partial sums of a sketch, additive over rows: over blocks, files, stores and machines of one site, in any order.

With G (m × n) the keyed stream, Z the site's columns (features, responses, covariates) and p a pilot row, the sums
over the rows seen so far are S = G(Z − 1pᵀ), g = G1, K = GGᵀ, the columns' moments, and H = G·(missing) where values are
missing. They are secret and stay with the site: together with the finished sketch they give away means and scales.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock, local
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from intarsia.errors import InputError, MessageError
from intarsia.site.data.moments import Moments, pilot_of
from intarsia.site.sketch.stream import MAX_M, fill, stride
from intarsia.wire.container import pack, unpack, write
from intarsia.wire.messages import check_labels
from intarsia.wire.study_parts import SKETCH_KINDS

Progress = Callable[[int, int], None]
Blocks = Iterable[tuple[np.ndarray, Any]]
Labels = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]  # features, responses, covariates
PANELS, PANEL = 16, (8, 1024)  # of a block's columns, for as many threads; how many columns each has
_LOCK, _SCRATCH = Lock(), local()


@dataclass(frozen=True)
class Design:
    """Which Φ: the sub-key of the stream (bound to study, run, n, m, kind and cohort), m, n and the kind."""

    subkey: bytes
    m: int
    n: int
    kind: str

    def __post_init__(self) -> None:
        if self.kind not in SKETCH_KINDS:
            raise InputError(f"Sketch kind {self.kind!r} is not one of {', '.join(SKETCH_KINDS)}.")
        if not 2 <= self.m <= MAX_M:
            raise InputError(f"m = {self.m}: a sketch needs 2 rows or more, at most {MAX_M}.")
        if self.m >= self.n:
            raise InputError(
                f"m = {self.m} rows of sketch for n = {self.n} subjects: m must be below n, else nothing is hidden. "
                "Choose a smaller m in the study, or bring more subjects."
            )

    def __repr__(self) -> str:
        return f"Design(m={self.m}, n={self.n}, kind={self.kind!r}, tag={self.tag[:8]})"

    @property
    def tag(self) -> str:
        """Names this Φ without telling it: partial sums of different Φ are never added."""
        text = f"intarsia/1 design {self.m} {self.n} {self.kind} ".encode()
        return hashlib.sha256(text + self.subkey).hexdigest()[:32]


@dataclass
class Partial:
    """Sums over some rows. `merge` (or +) adds those over other rows; `finish` in `sketch` makes the sketch of all."""

    tag: str
    features: tuple[str, ...]
    responses: tuple[str, ...]
    covariates: tuple[str, ...]
    S: np.ndarray
    g: np.ndarray
    K: np.ndarray | None
    H: np.ndarray | None
    moments: Moments
    covered: np.ndarray

    def __repr__(self) -> str:
        return f"Partial({self.moments.rows} of {len(self.covered)} subjects)"

    @property
    def labels(self) -> Labels:
        return self.features, self.responses, self.covariates

    def merge(self, other: "Partial") -> "Partial":
        """The sums over both sets of rows. Same Φ, same columns, no subject twice."""
        if self.tag != other.tag:
            raise InputError("The partial sums belong to different sketches (key, study, run, n, m or kind differ).")
        if self.labels != other.labels:
            raise InputError(
                "The partial sums have different columns. Open every store with the same roles and, for categorical "
                'columns, the same levels (columns={"…": {"levels": […]}}).'
            )
        if (twice := int((self.covered & other.covered).sum())) > 0:
            raise InputError(f"{twice} subjects are in both partial sums. Each subject is counted in one store only.")
        # Count the other's sums from our pilot: Σ G(z − p') = S + (g − H)(p − p').
        by = other.moments.pilot - self.moments.pilot
        seen = other.g[:, None] if other.H is None else other.g[:, None] - other.H
        H = self.H if other.H is None else other.H if self.H is None else self.H + other.H
        return replace(
            self, S=self.S + other.S + seen * by, g=self.g + other.g, H=H, moments=self.moments.merge(other.moments),
            K=None if self.K is None or other.K is None else self.K + other.K, covered=self.covered | other.covered,
        )  # fmt: skip

    __add__ = merge

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sums to a file only its owner may read. It stays behind the site's wall."""
        mo = self.moments
        arrays = {"S": self.S, "g": self.g, "pilot": mo.pilot, "missing": mo.missing, "infinite": mo.infinite,
                  "total": mo.total, "square": mo.square, "covered": np.packbits(self.covered)}  # fmt: skip
        arrays |= {name: a for name, a in (("K", self.K), ("H", self.H)) if a is not None}
        header = {"schema": 1, "tag": self.tag, "features": list(self.features), "responses": list(self.responses),
                  "covariates": list(self.covariates), "rows": mo.rows, "n": len(self.covered)}  # fmt: skip
        write(path, pack("partial", header, arrays), mode=0o600)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Partial":
        header, a = unpack(path, "partial")
        try:
            features = check_labels(header["features"], "feature")
            responses = check_labels(header["responses"], "response")
            covariates = check_labels(header["covariates"], "covariate")
            n, rows, tag = header["n"], header["rows"], header["tag"]
            m, c = a["S"].shape
            shapes = {"S": (m, c), "g": (m,), "K": (m, m), "H": (m, c), "covered": (-(-n // 8),)}
            fits = all(x.shape == shapes.get(name, (c,)) for name, x in a.items())
            if header["schema"] != 1 or not fits or c != len(features) + len(responses) + len(covariates):
                raise ValueError
            covered = np.unpackbits(a["covered"], count=n).astype(bool)
            if covered.sum() != rows:
                raise ValueError
            moments = Moments(a["pilot"], rows, a["missing"], a["infinite"], a["total"], a["square"])
            return cls(tag, features, responses, covariates, a["S"], a["g"], a.get("K"), a.get("H"), moments, covered)
        except (KeyError, TypeError, ValueError):
            raise MessageError(f"{path} does not hold intact partial sums of a sketch. Make them again.") from None


def default_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


def accumulate(
    blocks: Blocks,
    design: Design,
    labels: Iterable[Iterable[str]],
    *,
    gram: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Partial:
    """Sum over blocks (Z, positions): row i of Z is the subject at place positions[i] of the order (−1: left out).

    While a block is multiplied, panel by panel of its columns, the next one is read and its columns of G are made, so
    the threads never wait for one another. Memory: two blocks of Z, two of G (m × rows), S and K.
    """
    features, responses, covariates = (tuple(names) for names in labels)
    threads = threads or default_threads()
    m, width = design.m, len(features) + len(responses) + len(covariates)
    covered = np.zeros(design.n, dtype=bool)
    sums: Partial | None = None
    iterator = _placed(blocks, covered)
    # Its last bits are a product's own for its width, so that how many threads there are must not decide it.
    panel = int(np.clip(-(-width // PANELS), *PANEL))
    # The panels are the parallel work; a BLAS that starts its own threads besides would only compete for the cores.
    with ThreadPoolExecutor(threads, thread_name_prefix="intarsia") as pool, threadpool_limits(1, "blas"):
        coming: Future[Any] = pool.submit(next, iterator, None)
        ready = _prepare(coming.result(), design, pool, threads)
        while ready is not None:
            Z, making, G = ready
            _all(making)
            if sums is None:
                empty = np.zeros((m, m)) if gram else None
                moments = Moments.empty(pilot_of(Z))
                sums = Partial(design.tag, features, responses, covariates, np.zeros((m, width)), np.zeros(m), empty, None,
                               moments, covered)  # fmt: skip
            coming = pool.submit(next, iterator, None)
            work = [pool.submit(_gram, sums, G)]
            panels = [slice(j, min(j + panel, width)) for j in range(0, width, panel)]
            work += [pool.submit(_multiply, sums, G, Z, columns) for columns in panels]
            ready = _prepare(coming.result(), design, pool, threads)
            _all(work)
            sums.moments.rows += len(Z)
            if progress is not None:
                progress(sums.moments.rows, design.n)
    if sums is None:
        raise InputError("No rows to sketch.")
    return sums


def _placed(blocks: Blocks, covered: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
    """Blocks without the rows left out, their places checked and marked."""
    for Z, given in blocks:
        if isinstance(given, range):
            positions: Any = given
            again: Any
            if len(given) and (given.start < 0 or given.stop > len(covered)):
                raise InputError(f"The table has more rows than the {len(covered)} subjects agreed on. Align first.")
            again = covered[given.start : given.stop].any()
            covered[given.start : given.stop] = True
        else:
            positions = np.asarray(given)
            Z, positions = (Z, positions) if (positions >= 0).all() else (Z[positions >= 0], positions[positions >= 0])
            if len(positions) and positions.max() >= len(covered):
                raise InputError(f"A row has a place beyond the {len(covered)} subjects agreed on. Align again.")
            again = covered[positions].any() or len(np.unique(positions)) < len(positions)
            covered[positions] = True
        if again:
            raise InputError("Two rows have the same place in the agreed order. Each subject has one row.")
        if len(positions):
            yield Z, positions


def _prepare(block: Any, design: Design, pool: ThreadPoolExecutor, threads: int) -> Any:
    """Start making the block's columns of G, in pieces."""
    if block is None:
        return None
    Z, positions = block
    buffer = np.empty((len(positions), stride(design.m)))
    piece = max(-(-len(positions) // (3 * threads)), 16)
    making = [
        pool.submit(fill, design.subkey, design.m, positions[a : a + piece], buffer[a : a + piece])
        for a in range(0, len(positions), piece)
    ]
    return Z, making, buffer[:, : design.m].T


def _multiply(sums: Partial, G: np.ndarray, Z: np.ndarray, columns: slice) -> None:
    # One scratch array per thread, kept from block to block: fresh memory of this size costs as much as filling it.
    size, shape = len(Z) * (columns.stop - columns.start), (len(Z), columns.stop - columns.start)
    if getattr(_SCRATCH, "space", np.empty(0)).size < size:
        _SCRATCH.space = np.empty(size)
    D, absent = sums.moments.add(Z, columns, out=_SCRATCH.space[:size].reshape(shape))
    sums.S[:, columns] += G @ D
    if absent is not None:
        with _LOCK:
            if sums.H is None:
                sums.H = np.zeros_like(sums.S)
        sums.H[:, columns] += G @ absent.astype(np.float64)


def _gram(sums: Partial, G: np.ndarray) -> None:
    sums.g += G.sum(axis=1)
    if sums.K is not None:
        sums.K += G @ G.T


def _all(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        future.result()
