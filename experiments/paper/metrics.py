"""The paper's measures (§3, §4), and exact versions of those that it approximates."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def mse(estimate: Array, C: Array) -> float:
    """‖vec(Ĉ) − vec(C)‖² / (PQ)."""
    return float(np.mean((estimate - C) ** 2))


def mse_nonzero(estimate: Array, C: Array) -> float:
    """The same over the entries that are truly non-zero; nan when there are none."""
    nz = C != 0
    return float(np.mean((estimate - C)[nz] ** 2)) if nz.any() else float("nan")


def coverage(lower: Array, upper: Array, C: Array, where: Mask | None = None) -> float:
    """Share of coefficients inside their interval, over all or over `where`."""
    inside = (lower <= C) & (upper >= C)
    chosen = inside if where is None else inside[where]
    return float(chosen.mean()) if chosen.size else float("nan")


def width(lower: Array, upper: Array, where: Mask | None = None) -> float:
    """Mean interval width, over all or over `where`."""
    span = upper - lower if where is None else (upper - lower)[where]
    return float(span.mean()) if span.size else float("nan")


def fdr(selected: Mask, support: Mask) -> float:
    """Share of the selected features that are null; 0 when nothing is selected."""
    return float((selected & ~support).sum() / max(1, int(selected.sum())))


def power(selected: Mask, support: Mask) -> float:
    """Share of the true features that are selected; nan when there are none."""
    return float((selected & support).sum() / support.sum()) if support.any() else float("nan")


# --- how near one posterior is to another: Accuracy = 1 − H², the Bhattacharyya affinity ----------------------------


def affinity_gaussian(mean: Array, sd: Array, mean0: Array, sd0: Array) -> Array:
    """∫√(N(mean, sd²) N(mean0, sd0²)), in closed form: the paper's accuracy for two Gaussians, exactly."""
    total = sd**2 + sd0**2
    return np.sqrt(2 * sd * sd0 / total) * np.exp(-((mean - mean0) ** 2) / (4 * total))


def affinity_draws(draws: Array, draws0: Array, bins: int | None = None) -> Array:
    """∫√(p p₀) from draws, with no Gaussian approximation: draws on axis 0, one affinity for each remaining entry.

    Histograms over bins of equal pooled mass, so that spike-and-slab shapes are resolved. The bin count trades
    resolution against the downward noise of empty bins; pooled-sample-size^(1/3) keeps both below .02 (see the test).
    """
    n, n0 = len(draws), len(draws0)
    if bins is None:
        bins = max(4, int((n + n0) ** (1 / 3)))
    x, x0 = draws.reshape(n, -1), draws0.reshape(n0, -1)
    pooled = np.sort(np.concatenate([x, x0]), axis=0)
    edges = pooled[(np.arange(1, bins) * len(pooled)) // bins]
    counts = np.empty((bins, x.shape[1]))
    counts0 = np.empty_like(counts)
    for column in range(x.shape[1]):
        e = edges[:, column]
        counts[:, column] = np.bincount(np.searchsorted(e, x[:, column], side="right"), minlength=bins)
        counts0[:, column] = np.bincount(np.searchsorted(e, x0[:, column], side="right"), minlength=bins)
    return np.sqrt(counts / n * counts0 / n0).sum(axis=0).reshape(draws.shape[1:])


def accuracy_paper(mean: Array, sd: Array, mean0: Array, sd0: Array, grid: Array) -> Array:
    """The paper's formula as printed: 1 − 1/(2F) Σ_f (√N − √N₀)² over a grid of F values.

    The grid width is missing from it: a sum over F points divided by F is a mean over the grid, not an integral. The
    wider the grid against the posterior, the nearer to 1, whatever the two posteriors are.
    """
    shape = (-1,) + (1,) * np.ndim(mean)
    f = np.asarray(grid).reshape(shape)
    gap = np.sqrt(norm.pdf(f, mean, sd)) - np.sqrt(norm.pdf(f, mean0, sd0))
    return np.asarray(1 - 0.5 * (gap**2).mean(axis=0))


def accuracy_by_truth(accuracy: Array, C: Array) -> tuple[float, float]:
    """Average over the truly non-zero and the truly zero entries: Accuracy_{m,nz}, Accuracy_{m,z}."""
    nz = C != 0
    return float(accuracy[nz].mean()), float(accuracy[~nz].mean())


# --- effective sample size ------------------------------------------------------------------------------------------


def _yule_walker(x: Array) -> Array:
    """Spectral density at 0 of each column, from an autoregression chosen by AIC.

    The definition of R's `ar(aic=TRUE)` by Yule–Walker, on which coda's `spectrum0.ar` rests: autocovariances with
    divisor n, Levinson–Durbin up to order 10·log10(n), AIC = n log v + 2·order, innovations variance v·n/(n − order −
    1), density v / (1 − Σφ)². All columns at once.
    """
    n, columns = x.shape
    top = min(n - 1, int(10 * np.log10(n)))
    centred = x - x.mean(axis=0)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size, axis=0)
    acov = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size, axis=0)[: top + 1] / n
    constant = acov[0] <= 1e-300
    r = acov / np.where(constant, 1.0, acov[0])
    phi = np.zeros((top, columns))
    v = np.ones(columns)
    best_aic, best_spec = np.zeros(columns), np.full(columns, n / (n - 1.0))
    for k in range(1, top + 1):
        reflection = (r[k] - np.einsum("kc,kc->c", phi[: k - 1], r[1:k][::-1])) / v
        phi[: k - 1] = phi[: k - 1] - reflection * phi[: k - 1][::-1]
        phi[k - 1] = reflection
        v = np.maximum(v * (1 - reflection**2), 1e-300)
        aic = n * np.log(v) + 2 * k
        better = aic < best_aic
        spec = v * n / (n - (k + 1.0)) / (1 - phi[:k].sum(axis=0)) ** 2
        best_aic, best_spec = np.where(better, aic, best_aic), np.where(better, spec, best_spec)
    return np.where(constant, 0.0, best_spec * acov[0])


