"""The compiled loops of `compiled.sweep` (Numba): row scales under the half-Cauchy law, noise correlated or independent.

Each function is the twin of one in `conditionals`, `covariance`, `moves` or `integrated`: same arguments in, same numbers out to
rounding (a test holds the sweeps together). Loops over a handful of features, responses or candidates cost the interpreter more
than the arithmetic; compiled once and kept on disk, they cost next to nothing.

One file, although a long one: what is kept on disk is made anew when the file changes that a function stands in, not when those
it calls do.

No fast-math flag is set: a function is compiled once for itself and again inside each that calls it, and which copy runs depends
on what a process loaded first. Only arithmetic in the order it is written gives the same bits in all of them, and so in a chain
that is continued elsewhere.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from intarsia.inverse_normal import CENTRE, FAR, TAIL
from intarsia.server.sampler import priors
from intarsia.server.sampler.backends.numpy import STIFF_A
from intarsia.server.sampler.backends.protocol import Array
from intarsia.server.sampler.conditionals import Given
from intarsia.server.sampler.covariance import LEAST, NU, ROUNDING
from intarsia.server.sampler.exchange import RANGE as EXCHANGED
from intarsia.server.sampler.integrated import PANEL, Taken
from intarsia.server.sampler.small_shares import LEAST as SMALLEST
from intarsia.server.sampler.state import Border


class Constants(NamedTuple):
    """What stays the same over a run."""

    rows: float  # that the noise is counted over
    power: float  # of the likelihood
    correlated: bool  # is the responses' noise?
    tau_scale: float
    noise_scale: Array  # (Q)
    tau_reach: float


class Systems(NamedTuple):
    """`integrated.Systems` with the two diagonals of the factor in its place."""

    diag: Array
    off: Array
    d: Array
    Yr: Array
    rhs: Array


class Candidates(NamedTuple):
    """Random numbers of the borderline move: K features, T candidates each."""

    value: Array  # (K, T)
    mix: Array  # (K, T) which law each comes from
    pick: Array  # (K)


@njit(cache=True, error_model="numpy")
def log_marginal(diag: Array, off: Array, d: Array, Yr: Array) -> float:
    """`backends.numpy.Tridiagonal.log_marginal`; NaN where a system is not positive definite."""
    m, R = Yr.shape
    pivot, z, logs = np.empty(R), np.empty(R), np.ones(R)
    quad, total = 0.0, 0.0
    for j in range(R):
        pivot[j] = 1.0 + d[j] ** 2 * diag[0]
        z[j] = Yr[0, j]
    for i in range(m):
        for j in range(R):
            if not pivot[j] > 0:
                return np.nan
            quad += z[j] * z[j] / pivot[j]
            logs[j] *= pivot[j]
            if logs[j] > 1e150:
                total += math.log(logs[j])
                logs[j] = 1.0
            if i + 1 < m:
                e = d[j] ** 2 * off[i]
                ratio = e / pivot[j]
                z[j] = Yr[i + 1, j] - ratio * z[j]
                pivot[j] = 1.0 + d[j] ** 2 * diag[i + 1] - ratio * e
    for j in range(R):
        total += math.log(logs[j])
    return total + quad


@njit(cache=True, error_model="numpy")
def solve(diag: Array, off: Array, d: Array, rhs: Array) -> Array:
    """`backends.numpy.Tridiagonal.solve`: rhs (R, m, columns); NaN where a system is not positive definite."""
    R, m, n = rhs.shape
    out = rhs.copy()
    pivot, ratio = np.empty(m), np.empty(m)
    for j in range(R):
        d2 = d[j] ** 2
        pivot[0] = 1.0 + d2 * diag[0]
        for i in range(m - 1):
            e = d2 * off[i]
            ratio[i] = e / pivot[i]
            pivot[i + 1] = 1.0 + d2 * diag[i + 1] - ratio[i] * e
            for c in range(n):
                out[j, i + 1, c] -= ratio[i] * out[j, i, c]
        for i in range(m):
            if not pivot[i] > 0:
                out[j, 0, 0] = np.nan
                return out
        for c in range(n):
            out[j, m - 1, c] /= pivot[m - 1]
        for i in range(m - 2, -1, -1):
            for c in range(n):
                out[j, i, c] = out[j, i, c] / pivot[i] - ratio[i] * out[j, i + 1, c]
    return out


@njit(cache=True, error_model="numpy")
def _pick(
    da: Array, zz: Array, lam: float, numbers: tuple[Array, Array, float], border: tuple[float, float], room: Array
) -> float:
    """One local scale among fresh candidates and the present one, by importance weight; `room` (3, T + 1) is to work in.

    `numbers` are one feature's of `Candidates`. Of `border` (edge, out) (`state.Border`): scales up to `edge` count `out` times.
    With x the scale and c the middle of the logistic law, both proposals' densities are rational in x.
    """
    value, mix, u = numbers
    edge, out = border
    T = value.size
    c = math.e / math.sqrt(max(da.max(), 1e-300))
    top = -np.inf
    x, weight, log_weight = room[0], room[1], room[2]
    for k in range(T + 1):
        if k == T:
            x[k] = lam
        elif mix[k] < 0.5:
            x[k] = math.tan(math.pi / 2 * value[k])
        else:
            x[k] = c * (value[k] / (1 - value[k]))
        square = x[k] * x[k]
        fit, largest, product = 0.0, 0.0, 1.0
        for r in range(da.size):
            x2 = da[r] * square
            largest = max(largest, x2)
            fit += zz[r] * (x2 / (1 + x2))
            product *= 1 + x2
            if product > 1e100:  # its logarithm is taken before it overflows
                fit -= math.log(product)
                product = 1.0
        weight[k] = 0.0
        log_weight[k] = -np.inf
        if not (largest < 1e8 and square < 1e300):
            continue
        weight[k] = 1 / (math.sqrt(product) * (2 / math.pi + (1 + square) / (c * (1 + x[k] / c) ** 2)))
        if not x[k] > edge:
            weight[k] *= out
        log_weight[k] = 0.5 * fit
        top = max(top, log_weight[k])
    total = 0.0
    for k in range(T + 1):
        total += weight[k] * math.exp(log_weight[k] - top)
        weight[k] = total
    chosen = 0
    while chosen < T and weight[chosen] < u * total:
        chosen += 1
    return x[chosen]


@njit(cache=True, error_model="numpy")
def _products(systems: Systems, Xk: Array, out: Array) -> bool:
    """Xkᵀ (I + d_j² T)⁻¹ [Xk, Yr] into `out` (R, K, K + 1), on and above the diagonal; False where one is indefinite.

    With I + d_j² T = L D Lᵀ they are products of the columns of D^(-½) L⁻¹ [Xk, Yr], and half of them is enough.
    """
    diag, off, d, Yr, _ = systems
    m, K = Xk.shape
    half = np.zeros((m, K + 1))
    for j in range(d.size):
        d2, last = d[j] ** 2, 1.0
        for i in range(m):
            pivot, ratio = 1.0 + d2 * diag[i], 0.0
            if i > 0:
                ratio = d2 * off[i - 1] / last
                pivot -= ratio * d2 * off[i - 1]
                ratio *= math.sqrt(last)  # the row before is scaled
            if not pivot > 0:
                return False
            last, scale = pivot, 1 / math.sqrt(pivot)
            here, before = half[i], half[max(0, i - 1)]
            for k in range(K):
                here[k] = (Xk[i, k] - ratio * before[k]) * scale
            here[K] = (Yr[i, j] - ratio * before[K]) * scale
        columns = np.ascontiguousarray(half.T)
        for i in range(0, K, PANEL):
            end = min(K, i + PANEL)
            out[j, i:end, i:] = np.dot(columns[i:end], columns[i:].T)
    return True


@njit(cache=True, error_model="numpy")
def borderline(systems: Systems, taken: Taken, border: Border, candidates: Candidates) -> tuple[Array, Array]:
    """`integrated.borderline`: the new scales, and the solved systems after they have moved; NaN where one is indefinite.

    Each new scale is a rank-one change of the systems, so the loop over the features is Gaussian elimination of
    (I + Xkᵀ M⁻¹ Xk D) x = Xkᵀ M⁻¹ rhs: a row is brought up to date with those of its panel when its feature's turn comes, and
    with a whole panel after that. Column K belongs to Yr.
    """
    diag, off, d, _, rhs = systems
    Xk, Zk, lam = taken
    value, mix, pick = candidates
    (m, K), R, T = Xk.shape, d.size, value.shape[1]
    a = np.empty((R, K, K + 1))
    if not _products(systems, Xk, a):
        return np.full(K, np.nan), np.full((m, R), np.nan)
    new, room = lam.copy(), np.empty((3, T + 1))
    own, da, zz, coef = np.empty(R), np.empty(R), np.empty(R), np.empty((R, PANEL))
    change, rho, pivot = np.empty((R, K)), np.empty((R, K)), np.empty((R, K))
    for first in range(0, K, PANEL):
        end = min(K, first + PANEL)
        for i in range(first, end):
            least = np.inf
            for r in range(R):
                a_ii, z = a[r, i, i], a[r, i, K]
                for t in range(first, i):
                    c = rho[r, t] * a[r, t, i]
                    coef[r, t - first] = c
                    a_ii -= c * a[r, t, i]
                    z -= c * a[r, t, K]
                keep = 1 - d[r] ** 2 * lam[i] ** 2 * a_ii
                least = min(least, keep)
                keep = max(keep, 1e-8)
                da[r] = d[r] ** 2 * a_ii / keep
                zz[r] = z**2 / max(a_ii * keep, 1e-300)
                own[r] = a_ii
            if least > 1e-8 and border.taken[i]:
                new[i] = _pick(da, zz, lam[i], (value[i], mix[i], pick[i]), (border.edge[i], border.out[i]), room)
            for r in range(R):
                change[r, i] = d[r] ** 2 * (new[i] ** 2 - lam[i] ** 2)
                pivot[r, i] = 1 + change[r, i] * own[r]
                rho[r, i] = change[r, i] / pivot[r, i]
                if change[r, i] != 0.0:
                    row = a[r, i]
                    for t in range(first, i):
                        other, c = a[r, t], coef[r, t - first]
                        for k in range(i + 1, K + 1):
                            row[k] -= c * other[k]
        for r in range(R):
            rows = np.ascontiguousarray(a[r, first:end, end:])
            weighed = np.ascontiguousarray(rows[:, : K - end])
            for t in range(end - first):
                weighed[t] *= rho[r, first + t]
            a[r, end:, end:] -= np.dot(weighed.T, rows)
    weights, v = np.empty((R, K)), np.empty((R, m, 1))
    for j in range(R):
        for i in range(K):
            weights[j, i] = d[j] * (new[i] - lam[i]) * Zk[i, j]
        v[j, :, 0] = rhs[:, j] - np.dot(Xk, weights[j])
    solved = solve(diag, off, d, v)
    for j in range(R):
        right = np.dot(np.ascontiguousarray(solved[j, :, 0]), Xk)
        for i in range(K):
            scale = rho[j, i] * right[i]
            if scale != 0.0:
                for k in range(i + 1, K):
                    right[k] -= scale * a[j, i, k]
        for i in range(K - 1, -1, -1):
            rest = right[i]
            if change[j, i] != 0.0:
                for k in range(i + 1, K):
                    rest -= a[j, i, k] * weights[j, k]  # times its change already
            weights[j, i] = change[j, i] * rest / pivot[j, i]
        v[j, :, 0] -= np.dot(Xk, weights[j])
    return new, np.ascontiguousarray(solve(diag, off, d, v)[:, :, 0].T)


@njit(cache=True, error_model="numpy")
def _evidence(diag: Array, off: Array, M: Array, Yw: Array) -> float:
    U, d, _ = np.linalg.svd(M, False)
    Yr = np.dot(Yw, U)
    value = log_marginal(diag, off, d, Yr)
    if U.shape[1] < U.shape[0]:
        value += (Yw**2).sum() - (Yr**2).sum()
    return value


@njit(cache=True, error_model="numpy")
def whiten(A: Array, tau: Array, s: Array) -> tuple[Array, Array, Array]:
    """`conditionals.whiten`."""
    M = np.empty(A.shape)
    for q in range(A.shape[0]):
        for r in range(A.shape[1]):
            M[q, r] = A[q, r] / s[q] * tau[r]
    U, d, Vt = np.linalg.svd(M, False)
    for j in range(d.size):
        if Vt[j, 0] < 0:
            for r in range(Vt.shape[1]):
                Vt[j, r] = -Vt[j, r]
            for q in range(U.shape[0]):
                U[q, j] = -U[q, j]
    return U, d, Vt


@njit(cache=True, error_model="numpy")
def _weighed(Xt: Array, lam: Array) -> tuple[Array, Array]:
    """diag(lam) Xᵀ and X diag(lam²) Xᵀ."""
    P, m = Xt.shape
    Xl = np.empty((P, m))
    for p in range(P):
        for i in range(m):
            Xl[p, i] = Xt[p, i] * lam[p]
    return Xl, np.dot(Xl.T, Xl)


@njit(cache=True, error_model="numpy", inline="always")
def _quotient(over: tuple[float, ...], under: tuple[float, ...], r: float) -> float:
    x, y = over[0], under[0]
    for k in range(1, len(over)):
        x = x * r + over[k]
        y = y * r + under[k]
    return x / y


@njit(cache=True, error_model="numpy")
def lower_score(p: float) -> float:
    """Φ⁻¹(p) for 0 < p ≤ ½."""
    q = p - 0.5
    r = 0.180625 - q * q
    if r >= 0:
        return q * _quotient(CENTRE[0], CENTRE[1], r)
    r = math.sqrt(-math.log(p))
    return -(_quotient(TAIL[0], TAIL[1], r - 1.6) if r <= 5 else _quotient(FAR[0], FAR[1], r - 5))


@njit(cache=True, error_model="numpy")
def propose_lam(lam: Array, theta: Array, normal: Array) -> Array:
    """`moves.propose_lam` under the half-Cauchy."""
    out = np.empty(lam.size)
    for p in range(lam.size):
        below = lam[p] < 1
        w = lower_score(math.atan(lam[p] if below else 1 / lam[p]) * (2 / math.pi))
        w = math.cos(theta[p]) * (w if below else -w) + math.sin(theta[p]) * normal[p]
        tail = math.tan(math.pi / 4 * math.erfc(abs(w) * math.sqrt(0.5)))
        out[p] = min(max(tail if w < 0 else 1 / tail, 1e-15), 1e15)
    return out


@njit(cache=True, error_model="numpy")
def _stiff_row(F: Array, y: Array, s: float, z: Array) -> Array:
    """`conditionals.stiff_row`."""
    m, R = F.shape
    stacked = np.zeros((m + R, R + 1))
    for i in range(m):
        for r in range(R):
            stacked[i, r] = F[i, r] / s
        stacked[i, R] = y[i] / s
    for r in range(R):
        stacked[m + r, r] = 1.0
    _, T = np.linalg.qr(stacked)
    out = np.empty(R)
    for i in range(R - 1, -1, -1):
        x = T[i, R] + math.copysign(z[i], z[i] * T[i, i])
        for k in range(i + 1, R):
            x -= T[i, k] * out[k]
        out[i] = x / T[i, i]
    return out


@njit(cache=True, error_model="numpy")
def draw_A(F: Array, Y: Array, s2: Array, Z: Array) -> Array:
    """`conditionals.draw_A`."""
    FF, FY = np.dot(F.T, F), np.dot(F.T, Y)
    R, Q = FY.shape
    L, half, out, size = np.zeros((R, R)), np.empty(R), np.empty((Q, R)), 0.0
    for r in range(R):
        size += FF[r, r]
    for q in range(Q):
        if size > STIFF_A * s2[q]:
            out[q] = _stiff_row(F, np.ascontiguousarray(Y[:, q]), math.sqrt(s2[q]), Z[q])
            continue
        for i in range(R):
            for j in range(i + 1):
                x = FF[i, j] / s2[q] + (1.0 if i == j else 0.0)
                for k in range(j):
                    x -= L[i, k] * L[j, k]
                L[i, j] = math.sqrt(x) if i == j else x / L[j, j]
            x = FY[i, q] / s2[q]
            for k in range(i):
                x -= L[i, k] * half[k]
            half[i] = x / L[i, i]
        for i in range(R - 1, -1, -1):
            x = half[i] + Z[q, i]
            for k in range(i + 1, R):
                x -= L[k, i] * out[q, k]
            out[q, i] = x / L[i, i]
    return out


@njit(cache=True, error_model="numpy")
def _solve_one(G: Array, d2: float, b: Array) -> Array:
    """(I + d² G)⁻¹ b by a Cholesky factor: at a hundred rows no dearer than the tridiagonal form, and no call into Python.

    The right-hand side is a last row of the system, so that the factor's last row is the first substitution.
    """
    m = b.size
    M = np.empty((m + 1, m + 1))
    M[:m, :m] = d2 * G
    for i in range(m):
        M[i, i] += 1.0
        M[m, i] = M[i, m] = b[i]
    M[m, m] = 1.0 + 2 * np.dot(b, b)  # what is left of it after elimination stays above b², whatever rounding takes
    L = np.linalg.cholesky(M)
    x = L[m, :m].copy()
    for i in range(m - 1, -1, -1):
        x[i] /= L[i, i]
        for k in range(i):
            x[k] -= L[i, k] * x[i]
    return x


@njit(cache=True, error_model="numpy")
def weigh(Xt: Array, lam: Array, Z: Array) -> tuple[Array, Array]:
    """`backends.numpy.NumpyBackend.weigh` of a small problem."""
    Xl, G = _weighed(Xt, lam)
    return G.T, np.dot(Xl.T, Z)


@njit(cache=True, error_model="numpy")
def coefficients(Xt: Array, scales: tuple[Array, Array], Z: Array, solved: tuple[Array, Array]) -> tuple[Array, Array]:
    """B from `solved` (the systems W and Vᵀ) at the `scales` (lam, tau), and XB."""
    B = _coefficients(Xt, scales, Z, solved)
    return B, np.dot(Xt.T, B)


@njit(cache=True, error_model="numpy")
def _coefficients(Xt: Array, scales: tuple[Array, Array], Z: Array, solved: tuple[Array, Array]) -> Array:
    (lam, tau), (W, Vt) = scales, solved
    P, R = Z.shape
    T = np.dot(Xt, W)
    for p in range(P):
        for r in range(R):
            T[p, r] = (T[p, r] * lam[p] + Z[p, r]) * lam[p]
    B = np.dot(T, Vt)
    for p in range(P):
        for r in range(R):
            B[p, r] *= tau[r]
    return B


@njit(cache=True, error_model="numpy")
def draw_B(
    Xt: Array, Y: Array, B: Array, given: Given, noise: tuple[Array, Array], back: float, stiff: float
) -> tuple[bool, Array, Array]:
    """`conditionals.relaxed` of `conditionals.draw_B_row` for a small problem, and XB. False: the system is too stiff.

    `noise` is (Z, E).
    """
    A, lam, tau, s = given
    Z, E = noise
    m, (Q, R) = Xt.shape[1], A.shape
    keep = math.sqrt(1 - back**2)
    U, d, Vt = whiten(A, tau, s)
    Xl, G = _weighed(Xt, lam)
    trace = 0.0
    for i in range(m):
        trace += G[i, i]
    if not d[0] ** 2 * trace < stiff:
        return False, B, Y
    Yw = np.empty((m, Q))
    for i in range(m):
        for q in range(Q):
            Yw[i, q] = (1 + back) * Y[i, q] / s[q]
    Zl = keep * Z
    rhs, XZ, W = np.dot(Yw, U), np.dot(Xl.T, Zl), np.empty((m, R))
    for j in range(R):
        W[:, j] = d[j] * _solve_one(G, d[j] ** 2, rhs[:, j] - d[j] * XZ[:, j] - keep * E[:, j])
    new = _coefficients(Xt, (lam, tau), Zl, (W, Vt)) - back * B
    return True, new, np.dot(Xt.T, new)


@njit(cache=True, error_model="numpy")
def rotated(Sigma: Array, Y: Array, A: Array, correlated: bool) -> tuple[Array, Array, Array, Array]:
    """`covariance` and `sweep.rotated`: U and D of Sigma = U D Uᵀ, YU and UᵀA."""
    Q = Sigma.shape[0]
    if not correlated:
        return np.eye(Q), np.diag(Sigma).copy(), Y, A
    D, V = np.linalg.eigh(Sigma)
    U = np.ascontiguousarray(V)
    for i in range(Q):
        D[i] = max(D[i], ROUNDING * D[Q - 1])
        total = 0.0
        for q in range(Q):
            total += U[q, i]
        if total < 0:
            for q in range(Q):
                U[q, i] = -U[q, i]
    return U, D, np.dot(Y, U), np.dot(U.T, A)


@njit(cache=True, error_model="numpy")
def _log_half_cauchy(t: float, log_s: float) -> float:
    """`priors.HalfCauchy.log_density`."""
    v = abs(t - log_s)
    return -v - math.log1p(math.exp(-2 * v))


@njit(cache=True, error_model="numpy")
def _log_tau(t: float, s: float, reach: float) -> float:
    """`priors.HalfCauchy.log_density` with a reach."""
    return _log_half_cauchy(t, math.log(s)) - 0.5 * (math.exp(t) / (s * reach)) ** 2


@njit(cache=True, error_model="numpy")
def _log_covariance(K: Array, log_det: float, scale: Array, correlated: bool) -> float:
    """`covariance.….log_density`; log_det is that of Sigma."""
    Q, value = scale.size, 0.0
    if not correlated:
        for q in range(Q):
            value += _log_half_cauchy(-math.log(K[q, q]), math.log(scale[q]))
        return value
    for q in range(Q):
        inverse = 1 / scale[q] ** 2
        for i in range(Q):
            inverse += NU * K[i, q] ** 2
        value -= (NU + Q) / 2 * math.log(inverse)
    return value + (1 - NU - Q) / 2 * log_det


@njit(cache=True, error_model="numpy")
def _collapsed(
    systems: tuple[Array, Array, Array, Array], K: Array, log_det: float, A: Array, tau: Array, constants: Constants
) -> float:
    """`integrated.Collapsed` at Sigma⁻¹ = KᵀK and at tau."""
    diag, off, Yrot, rss0 = systems
    rows, power, correlated, tau_scale, scale, reach = constants
    root = K * math.sqrt(power)
    M = np.dot(root, A)
    for q in range(M.shape[0]):
        for r in range(M.shape[1]):
            M[q, r] *= tau[r]
    value = -0.5 * _evidence(diag, off, M, np.dot(Yrot, root.T)) - 0.5 * (np.dot(root, rss0) * root).sum()
    for r in range(tau.size):
        value += _log_tau(math.log(tau[r]), tau_scale, reach)
    return value - 0.5 * power * rows * log_det + _log_covariance(K, log_det, scale, correlated)


@njit(cache=True, error_model="numpy")
def _root(U: Array, D: Array) -> tuple[Array, float]:
    """`covariance.Rotation.root`: K with Sigma⁻¹ = KᵀK, and log det Sigma."""
    Q = D.size
    K, log_det = np.empty((Q, Q)), 0.0
    for i in range(Q):
        log_det += math.log(D[i])
        for q in range(Q):
            K[i, q] = U[q, i] / math.sqrt(D[i])
    return K, log_det


@njit(cache=True, error_model="numpy")
def _from_root(K: Array, correlated: bool) -> tuple[Array, Array]:
    """`covariance.….from_root`: U and D."""
    Q = K.shape[0]
    U, D = np.eye(Q), np.empty(Q)
    if not correlated:
        for q in range(Q):
            D[q] = 1 / K[q, q] ** 2
        return U, D
    w, V = np.linalg.eigh(np.dot(K.T, K))
    for i in range(Q):
        D[i] = 1 / max(w[Q - 1 - i], ROUNDING * w[Q - 1])
        total = 0.0
        for q in range(Q):
            total += V[q, Q - 1 - i]
        for q in range(Q):
            U[q, i] = -V[q, Q - 1 - i] if total < 0 else V[q, Q - 1 - i]
    return U, D


@njit(cache=True, error_model="numpy")
def _stretched(
    systems: tuple[Array, Array, Array, Array], A: Array, Sigma: Array, tau: Array, constants: Constants, least: float
) -> tuple[float, bool]:
    """The density of `small_shares.stretch` at A and Sigma, and whether Sigma is one that may be proposed."""
    correlated, Q = constants.correlated, Sigma.shape[0]
    U, D, _, _ = rotated(Sigma, Sigma[:0], A, correlated)
    allowed, log_det, K = True, 0.0, np.empty((Q, Q))
    for i in range(Q):
        allowed = allowed and D[i] > least
        D[i] = max(D[i], least)
        log_det += math.log(D[i])
        for q in range(Q):
            K[i, q] = U[q, i] / math.sqrt(D[i])
    value = _collapsed(systems, K, log_det, A, tau, constants) - 0.5 * (A**2).sum()
    return value - ((Q + 1) / 2 if correlated else 1.0) * log_det, allowed


@njit(cache=True, error_model="numpy")
def stretch(
    systems: tuple[Array, Array, Array, Array],
    state: tuple[Array, Array, Array],
    constants: Constants,
    small: float,
    numbers: tuple[Array, Array, Array],
) -> tuple[Array, Array]:
    """`small_shares.stretch`: A and Sigma.

    `systems` are as in `integrated`, with the responses alone; `state` A, Sigma and tau; `small` is `small_shares.outside`;
    `numbers` are directions, steps and logarithms of uniform numbers.
    """
    A, Sigma, tau = state
    directions, steps, log_u = numbers
    correlated, (Q, R) = constants.correlated, A.shape
    least = SMALLEST * (constants.noise_scale**2).min()
    value, _ = _stretched(systems, A, Sigma, tau, constants, least)
    for k in range(steps.size):
        v = np.zeros(Q)
        if correlated:
            v[:] = directions[k] / math.sqrt((directions[k] ** 2).sum())
        else:
            v[k % Q] = 1.0
        there = A + np.outer(math.expm1(steps[k]) * v, np.dot(v, A))
        wide, old = there * tau, A * tau
        gain = (np.dot(wide, wide.T) - np.dot(old, old.T)) * small
        if not correlated:
            gain = np.diag(np.diag(gain))
        new = Sigma - gain
        proposed, allowed = _stretched(systems, there, new, tau, constants, least)
        if allowed and log_u[k] < proposed - value + R * steps[k]:
            A, Sigma, value = there, new, proposed
    return A, Sigma


@njit(cache=True, error_model="numpy")
def collapsed_A(
    systems: tuple[Array, Array, Array, Array],
    state: tuple[Array, Array, Array, Array],
    constants: Constants,
    numbers: tuple[Array, Array, Array],
) -> Array:
    """`integrated.collapsed_A`.

    `systems` are as in `integrated`, with the responses alone; `state` Sigma's U and D, A and tau; `numbers` directions, steps
    and logarithms of uniform numbers.
    """
    U, D, A, tau = state
    directions, steps, log_u = numbers
    Q = D.size
    K, log_det = _root(U, D)
    value = _collapsed(systems, K, log_det, A, tau, constants) - 0.5 * (A**2).sum()
    for k in range(steps.size):
        w = directions[k] / math.sqrt((directions[k] ** 2).sum())
        there = A + np.outer(np.dot(A * tau, w) * math.expm1(steps[k]), w / tau)
        proposed = _collapsed(systems, K, log_det, there, tau, constants) - 0.5 * (there**2).sum()
        if log_u[k] < proposed - value + Q * steps[k]:
            A, value = there, proposed
    return A


@njit(cache=True, error_model="numpy")
def integrated(
    systems: tuple[Array, Array, Array, Array],
    state: tuple[Array, Array, Array, Array],
    constants: Constants,
    walk: tuple[Array, Array, Array],
    taken: tuple[Array, Array],
    border: Border,
    candidates: Candidates,
) -> tuple[Array, Array, Array, Array, Array, Array, Array, Array]:
    """`sweep.walk`: U, D, tau, what was accepted, the borderline scales, d W, Vᵀ and d.

    `systems` holds the tridiagonal form of G, what is rotated with it (m, Q + 2R + K: Y, E, X diag(lam) Z and the borderline
    features) and rss0; `state` Sigma's U and D, A and tau; `walk` directions, steps and uniform numbers of the moves of Sigma
    and tau; `taken` the borderline features' rows of Z and their scales.
    """
    diag, off, packed, rss0 = systems
    sides, variances, A, tau = state
    power, correlated = constants.power, constants.correlated
    directions, steps, u = walk
    Zk, scales = taken
    (Q, R), m, number = A.shape, packed.shape[0], scales.size
    Yrot = np.ascontiguousarray(packed[:, :Q])
    target = (diag, off, Yrot, rss0)
    K, log_det = _root(sides, variances)
    accepted = np.zeros(Q + 1, dtype=np.bool_)
    value = _collapsed(target, K, log_det, A, tau, constants)
    for k in range(Q + 1):
        new, new_det, new_tau = K, log_det, tau
        if k == Q:
            new_tau = tau * math.exp(steps[k])
        elif correlated:
            v = directions[k] / math.sqrt((directions[k] ** 2).sum())
            new, new_det = K + np.outer(math.expm1(-steps[k] / 2) * v, np.dot(v, K)), log_det + steps[k]
        else:
            new, new_det = K.copy(), log_det + steps[k]
            new[k, k] *= math.exp(-steps[k] / 2)
        proposed = _collapsed(target, new, new_det, A, new_tau, constants)
        if math.log(u[k]) < proposed - value:
            K, log_det, tau, value = new, new_det, new_tau, proposed
            accepted[k] = True
    U, D = _from_root(K, correlated)
    s = np.sqrt(D / power)
    left, d, Vt = whiten(np.dot(U.T, A), tau, s)
    Yr = np.dot(np.dot(Yrot, U) / s, left)
    rhs, Xk = np.empty((m, R)), np.empty((m, number))
    for i in range(m):
        for r in range(R):
            rhs[i, r] = Yr[i, r] - d[r] * packed[i, Q + R + r] - packed[i, Q + r]
        for k in range(number):
            Xk[i, k] = packed[i, Q + 2 * R + k]
    lam, W = borderline(Systems(diag, off, d, Yr, rhs), Taken(Xk, Zk, scales), border, candidates)
    return U, D, tau, accepted, lam, d * W, Vt, d


@njit(cache=True, error_model="numpy")
def exchange(inverse: Array, projected: Array, d: Array, scales: tuple[Array, Array], tries: tuple[float, Array, Array]) -> Array:
    """`exchange.scales`; `scales` are the features' scales (sets, members) and the sets' sizes, `tries` as there, with the
    logarithms of what decides. Every exchange brings the systems of all later features up to date.
    """
    lam, size = scales[0].copy(), scales[1]
    edge, who, log_u = tries
    R, K, members = d.size, inverse.shape[1], lam.shape[1]
    S, rows = np.empty((R, 2, 2)), np.empty((2, K))
    for n in range(lam.shape[0]):
        first = n * members
        others = size[n] - 1
        for t in range(who.shape[1]):
            inside = 0
            for k in range(size[n]):
                inside += lam[n, k] > edge
            if not inside:
                break
            pair = min(int(who[n, t] * (inside * others)), inside * others - 1)
            i, left_over = -1, pair // others
            while left_over >= 0:  # the one before which so many are in
                i += 1
                left_over -= lam[n, i] > edge
            j = pair % others
            j += 1 if j >= i else 0
            p, q, gain, fine = first + i, first + j, 0.0, True
            for r in range(R):
                change = d[r] ** 2 * (lam[n, j] ** 2 - lam[n, i] ** 2)
                left, right = 1 + change * inverse[r, p, p], 1 - change * inverse[r, q, q]
                both = change * inverse[r, p, q]
                det = left * right + both * both
                if not EXCHANGED > det > 1 / EXCHANGED:
                    fine = False
                    break
                S[r, 0, 0], S[r, 1, 1] = change * right / det, -change * left / det
                S[r, 0, 1] = S[r, 1, 0] = change * both / det
                x, y = projected[r, p], projected[r, q]
                gain += S[r, 0, 0] * x * x + S[r, 1, 1] * y * y + 2 * S[r, 0, 1] * x * y - math.log(det)
            if not (fine and log_u[n, t] < 0.5 * gain):
                continue
            lam[n, i], lam[n, j] = lam[n, j], lam[n, i]
            for r in range(R):
                a, x, y = inverse[r], projected[r, p], projected[r, q]
                for k in range(first, K):
                    rows[0, k], rows[1, k] = a[p, k], a[q, k]
                for k in range(first, K):
                    u = S[r, 0, 0] * rows[0, k] + S[r, 0, 1] * rows[1, k]
                    v = S[r, 1, 0] * rows[0, k] + S[r, 1, 1] * rows[1, k]
                    projected[r, k] -= u * x + v * y
                    for b in range(first, K):
                        a[k, b] -= u * rows[0, b] + v * rows[1, b]
    return lam


@njit(cache=True, error_model="numpy")
def _half_cauchy(eta: float, k: float, mu: float, s: float, reach: float, noise: tuple[float, float, float]) -> float:
    """`priors.HalfCauchy.draw` of one precision; `noise` is (low, u, v), and low is not looked at when k ≤ 1."""
    low, u, v = noise
    s2 = s * s
    rate = max(mu, 2 * priors.LOW) / 2
    if k <= 1:
        u = u / (1 + s2 * eta)
        bound = min((1 - u) / max(u, priors.LOW) / s2, priors.HIGH)
        return min(max(-math.log1p(v * math.expm1(-rate * bound)) / rate, priors.LOW), priors.HIGH)
    large = s2 * (k / 2) > rate
    new = min(max((low if large else low - math.log(v)) / rate, priors.LOW), priors.HIGH)
    ratio = (1 + s2 * eta) / (1 + s2 * new)
    if large:
        ratio *= new / eta
    ratio *= math.exp(min(0.5 * (1 / eta - 1 / new) / (s2 * reach * reach), 600.0))
    return new if u < ratio else eta


@njit(cache=True, error_model="numpy")
def draw_lam(lam: Array, B: Array, tau: Array, noise: tuple[Array, Array, Array]) -> Array:
    """`conditionals.draw_lam` for row scales under the half-Cauchy."""
    P, R = B.shape
    low, u, v = noise
    inverse, out = 1 / tau, np.empty(P)
    for p in range(P):
        mu = 0.0
        for r in range(R):
            mu += (B[p, r] * inverse[r]) ** 2
        out[p] = 1 / math.sqrt(_half_cauchy(1 / lam[p] ** 2, float(R), mu, 1.0, np.inf, (low[p], u[p], v[p])))
    return out


@njit(cache=True, error_model="numpy")
def draw_tau(tau: Array, B: Array, lam: Array, scale: float, reach: float, noise: tuple[Array, Array, Array]) -> Array:
    """`conditionals.draw_tau` for row scales under C⁺(0, scale)."""
    P, R = B.shape
    low, u, v = noise
    mu, out = np.zeros(R), np.empty(R)
    for p in range(P):
        inverse = 1 / lam[p]
        for r in range(R):
            mu[r] += (B[p, r] * inverse) ** 2
    for r in range(R):
        new = 1 / math.sqrt(_half_cauchy(1 / tau[r] ** 2, float(P), mu[r], scale, reach, (low[r], u[r], v[r])))
        out[r] = min(max(new, 1e-15), 1e15)
    return out


@njit(cache=True, error_model="numpy")
def draw_Sigma(
    U: Array, D: Array, scatter: Array, rows: float, scale: Array, correlated: bool, noise: tuple[Array, Array, Array]
) -> Array:
    """`covariance.….draw`; `noise` is (a, normal, chi), or (low, u, v) where the noise is independent."""
    Q = D.size
    Sigma = np.zeros((Q, Q))
    if not correlated:
        low, u, v = noise
        for q in range(Q):
            eta = _half_cauchy(1 / D[q], rows, scatter[q, q], scale[q], np.inf, (low[q], u[q], v[q]))
            Sigma[q, q] = max(1 / eta, LEAST * scale[q] ** 2)
        return Sigma
    a, normal, chi = noise
    size, whole, K = np.empty(Q), scatter.copy(), np.empty((Q, Q))
    for q in range(Q):
        precision = 0.0
        for i in range(Q):
            precision += U[q, i] ** 2 / D[i]
        whole[q, q] += 2 * NU * a[q] / (NU * precision + 1 / scale[q] ** 2)
        size[q] = math.sqrt(max(whole[q, q], LEAST * scale[q] ** 2))
    for q in range(Q):
        for k in range(Q):
            whole[q, k] = whole[q, k] / size[q] / size[k]
        whole[q, q] += 10 * ROUNDING
    L = np.linalg.cholesky(whole)
    for i in range(Q):  # T K = Lᵀ, T Bartlett's factor
        for q in range(Q):
            x = L[q, i]
            for k in range(i):
                x -= normal[i * Q + k] * K[k, q]
            K[i, q] = x / math.sqrt(2 * chi[i])
    for q in range(Q):
        for k in range(q + 1):
            x = 0.0
            for i in range(Q):
                x += K[i, q] * K[i, k]
            Sigma[q, k] = Sigma[k, q] = x * size[q] * size[k]
    return Sigma


@njit(cache=True, error_model="numpy")
def rescale_columns(
    A: Array, B: Array, tau: Array, scale: float, reach: float, noise: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """`moves.rescale_columns` under C⁺(0, scale)."""
    (Q, R), P = A.shape, B.shape[0]
    g, u = noise
    shape = (Q - 1) / 2 if Q > 1 else 0.5
    c = np.ones(R)
    for r in range(R):
        square = 0.0
        for q in range(Q):
            square += A[q, r] ** 2
        a = min(max(2 * g[r] / max(square, 1e-30), 1e-20), 1e20)
        t, log_a = math.log(tau[r]), math.log(a)
        ratio = _log_tau(t - log_a / 2, scale, reach) - _log_tau(t, scale, reach) + (Q / 2 - shape) * log_a
        if math.log(u[r]) < ratio:
            c[r] = 1 / math.sqrt(a)
    scaled = np.empty((P, R))
    for p in range(P):
        for r in range(R):
            scaled[p, r] = B[p, r] * c[r]
    return A / c, scaled, tau * c


@njit(cache=True, error_model="numpy")
def given_B(
    F: Array,
    data: tuple[Array, Array],
    constants: Constants,
    view: tuple[Array, Array, Array],
    state: tuple[Array, Array, Array],
    noise: tuple[Any, ...],
    scales: bool,
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """`sweep.readable` from B to the single-site move: A, Sigma, the columns' scales, lam, tau; F = XB.

    `data` is (Y, rss0), `view` (U, D, YU), `state` (B, lam, tau). Without `scales` the local scales stay. Returns the state and
    the residual.
    """
    Y, rss0 = data
    rows, power, correlated, tau_scale, scale, reach = constants
    U, D, Yr = view
    B, lam, tau = state
    z_A, z_Sigma, z_columns, z_tau, z_lam = noise
    A = np.dot(U, draw_A(F, Yr, D / power, z_A)) if correlated else draw_A(F, Yr, D / power, z_A)
    residual = Y - np.dot(F, A.T)
    scatter = power * (np.dot(residual.T, residual) + rss0)
    Sigma = draw_Sigma(U, D, scatter, power * rows, scale, correlated, z_Sigma)
    A, B, tau = rescale_columns(A, B, tau, tau_scale, reach, z_columns)
    if scales:
        lam = draw_lam(lam, B, tau, z_lam)
    tau = draw_tau(tau, B, lam, tau_scale, reach, z_tau)
    return A, B, lam, tau, Sigma, residual


@njit(cache=True, error_model="numpy")
def single_site(columns: Array, gram: Array, W: Array, delta: Array, slack: Array) -> tuple[Array, Array]:
    """`moves.single_site`, every block visited: columns (blocks, k, m), gram (blocks, k, k), slack = log prior - log u (P)."""
    nb, k = columns.shape[:2]
    P, Q = delta.shape
    W = W.copy()
    accepted = np.zeros(nb * k, dtype=np.bool_)
    change = np.empty((k, Q))
    for b in range(nb):
        n = min(k, P - b * k)
        Xt, H = columns[b], gram[b]
        XW = np.dot(Xt, W.astype(Xt.dtype))
        moved = False
        change[:] = 0.0
        for i in range(n):
            p = b * k + i
            g, size = slack[p], 0.0
            for q in range(Q):
                g += XW[i, q] * delta[p, q]
                size += delta[p, q] ** 2
            g -= 0.5 * H[i, i] * size
            if moved:
                for j in range(i):
                    if accepted[b * k + j]:
                        inner = 0.0
                        for q in range(Q):
                            inner += delta[p, q] * change[j, q]
                        g -= H[i, j] * inner
            if g > 0:
                accepted[p] = moved = True
                for q in range(Q):
                    change[i, q] = delta[p, q]
        if moved:
            W -= np.dot(Xt.T, change.astype(Xt.dtype))
    return accepted[:P], W


@njit(cache=True, error_model="numpy")
def sites(
    design: tuple[Array, Array, Array],
    state: tuple[Array, Array, Array, Array, Array],
    residual: Array,
    constants: Constants,
    theta: Array,
    noise: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
    """`sweep.sites_row`, every block visited: B, lam and what was accepted. `design` is (blocks, their Gram matrices, Y)."""
    blocks, gram, Y = design
    A, B, lam, _, Sigma = state
    (P, R), Q = B.shape, A.shape[0]
    U, D, _, A = rotated(Sigma, Y, A, constants.correlated)
    s = np.sqrt(D / constants.power)
    new, delta = propose_lam(lam, theta, noise[0]), np.empty((P, Q))
    for p in range(P):
        change = (new[p] - lam[p]) / lam[p]
        for q in range(Q):
            x = 0.0
            for r in range(R):
                x += B[p, r] * A[q, r]
            delta[p, q] = change * x / s[q]
    accept, _ = single_site(blocks, gram, np.dot(residual, U) / s, delta, -np.log(noise[1]))
    scaled, kept = np.empty((P, R)), np.where(accept, new, lam)
    for p in range(P):
        for r in range(R):
            scaled[p, r] = B[p, r] * (kept[p] / lam[p])
    return scaled, kept, accept
