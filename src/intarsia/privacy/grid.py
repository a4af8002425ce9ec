"""Private noise on a grid: why the stated ε survives finite precision, and what it costs.

A sum of two floating-point numbers betrays its terms: which doubles can come out depends on the value the noise was added to
(Mironov 2012). So the sketch is rounded to a public grid and the noise is an integer number of grid steps, drawn from a
discrete Gaussian by integer arithmetic (`intarsia.site.sketch.grid_noise`). What leaves is a function of that sum of integers.

The accounting of `intarsia.privacy.dp` is for real numbers. It carries over, with a grid of STEPS_PER_SD steps per standard
deviation σ of the noise, in three steps. (1) The discrete Gaussian's probabilities differ from those of a rounded normal by a
factor 1 ± z²/(24·STEPS²) at z standard deviations, so over m·c entries within 13σ the log-likelihoods differ by at most
7.1·m·c/STEPS², and beyond 13σ lies less than 2⁻¹²⁰. (2) A rounded normal around an integer is a function of the unrounded one.
(3) The integer is not the true value but r away from it: half a step of rounding, and the floating-point error of the sum over
n rows, which is at most 4·u·L·√(m·n)·B for the whole matrix (u = 2⁻⁵³, L the longest chain of additions, the factor 4 for the
pilot row). Two normals ‖r‖ apart are (a, b)-alike, from μ = ‖r‖/σ. That is passed through twice, once for each neighbour: where
the ideal release is (ε, δ)-private, the one on the grid is (ε + 2a, e^a·δ + (1 + e^(ε+a))·b)-private.

`reserve` sets aside a thousandth of ε and of δ for it, and `check` refuses sizes where that is not enough. Against a party that
knows Φ the same shift adds at most 2‖r‖/σ to μ, which `check` keeps below a sixth of what was set aside of ε.
"""

from math import exp, sqrt

from intarsia.errors import PrivacyError

STEPS_PER_SD = 2**30
RESERVED = 1e-3  # share of ε and δ set aside for the grid
_FLOAT_ERROR = 4 * 2.0**-53  # of a sum of products per addition, in units of its size
_BLOCK_ROWS = 16384


def reserve(epsilon: float, delta: float) -> tuple[float, float]:
    """The ε and δ to calibrate the ideal noise for, so that the noise on the grid keeps the stated ones."""
    return epsilon * (1 - RESERVED), delta * (1 - RESERVED)


def shift(n: int, m: int, columns: int, bound: float, w: float) -> float:
    """At most how far, in standard deviations of the noise, the whole rounded matrix is from the true one."""
    chain = min(n, _BLOCK_ROWS + n // 64 + 64)
    floating = _FLOAT_ERROR * chain * sqrt(m * n) * bound / (w / sqrt(n))
    return sqrt(m * columns) / (2 * STEPS_PER_SD) + floating


def cost(epsilon: float, delta: float, mu: float, entries: int) -> tuple[float, float]:
    """What the grid adds to ε and to δ at most, for a matrix of so many entries shifted by `mu` standard deviations."""
    from intarsia.privacy.dp import gdp_delta

    more, slip = 0.0, 0.0
    for sds in (6.0, 8.0, 10.0, 12.0):
        a = sds * mu + 7.1 * entries / STEPS_PER_SD**2
        b = gdp_delta(mu, sds * mu) + entries * 2.0**-120
        more, slip = 2 * a, (exp(a) - 1) * delta + (1 + exp(min(epsilon + a, 700.0))) * b
        if slip <= RESERVED * delta:
            break
    return more, slip


def check(epsilon: float, delta: float, mu: float, entries: int, sites: int = 1) -> None:
    """Refuse sizes for which the grid would cost more than was set aside.

    The server sees all sites' sketches; a site knows its own. Each takes the others to be like itself: √(sites) in the shift.
    """
    more, slip = cost(epsilon, delta, mu * sqrt(sites), entries * sites)
    if more > RESERVED * epsilon or slip > RESERVED * delta:
        raise PrivacyError(
            f"The grid of the private noise would cost {more:.2g} of epsilon and {slip:.2g} of delta, more than the thousandth "
            "set aside for it. Use fewer columns, a smaller m, or a larger epsilon."
        )