def ess_coda(draws: Array) -> Array:
    """Effective sample size as R's coda `effectiveSize` defines it, for draws (chain, draw, …); summed over chains.

    n·var(x) / spectral density at 0, chain by chain; a chain that never moves has 0.
    """
    chains, n = draws.shape[:2]
    total = np.zeros(draws.shape[2:])
    for chain in range(chains):
        x = draws[chain].reshape(n, -1)
        density = _yule_walker(x)
        moving = density > 0
        ess = np.where(moving, n * x.var(axis=0, ddof=1) / np.where(moving, density, 1.0), 0.0)
        total += ess.reshape(draws.shape[2:])
    return total


def ess_arviz(draws: Array, method: str = "bulk") -> Array:
    """ArviZ's rank-normalised effective sample size for draws (chain, draw, …)."""
    from arviz_stats.base import array_stats

    return np.asarray(array_stats.ess(draws, chain_axis=0, draw_axis=1, method=method))


def computational_efficiency(ess: Array, seconds: float) -> float:
    """log2(total ESS / T). The paper prints log2(ESS)/T; its values make sense only as the logarithm of the ratio."""
    return float(np.log2(np.asarray(ess).sum() / seconds))


def score(
    estimate: Array,
    C: Array,
    interval: tuple[Array, Array] | None = None,
    selected: Mask | None = None,
) -> dict[str, float]:
    """Every measure of one fit that needs the truth, by the names used in the result tables."""
    nz = C != 0
    row: dict[str, float] = {"mse": mse(estimate, C), "mse_nz": mse_nonzero(estimate, C)}
    if interval is not None:
        lower, upper = interval
        row |= {
            "coverage": coverage(lower, upper, C),
            "coverage_nz": coverage(lower, upper, C, nz),
            "width": width(lower, upper),
            "width_nz": width(lower, upper, nz),
        }
    if selected is not None:
        support = np.asarray(nz.any(axis=1))
        row |= {"fdr": fdr(selected, support), "power": power(selected, support), "selected": float(selected.sum())}
    return row
