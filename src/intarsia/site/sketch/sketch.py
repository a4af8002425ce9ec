"""The sketch of a site's columns (paper, §2.1): X_Φ = ΦX, Y_Φ = ΦY, with Φ from the key the sites share.

`gaussian`, the paper's: Φ = G/√n, entries iid N(0, 1/n). Then ΦΦᵀ is the identity only on average.
`orthonormal`, the default: G_c = G(I − 11ᵀ/n), LLᵀ = G_c G_cᵀ, Φ = L⁻¹G_c. Then ΦΦᵀ = I and Φ1 = 0 exactly:
sketched noise stays iid, and the intercept is gone without anybody sending a mean. L depends on the key and n alone, so
all sites have the same.

    table = Table.open("clinic.parquet", id="patient", responses=["hba1c"])
    terms = SketchTerms(study="diabetes", run="a1b2c3d4", m=200, site="clinic")
    result = sketch(table, SketchKey.load("study.key"), terms)
    result.message.save("clinic.sketch")
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from threadpoolctl import threadpool_limits

from intarsia.errors import InputError
from intarsia.site.data.row_blocks import block_rows, check_order
from intarsia.site.key import SketchKey
from intarsia.site.sketch.clipping import Bound, ClippedNoise
from intarsia.site.sketch.grid_noise import snap
from intarsia.site.sketch.partial import Design, Partial, Progress, accumulate
from intarsia.site.sketch.stream import gaussian_columns
from intarsia.site.sketch.terms import COLUMNS, Columns, SketchTerms, Work
from intarsia.site.units import Units
from intarsia.wire.messages import Sketch

if TYPE_CHECKING:
    from intarsia.site.data.table import Table

__all__ = [
    "Bound", "ClippedNoise", "Partial", "SketchResult", "SketchTerms", "Work", "factor", "finish", "gaussian_columns", "partial",
    "sketch",
]  # fmt: skip

SOLVED = 1024  # columns at once
_FACTORS: OrderedDict[str, np.ndarray] = OrderedDict()  # L of the last few designs, by tag


@dataclass(frozen=True)
class SketchResult:
    """`message` goes to the server; `units` stay."""

    message: Sketch
    units: Units


@runtime_checkable
class ManyPieces(Protocol):
    """A source whose rows lie in pieces elsewhere and are summed there (Dask)."""

    def partial(
        self, table: "Table", design: Design, *, positions: Any, gram: bool,
        bound: Bound | None, progress: Progress | None,
    ) -> Partial: ...  # fmt: skip


def partial(
    table: "Table",
    design: Design,
    *,
    start: int = 0,
    positions: Any = None,
    gram: bool = True,
    bound: Bound | None = None,
    work: Work | None = None,
) -> Partial:
    """The sums over one store's rows, at places start, start + 1, … of the agreed order or at the given `positions`."""
    if positions is not None and len(positions) != table.n:
        raise InputError(f"{len(positions)} places were given for {table.n} rows. Give each row its place, or −1.")
    where = None if positions is None else np.asarray(positions, dtype=np.int64)
    if bound is not None and "regression" in table.missing_rules.values():
        raise InputError(
            "missing = 'regression' looks at the data, which a sketch under differential privacy must not. Use 'mean'."
        )
    work = work or Work()
    rows = work.rows or min(block_rows(len(table.labels) // (8 if table.packed and bound is None else 1)), block_rows(design.m))

    def blocks() -> Iterator[tuple[np.ndarray, Any]]:
        at = 0
        for Z in table.raw_blocks(rows) if bound is not None else table.sketch_blocks(rows):
            here = slice(at, at + len(Z))
            Z = Z if bound is None else bound.apply(Z)
            yield Z, range(start + at, start + at + len(Z)) if where is None else where[here]
            at += len(Z)

    labels = (table.features, table.responses, table.covariates)
    return accumulate(blocks(), design, labels, gram=gram, threads=work.threads, progress=work.progress)


def _whole(design: Design, threads: int | None) -> Partial:
    """The sums over all n subjects without any data: K and g."""
    step = block_rows(design.m)
    spans = [range(a, min(a + step, design.n)) for a in range(0, design.n, step)]
    return accumulate(((np.empty((len(span), 0)), span) for span in spans), design, ((), (), ()), threads=threads)


def factor(design: Design, sums: Partial | None = None, *, threads: int | None = None) -> np.ndarray:
    """L of LLᵀ = G_c G_cᵀ = K − ggᵀ/n, from finished sums or, the same, from the key and n alone.

    Close to m = n the matrix is ill-conditioned; above m = n/2 a second pass over the stream makes ΦΦᵀ = I again
    (LLᵀ of Φ itself, as in CholeskyQR2), so that all sites get the same L to rounding.
    """
    if design.tag in _FACTORS:
        return _FACTORS[design.tag]
    if sums is None or sums.K is None:
        sums = _whole(design, threads)
    assert sums.K is not None
    L = _factored(design, sums.K, sums.g)
    _FACTORS[design.tag] = L
    while len(_FACTORS) > 4:
        _FACTORS.popitem(last=False)
    return L


@threadpool_limits.wrap(limits=1, user_api="blas")
def _factored(design: Design, K: np.ndarray, g: np.ndarray) -> np.ndarray:
    """One thread: how many there are would decide the last bits, and sites must have the same."""
    try:
        L = cholesky(K - np.outer(g, g) / design.n, lower=True)
        if 2 * design.m > design.n:
            gram, step = np.zeros((design.m, design.m)), block_rows(design.m)
            for a in range(0, design.n, step):
                G = gaussian_columns(design.subkey, design.m, a, min(a + step, design.n))
                Phi = solve_triangular(L, G - g[:, None] / design.n, lower=True)
                gram += Phi @ Phi.T
            L = L @ cholesky(gram, lower=True)
    except LinAlgError:
        raise InputError(
            f"m = {design.m} is too close to n = {design.n} for an orthonormal sketch. Choose a smaller m."
        ) from None
    return L


@threadpool_limits.wrap(limits=1, user_api="blas")
def _divided(L: np.ndarray, C: np.ndarray) -> np.ndarray:
    """L⁻¹ C, some columns at a time: with one thread nearly as quick as with two, and the same to the last bit on any number."""
    out = np.empty_like(C)
    for j in range(0, C.shape[1], SOLVED):
        out[:, j : j + SOLVED] = solve_triangular(L, C[:, j : j + SOLVED], lower=True)
    return out


def finish(
    sums: Partial,
    key: SketchKey,
    terms: SketchTerms,
    *,
    missing: str | Mapping[str, str] = "error",
    constant: str = "error",
    columns: Columns = "standardised",
    private: ClippedNoise | None = None,
) -> SketchResult:
    """The sketch from the sums over all n subjects: columns checked, centred, scaled, multiplied by L⁻¹ or 1/√n."""
    if columns not in COLUMNS:
        raise InputError(f"columns = {columns!r} is not one of {', '.join(COLUMNS)}.")
    design = terms.design(key, len(sums.covered))
    if sums.tag != design.tag:
        raise InputError("The partial sums belong to another sketch (key, study, run, n, m or kind differ).")
    if sums.moments.rows != design.n:
        raise InputError(
            f"{sums.moments.rows} of {design.n} subjects are in the sums. Every subject must be in one of the stores; "
            "add the missing partial sums, or align again."
        )
    noise, bound = (0.0, None) if private is None else (private.w, private.clip)
    if noise and design.kind != "gaussian":
        raise InputError('Noise is added to a gaussian sketch only. Set kind = "gaussian" in the study.')
    center, scale = columns != "plain" and bound is None, columns == "standardised" and bound is None
    names, mo, P = (*sums.features, *sums.responses, *sums.covariates), sums.moments, len(sums.features)
    if bound is None:
        mo.check(names, missing=missing, constant=constant)
    # Of a private sketch every column leaves, whatever it holds: leaving one out would tell that it was constant.
    flat = mo.constant() if bound is None else np.zeros(len(names), bool)
    kept = np.flatnonzero(~flat)
    if not len(kept):
        raise InputError("Every column is constant: nothing is left to sketch.")
    seen = sums.g[:, None] if sums.H is None else sums.g[:, None] - sums.H[:, kept]
    C = sums.S[:, kept] - seen * mo.shift[kept]  # G(Z − 1z̄ᵀ), with missing values at the mean
    if design.kind == "orthonormal":
        C = _divided(factor(design, sums), C)
    else:
        C = (C if center else C + np.outer(sums.g, mo.mean[kept])) / np.sqrt(design.n)
    scales = mo.sd[kept] if scale else np.ones(len(kept))
    C /= scales
    means = mo.mean[kept]
    if bound is not None:
        means, scales = bound.center[kept], bound.scale[kept]
    if noise:
        # From the operating system, known to nobody: noise the peers could recompute would protect nothing.
        C = snap(C, noise / np.sqrt(design.n))
    last = len(names) - len(sums.covariates)
    own_x = tuple(names[j] for j in kept if j < P)
    own_y = tuple(names[j] for j in kept if P <= j < last)
    own_z = tuple(names[j] for j in kept if j >= last)
    x, y, z = np.split(np.arange(len(kept)), [len(own_x), len(own_x) + len(own_y)])
    message = Sketch(
        site=terms.site, features=own_x, responses=own_y, covariates=own_z, X=C[:, x], Y=C[:, y], Z=C[:, z],
        n=design.n, m=design.m, kind=design.kind, precision=terms.precision, study_hash=terms.hash,
        key_fingerprint=key.study_fingerprint(terms.hash), order_mac=terms.order_mac, noise=float(noise),
    )  # fmt: skip
    units = Units(
        own_x, own_y, means[x], scales[x], means[y], scales[y], own_z, means[z], scales[z],
        tuple(names[j] for j in np.flatnonzero(flat)),
    )  # fmt: skip
    return SketchResult(message, units)


def sketch(
    table: Any,
    key: SketchKey,
    terms: SketchTerms,
    *,
    order: Sequence[int] | np.ndarray | None = None,
    columns: Columns = "standardised",
    private: ClippedNoise | None = None,
    work: Work | None = None,
) -> SketchResult:
    """Sketch a site's table in one pass over its row blocks.

    `order` lists the table's rows in the order the sites agreed on (`order[i]` is the row of subject i; rows not listed
    are left out); without it the table's own order is the agreed one. Columns are "standardised" (mean 0, standard deviation
    1), "centred", or "plain", the ΦX of the paper (an orthonormal sketch is centred by nature). `private` makes a
    differentially private gaussian sketch. Anything `Table.open` takes is a table; one of Dask is sketched where its
    partitions lie, and only their sums travel.
    """
    # Here and not above: sums of arrays need no table, and no reader of files.
    from intarsia.site.data.table import Table

    table = table if isinstance(table, Table) else Table.open(table)
    if table.has_id:
        table.id_column.check()
    positions, n = None, table.n
    if order is not None:
        chosen = check_order(order, table.n)
        n = len(chosen)
        positions = np.full(table.n, -1, dtype=np.int64)
        positions[chosen] = np.arange(n)
        del chosen
    work = work or Work()
    phi = terms.design(key, n)
    gram = phi.kind == "orthonormal" and phi.tag not in _FACTORS
    bound = None if private is None else private.clip
    if isinstance(table.source, ManyPieces):
        sums = table.source.partial(table, phi, positions=positions, gram=gram, bound=bound, progress=work.progress)
    else:
        sums = partial(table, phi, positions=positions, gram=gram, bound=bound, work=work)
    return finish(
        sums, key, terms, missing=table.missing_rules, constant=table.constant, columns=columns, private=private
    )  # fmt: skip
