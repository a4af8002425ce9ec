"""A site's standardised columns as whole numbers, in the order of subjects the sites agreed on; on disk, one block in memory
at a time.

Each value is rounded up or down at random, by numbers that depend on the site, the row of the table and the column alone, and
that only the site knows. So the products are the same in every run on the same values, whatever the key, the order of
subjects or the carrier: a run again tells nothing new.
"""

import hashlib
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.files import OWNER_ONLY, damaged, digest_of, reserve, writing
from intarsia.site.data.moments import Moments, pilot_of
from intarsia.site.data.row_blocks import block_rows
from intarsia.site.data.table import Table
from intarsia.site.run_store import RunStore
from intarsia.site.units import Units
from intarsia.wire.ring import TOP_BITS, Ring, encode, fraction_bits

FILE, DIGEST = "encoded.secret", "encoded.digest"


@dataclass(frozen=True)
class Encoded:
    """The columns (n × c) modulo 2⁶⁴, their labels by role, and the units they were in."""

    columns: Ring = field(repr=False)
    units: Units
    bits: int


def opened(store: RunStore, n: int, c: int) -> Ring:
    """The encoded columns that `encode_table` left."""
    path = store.path(FILE)
    if path is None:
        raw = store.need(FILE, "Make the site's own Gram block first.")
        return np.frombuffer(raw, dtype=np.uint64).reshape(n, c)
    if not path.is_file():
        raise InputError("The encoded columns of this run are gone from the site's folder. Start a new run of the study.")
    if FILE not in store.checked:  # once per process: a study of many blocks opens it for each
        digest = store.get(DIGEST)
        if digest is not None and digest.decode() != digest_of(path):
            raise damaged(path, "Start a new run of the study: nothing of these columns is sent any more.")
        store.checked.add(FILE)
    return np.memmap(path, dtype=np.uint64, mode="r", shape=(n, c))


def encode_table(table: Table, order: Any, store: RunStore, secret: bytes, spare: int = 0) -> Encoded:
    """Two passes over the table: means and scales, then the encoded columns. The site's `secret` decides the rounding.

    `spare` bits are left free (`Study.spare_bits`).
    """
    n = len(order)
    place = np.full(table.n, -1, dtype=np.int64)
    place[order] = np.arange(n)
    moments = _moments(table, place)
    moments.check(table.labels, missing=table.missing_rules, constant=table.constant)
    flat = moments.constant()
    kept = np.flatnonzero(~flat)
    if not len(kept):
        raise InputError("Every column is constant: nothing is left for a Gram matrix.")
    bits, mean, sd = fraction_bits(n, spare), moments.mean[kept], moments.sd[kept]
    seed = int.from_bytes(hashlib.sha256(b"intarsia gram rounding 1|" + secret).digest(), "little")
    uniform = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    with _target(store, n, len(kept)) as out:
        squares = _fill(out, table, Standard(mean, sd, bits, kept), place, uniform)
        large = [table.labels[j] for j in kept[squares >= 2.0**TOP_BITS]]
        if large:
            raise InputError(
                f"Column {large[0]!r} ({len(large)} in all) is too large for the fixed-point numbers of {n} subjects. Nothing "
                "was shared. Look for values in another unit, or take logarithms."
            )
    return Encoded(opened(store, n, len(kept)), _units(table, moments, kept, flat), bits)


class Standard(NamedTuple):
    """How columns become fixed-point numbers: centre and scale, bits after the point, and which columns."""

    mean: NDArray[Any]
    sd: NDArray[Any]
    bits: int
    kept: NDArray[Any]


def _fill(out: Any, table: Table, how: Standard, place: Any, uniform: np.random.Generator) -> NDArray[Any]:
    """Write the encoded rows into `out`, each at its place; the sums of squares of the columns."""
    width, kept = len(table.labels), how.kept
    at = 0
    squares = np.zeros(len(kept))
    for Z in table.raw_blocks(block_rows(width)):
        where = place[at : at + len(Z)]
        at += len(Z)
        u = uniform.random((len(Z), width))[:, kept]  # drawn for every row and column, so that it belongs to them alone
        chosen = where >= 0
        if not chosen.any():
            continue
        standard = (Z[chosen][:, kept] - how.mean) / how.sd
        standard[np.isnan(standard)] = 0.0  # missing values are at the mean
        code = encode(standard, how.bits, u[chosen])
        squares += np.square(code.view(np.int64).astype(np.float64)).sum(axis=0)
        out[where[chosen]] = code
        let_go(out)
    return squares


def _moments(table: Table, place: Any) -> Moments:
    found: Moments | None = None
    at = 0
    for Z in table.raw_blocks(block_rows(len(table.labels))):
        chosen = place[at : at + len(Z)] >= 0
        at += len(Z)
        Z = Z[chosen]
        if len(Z):
            found = found or Moments.empty(pilot_of(Z))
            found.add(Z, slice(None))
            found.rows += len(Z)
    if found is None:
        raise InputError("No subject of the table is in the agreed cohort.")
    return found


def let_go(columns: Any) -> None:
    """Take the pages of a file that is mapped out of this process's memory: its columns may be larger than what a site has. What
    was written stays in the system's cache until it is on the disk."""
    if isinstance(columns, np.memmap) and hasattr(mmap, "MADV_DONTNEED"):
        columns._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]  # numpy keeps it there


@contextmanager
def _target(store: RunStore, n: int, c: int) -> Iterator[Any]:
    """Numbers to fill in, kept as the run's encoded columns when they all are."""
    path = store.path(FILE)
    if path is None:
        out = np.empty((n, c), dtype=np.uint64)
        yield out
        store.replace(FILE, out.tobytes())
        return
    with writing(path, mode=OWNER_ONLY) as file:
        reserve(file, 8 * n * c)  # a disk that is full ends a process that writes through a map
        mapped = np.memmap(file, dtype=np.uint64, mode="r+", shape=(n, c))
        yield mapped
        mapped.flush()
        digest, step = hashlib.sha256(), block_rows(c)
        for start in range(0, n, step):
            digest.update(mapped[start : start + step].data)
            let_go(mapped)
        store.replace(DIGEST, digest.hexdigest().encode())


def _units(table: Table, moments: Moments, kept: Any, flat: Any) -> Units:
    names, last = table.labels, len(table.features) + len(table.responses)
    at = {"x": kept[kept < len(table.features)], "z": kept[kept >= last]}
    at["y"] = kept[(kept >= len(table.features)) & (kept < last)]
    labels = {role: tuple(names[j] for j in where) for role, where in at.items()}
    numbers = {f"{role}_mean": moments.mean[where] for role, where in at.items()}
    numbers |= {f"{role}_scale": moments.sd[where] for role, where in at.items()}
    return Units(
        labels["x"], labels["y"], covariates=labels["z"], dropped=tuple(names[j] for j in np.flatnonzero(flat)), **numbers
    )
