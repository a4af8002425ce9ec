"""The sampler's short sequential loops, compiled (Numba) for the NumPy backend.

Each function here is the twin of one in `moves` or `backend` that is written for any array library: same arguments in, same
numbers out to rounding (a test holds them together). Loops over a handful of features, responses or candidates cost the
interpreter more than the arithmetic; compiled once and kept on disk, they cost next to nothing. `draw_B`, `given_B` and `finish`
are a whole light sweep of a small problem. Without Numba, or with INTARSIA_COMPILED=0, the twins run instead.

One file, although a long one: what is kept on disk is made anew when the file changes that a function stands in, not when those
it calls do.

No fast-math flag is set: a function is compiled once for itself and again inside each that calls it, and which copy runs depends
on what a process loaded first. Only arithmetic in the order it is written gives the same bits in all of them, and so in a chain
that is continued elsewhere.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from intarsia.inverse_normal import CENTRE, FAR, TAIL
from intarsia.server.sampler import priors
from intarsia.server.sampler.conditionals import STIFF_A

Array = Any

HALF_CAUCHY = 0, 1.0, 0.0  # the `law_code` of C⁺(0,1)


def law_code(law: priors.Law) -> tuple[int, float, float]:
    """A local law as numbers: which, and its two parameters."""
    if isinstance(law, priors.HalfCauchy):
        return 0, float(law.s), 0.0
    if isinstance(law, priors.Student):
        return 1, law.nu, law.s
    if isinstance(law, priors.GroupLaplace):
        return 2, law.k, 0.0
    return 3, 0.0, 0.0


@njit(cache=True, error_model="numpy")
def _log_density(law: tuple[int, float, float], t: float) -> float:
    """`priors`: log density of t = log scale."""
    code, a, b = law
    if code == 0:
        v = abs(t - math.log(a)) if a != 1.0 else abs(t)
        return -v - math.log1p(math.exp(-2 * v))
    if code == 1:
        return -a * t - a * b * b / 2 * math.exp(-2 * t)
    if code == 2:
        return (a + 1) * t - math.exp(2 * t) / 2
    return 0.0


@njit(cache=True, error_model="numpy")
def single_site(columns: Array, gram: Array, W: Array, delta: Array, slack: Array, visited: Array) -> tuple[Array, Array]:
    """`moves.single_site`: columns (blocks, k, m), gram (blocks or 0, k, k), slack = log prior - log u (P)."""
    nb, k = columns.shape[:2]
    P, Q = delta.shape
    W = W.copy()
    accepted = np.zeros(nb * k, dtype=np.bool_)
    change = np.empty((k, Q))
    for place in range(visited.size):
        b = visited[place]
        n = min(k, P - b * k)
        Xt = columns[b]
        XW = np.dot(Xt, W)
        H = gram[b] if gram.shape[0] else np.dot(Xt, Xt.T)
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
            W -= np.dot(Xt.T, change)
    return accepted[:P], W


@njit(cache=True, error_model="numpy")
def log_marginal(diag: Array, off: Array, d: Array, Yr: Array) -> float:
    """`backend.Tridiagonal.log_marginal`; NaN where a system is not positive definite."""
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
    """`backend.Tridiagonal.solve`: rhs (R, m, columns); NaN where a system is not positive definite."""
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
    da: Array,
    zz: Array,
    most: float,
    lam: float,
    law: tuple[int, float, float],
    value: Array,
    mix: Array,
    u: float,
    room: Array,
) -> float:
    """One local scale among fresh candidates and the present one, by importance weight; `room` (3, T + 1) is to work in.

    With x the scale and c the middle of the logistic law, both proposals' densities are rational in x.
    """
    T = value.size
    c = math.e / math.sqrt(max(most, 1e-300))
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
        log_weight[k] = 0.5 * fit
        if law[0] != 0:
            t = math.log(x[k])
            log_weight[k] += _log_density(law, t) - _log_density(HALF_CAUCHY, t)
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
def _eliminate(rows: Array, coef: Array, i: int, first: int) -> None:
    """rows[i] -= Σ_{t<i} coef[t] rows[t], from column `first` on; four at a time, so that a row is loaded seldom."""
    n = rows.shape[1]
    mine, t = rows[i], 0
    while t + 4 <= i:
        one, two, three, four = rows[t], rows[t + 1], rows[t + 2], rows[t + 3]
        a, b, c, d = coef[t], coef[t + 1], coef[t + 2], coef[t + 3]
        for k in range(first, n):
            mine[k] -= a * one[k] + b * two[k] + c * three[k] + d * four[k]
        t += 4
    while t < i:
        one, a = rows[t], coef[t]
        for k in range(first, n):
            mine[k] -= a * one[k]
        t += 1


@njit(cache=True, error_model="numpy")
def _borderline(
    diag: Array,
    off: Array,
    d: Array,
    Yr: Array,
    rhs: Array,
    Xk: Array,
    Zk: Array,
    lam: Array,
    law: tuple[int, float, float],
    value: Array,
    mix: Array,
    pick: Array,
) -> tuple[Array, Array]:
    """`gibbs._borderline`: the new scales, and the solved systems after they have moved; NaN where one is not positive definite.

    Each new scale is a rank-one change of the systems, so the loop over the features is Gaussian elimination of
    (I + Xkᵀ M⁻¹ Xk D) x = Xkᵀ M⁻¹ rhs, a row brought up to date when its feature's turn comes. Columns K and K+1 belong to
    rhs and Yr; those after them are nought, so that rows end at a whole number of vector registers.
    """
    (m, K), R, T = Xk.shape, d.size, value.shape[1]
    wide = -(-(K + 2) // 8) * 8
    packed, a = np.zeros((R, m, wide)), np.empty((R, K, wide))
    for j in range(R):
        for i in range(m):
            packed[j, i, :K] = Xk[i]
            packed[j, i, K] = rhs[i, j]
            packed[j, i, K + 1] = Yr[i, j]
    packed = solve(diag, off, d, packed)
    XkT = np.ascontiguousarray(Xk.T)
    for j in range(R):
        if np.isnan(packed[j, 0, 0]):
            return np.full(K, np.nan), np.full((m, R), np.nan)
        np.dot(XkT, packed[j], a[j])
    new, room = lam.copy(), np.empty((3, T + 1))
    own, da, zz, coef = np.empty(R), np.empty(R), np.empty(R), np.empty((R, K))
    change, rho, pivot = np.empty((R, K)), np.empty((R, K)), np.empty((R, K))
    for i in range(K):
        least, most = np.inf, 0.0
        for r in range(R):
            a_ii, z = a[r, i, i], a[r, i, K + 1]
            for t in range(i):
                coef[r, t] = rho[r, t] * a[r, t, i]
                a_ii -= coef[r, t] * a[r, t, i]
                z -= coef[r, t] * a[r, t, K + 1]
            keep = 1 - d[r] ** 2 * lam[i] ** 2 * a_ii
            least = min(least, keep)
            keep = max(keep, 1e-8)
            da[r] = d[r] ** 2 * a_ii / keep
            zz[r] = z**2 / max(a_ii * keep, 1e-300)
            most = max(most, da[r])
            own[r] = a_ii
        if least > 1e-8:
            new[i] = _pick(da, zz, most, lam[i], law, value[i], mix[i], pick[i], room)
        for r in range(R):
            change[r, i] = d[r] ** 2 * (new[i] ** 2 - lam[i] ** 2)
            pivot[r, i] = 1 + change[r, i] * own[r]
            rho[r, i] = change[r, i] / pivot[r, i]
            if change[r, i] != 0.0:
                _eliminate(a[r], coef[r], i, (i + 1) // 8 * 8)
    W, weights = np.empty((m, R)), np.zeros(wide)
    for j in range(R):
        for i in range(K):
            weights[i] = -d[j] * (new[i] - lam[i]) * Zk[i, j]
        weights[K] = 1.0
        w = np.dot(packed[j], weights)
        right = np.dot(XkT, w)
        for i in range(K):
            scale = rho[j, i] * right[i]
            if scale != 0.0:
                for k in range(i + 1, K):
                    right[k] -= scale * a[j, i, k]
        weights[K] = 0.0
        for i in range(K - 1, -1, -1):
            rest = right[i]
            if change[j, i] != 0.0:
                for k in range(i + 1, K):
                    rest -= a[j, i, k] * weights[k]  # times its change already
            weights[i] = change[j, i] * rest / pivot[j, i]
        W[:, j] = w - np.dot(packed[j], weights)
    return new, W


def borderline(
    factor: Any, d: Array, Yr: Array, rhs: Array, Xk: Array, Zk: Array, lam: Array, law: priors.Law, candidates: dict[str, Array]
) -> tuple[Array, Array]:
    """`gibbs._borderline`."""
    plain = np.ascontiguousarray
    return _borderline(
        factor.diag, factor.off, d, plain(Yr), plain(rhs), plain(Xk), Zk, lam, law_code(law),
        candidates["value"], candidates["mix"], candidates["pick"],
    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _scaled(A: Array, tau: Array, s: Array) -> Array:
    """diag(1/s) A diag(tau)."""
    M = np.empty(A.shape)
    for q in range(A.shape[0]):
        for r in range(A.shape[1]):
            M[q, r] = A[q, r] / s[q] * tau[r]
    return M


@njit(cache=True, error_model="numpy")
def _evidence(diag: Array, off: Array, M: Array, Yw: Array) -> float:
    U, d, _ = np.linalg.svd(M, False)
    Yr = np.dot(Yw, U)
    value = log_marginal(diag, off, d, Yr)
    if U.shape[1] < U.shape[0]:
        value += (Yw**2).sum() - (Yr**2).sum()
    return value


@njit(cache=True, error_model="numpy")
def collapsed(target: tuple[Any, ...], log_sigma: Array, log_tau: Array) -> float:
    """`moves.Collapsed`: the noise law is the half-Cauchy of each scale (noise 0) or flat."""
    diag, off, Yrot, A, rss0, m, alpha, noise, scale = target
    Q, R = A.shape
    s = np.exp(log_sigma) / math.sqrt(alpha)
    M, Yw = _scaled(A, np.exp(log_tau), s), np.empty_like(Yrot)
    for i in range(Yrot.shape[0]):
        for q in range(Q):
            Yw[i, q] = Yrot[i, q] / s[q]
    value = -0.5 * _evidence(diag, off, M, Yw)
    for q in range(Q):
        value -= alpha * m * math.log(s[q]) + 0.5 * rss0[q] / s[q] ** 2
        value += _log_density((noise, scale[q], 0.0), log_sigma[q])
    for r in range(R):
        value += _log_density(HALF_CAUCHY, log_tau[r])
    return value


@njit(cache=True, error_model="numpy")
def collapsed_scales(
    target: tuple[Any, ...], sigma2: Array, tau: Array, steps: Array, log_u: Array
) -> tuple[Array, Array, Array]:
    """`moves.collapsed_scales`."""
    Q = sigma2.size
    log_sigma, log_tau = np.log(sigma2) / 2, np.log(tau)
    accepted = np.zeros(Q + 1, dtype=np.bool_)
    value = collapsed(target, log_sigma, log_tau)
    for k in range(Q + 1):
        new_sigma, new_tau = log_sigma.copy(), log_tau.copy()
        if k < Q:
            new_sigma[k] += steps[k]
        else:
            new_tau += steps[k]
        proposed = collapsed(target, new_sigma, new_tau)
        if log_u[k] < proposed - value:
            log_sigma, log_tau, value = new_sigma, new_tau, proposed
            accepted[k] = True
    return np.exp(2 * log_sigma), np.exp(log_tau), accepted


@njit(cache=True, error_model="numpy")
def compensated(
    quad: float,
    lin: float,
    log_lam: Array,
    log_tau: Array,
    law: tuple[int, float, float],
    steps: Array,
    log_u: Array,
) -> tuple[float, Array]:
    accepted = np.zeros(steps.size, dtype=np.bool_)
    at, value = 0.0, 0.0
    for k in range(-1, steps.size):
        x = at + (steps[k] if k >= 0 else 0.0)
        c1 = math.expm1(x)
        proposed = c1 * lin - 0.5 * c1**2 * quad
        for p in range(log_lam.size):
            proposed += _log_density(law, log_lam[p] - x)
        for r in range(log_tau.size):
            proposed += _log_density(HALF_CAUCHY, log_tau[r] + x)
        if k < 0:
            value = proposed
        elif log_u[k] < proposed - value:
            at, value = x, proposed
            accepted[k] = True
    return at, accepted


def compensated_scale(
    fit: Array, residual: Array, lam: Array, tau: Array, signal: Array, local: priors.Law, steps: Array, u: Array
) -> tuple[Array, Array]:
    """`moves.compensated_scale`."""
    quad, lin = (fit**2).sum(), (fit * residual).sum()
    log_lam = np.log(lam[signal])
    at, accepted = compensated(quad, lin, log_lam, np.log(tau), law_code(local), steps, np.log(u))
    return np.asarray(at), accepted


@njit(cache=True, error_model="numpy")
def stretch_responses(
    A: Array,
    tau: Array,
    fit: Array,
    W: Array,
    scatter: Array,
    signals: float,
    s: Array,
    directions: Array,
    steps: Array,
    log_u: Array,
) -> tuple[Array, Array, Array, Array, Array]:
    """`moves.stretch_responses`."""
    Q = A.shape[0]
    D, N = steps.shape
    A, inverse, fit, W = A.copy(), np.linalg.inv(A), fit.copy(), W.copy()
    accepted = np.zeros((D, N), dtype=np.bool_)
    for k in range(D):
        v = directions[k] / math.sqrt((directions[k] ** 2).sum())
        av, vs = np.dot(A.T, v), v / s
        f = np.dot(fit, v)
        lin, quad = np.dot(f, np.dot(W, vs)), np.dot(f, f) * np.dot(vs, vs)
        iv = np.dot(inverse, v)
        Vv = np.dot(inverse.T, iv / tau**2)
        Sv = np.dot(scatter, v)
        cross, own, aa = np.dot(Sv, Vv), np.dot(v, Sv) * np.dot(v, Vv), np.dot(av, av)
        at, value = 0.0, 0.0
        for i in range(N):
            y = at + steps[k, i]
            g, h = math.expm1(y), math.expm1(-y)
            proposed = (Q - signals) * y - 0.5 * (2 * g + g**2) * aa + g * lin - 0.5 * g**2 * quad
            proposed -= h * cross + 0.5 * h**2 * own
            if log_u[k, i] < proposed - value:
                at, value = y, proposed
                accepted[k, i] = True
        if at != 0.0:
            g, h = math.expm1(at), math.expm1(-at)
            for q in range(Q):
                for r in range(A.shape[1]):
                    A[q, r] += v[q] * g * av[r]
                    inverse[r, q] += h * iv[r] * v[q]
            for i in range(fit.shape[0]):
                for q in range(Q):
                    change = f[i] * g * v[q]
                    fit[i, q] += change
                    W[i, q] -= change / s[q]
    return A, inverse, fit, W, accepted


@njit(cache=True, error_model="numpy")
def whiten(A: Array, tau: Array, s: Array) -> tuple[Array, Array, Array]:
    """`conditionals.whiten`."""
    U, d, Vt = np.linalg.svd(_scaled(A, tau, s), False)
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


@njit(cache=True, error_model="numpy")
def grams(Xt: Array, scale: Array) -> Array:
    """`backend.NumpyBackend.grams` of a small problem."""
    R, m = scale.shape[1], Xt.shape[1]
    out = np.empty((R, m, m))
    for r in range(R):
        out[r] = _weighed(Xt, scale[:, r].copy())[1]
    return out


@njit(cache=True, error_model="numpy")
def element_system(At: Array, grams: Array) -> Array:
    """`conditionals.element_system`, the blocks on and above the diagonal."""
    (Q, R), m = At.shape, grams.shape[1]
    M = np.empty((Q * m, Q * m))
    for q in range(Q):
        for k in range(q, Q):
            for i in range(m):
                row = M[q * m + i, k * m : (k + 1) * m]
                weight = At[q, 0] * At[k, 0]
                for j in range(m):
                    row[j] = weight * grams[0, i, j]
                for r in range(1, R):
                    weight = At[q, r] * At[k, r]
                    for j in range(m):
                        row[j] += weight * grams[r, i, j]
        for i in range(q * m, (q + 1) * m):
            M[i, i] += 1.0
    return M


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
def non_centred(A: Array, B: Array, lam: Array, new: Array, s: Array) -> tuple[Array, Array, Array]:
    """`moves.non_centred`."""
    (P, R), Q = B.shape, A.shape[0]
    unit, D, delta = np.empty((P, R)), np.empty((P, Q)), np.empty((P, Q))
    M = A / s.reshape(-1, 1)
    for p in range(P):
        inverse, change = 1 / lam[p], new[p] - lam[p]
        for r in range(R):
            unit[p, r] = B[p, r] * inverse
        for q in range(Q):
            x = 0.0
            for r in range(R):
                x += unit[p, r] * M[q, r]
            D[p, q] = x
            delta[p, q] = change * x
    return unit, D, delta


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
def _half_cauchy(eta: float, k: float, mu: float, s: float, low: float, u: float, v: float) -> float:
    """`priors.HalfCauchy.draw` of one precision, k > 1."""
    s2 = s * s
    rate = max(mu, 2 * priors.LOW) / 2
    large = s2 * (k / 2) > rate
    new = min(max((low if large else low - math.log(v)) / rate, priors.LOW), priors.HIGH)
    ratio = (1 + s2 * eta) / (1 + s2 * new)
    if large:
        ratio *= new / eta
    return new if u < ratio else eta


@njit(cache=True, error_model="numpy")
def half_cauchy(eta: Array, k: float, mu: Array, s: Array, low: Array, u: Array, v: Array) -> Array:
    """`priors.HalfCauchy.draw` for a vector, k > 1."""
    out = np.empty(eta.size)
    for i in range(eta.size):
        out[i] = _half_cauchy(eta[i], k, mu[i], s[i], low[i], u[i], v[i])
    return out


@njit(cache=True, error_model="numpy")
def draw_lam(lam: Array, B: Array, tau: Array, low: Array, u: Array, v: Array) -> Array:
    """`conditionals.draw_lam` for row scales under the half-Cauchy, more than one column."""
    P, R = B.shape
    inverse, out = 1 / tau, np.empty(P)
    for p in range(P):
        mu = 0.0
        for r in range(R):
            mu += (B[p, r] * inverse[r]) ** 2
        out[p] = 1 / math.sqrt(_half_cauchy(1 / lam[p] ** 2, float(R), mu, 1.0, low[p], u[p], v[p]))
    return out


@njit(cache=True, error_model="numpy")
def draw_tau(tau: Array, B: Array, lam: Array, low: Array, u: Array, v: Array) -> Array:
    """`conditionals.draw_tau` for row scales under the half-Cauchy, more than one feature."""
    P, R = B.shape
    mu, out = np.zeros(R), np.empty(R)
    for p in range(P):
        inverse = 1 / lam[p]
        for r in range(R):
            mu[r] += (B[p, r] * inverse) ** 2
    for r in range(R):
        out[r] = 1 / math.sqrt(_half_cauchy(1 / tau[r] ** 2, float(P), mu[r], 1.0, low[r], u[r], v[r]))
    return out


@njit(cache=True, error_model="numpy")
def rescale_columns(A: Array, B: Array, tau: Array, shape: float, g: Array, u: Array) -> tuple[Array, Array, Array]:
    """`moves.rescale_columns`."""
    (Q, R), P = A.shape, B.shape[0]
    c = np.ones(R)
    for r in range(R):
        square = 0.0
        for q in range(Q):
            square += A[q, r] ** 2
        a = min(max(2 * g[r] / max(square, 1e-30), 1e-20), 1e20)
        t, log_a = math.log(tau[r]), math.log(a)
        ratio = _log_density(HALF_CAUCHY, t - log_a / 2) - _log_density(HALF_CAUCHY, t) + (Q / 2 - shape) * log_a
        if math.log(u[r]) < ratio:
            c[r] = 1 / math.sqrt(a)
    scaled = np.empty((P, R))
    for p in range(P):
        for r in range(R):
            scaled[p, r] = B[p, r] * c[r]
    return A / c, scaled, tau * c


@njit(cache=True, error_model="numpy")
def shifted(lam: Array, tau: Array, law: tuple[int, float, float], step: float, u: float) -> tuple[Array, Array, bool]:
    change = 0.0
    if law[0] == 0:  # (1 + lam²) / (lam²/c + c) of each, multiplied up
        ratio, grow = 1.0, math.exp(step)
        for p in range(lam.size):
            square = lam[p] ** 2
            ratio *= (1 + square) / (square / grow + grow)
            if not 1e-100 < ratio < 1e100:
                change += math.log(ratio)
                ratio = 1.0
        change += math.log(ratio)
    else:
        for p in range(lam.size):
            t = math.log(lam[p])
            change += _log_density(law, t - step) - _log_density(law, t)
    for r in range(tau.size):
        t = math.log(tau[r])
        change += _log_density(HALF_CAUCHY, t + step) - _log_density(HALF_CAUCHY, t)
    accept = math.log(u) < change
    c = math.exp(step) if accept else 1.0
    return lam / c, tau * c, accept


def shift_scales(lam: Array, tau: Array, local: priors.Law, step: Array, u: Array) -> tuple[Array, Array, Array]:
    """`moves.shift_scales` for row scales."""
    lam, tau, accept = shifted(lam, tau, law_code(local), float(step), float(u))
    return lam, tau, np.asarray(accept)


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
    """`backend.NumpyBackend.weigh` of a small problem."""
    Xl, G = _weighed(Xt, lam)
    return G.T, np.dot(Xl.T, Z)


@njit(cache=True, error_model="numpy")
def coefficients(
    Xt: Array, lam: Array, tau: Array, Z: Array, W: Array, Vt: Array, back: float, old: Array
) -> tuple[Array, Array]:
    """B from the solved systems W, so far back from the old B, and XB."""
    P, R = Z.shape
    T = np.dot(Xt, W)
    for p in range(P):
        for r in range(R):
            T[p, r] = (T[p, r] * lam[p] + Z[p, r]) * lam[p]
    B = np.dot(T, Vt)
    for p in range(P):
        for r in range(R):
            B[p, r] = B[p, r] * tau[r] - back * old[p, r]
    return B, np.dot(Xt.T, B)


@njit(cache=True, error_model="numpy")
def draw_B(
    Xt: Array, Y: Array, A: Array, B: Array, lam: Array, tau: Array, s: Array, back: float, Z: Array, E: Array, stiff: float
) -> tuple[bool, Array, Array]:
    """`conditionals.relaxed` of `conditionals.draw_B_row` for a small problem, and XB. False: the system is too stiff."""
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
    new, F = coefficients(Xt, lam, tau, Zl, W, Vt, back, B)
    return True, new, F


@njit(cache=True, error_model="numpy")
def integrated(
    target: tuple[Any, ...],
    sigma2: Array,
    tau: Array,
    steps: tuple[Array, Array, Array],
    packed: Array,
    Zk: Array,
    lam: Array,
    border: tuple[Array, Array, Array],
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """`gibbs._draw_B` between the rotations: sigma2, tau, what was accepted, the borderline scales, d W and Vᵀ.

    `packed` (m, Q + 2R + K) holds Y, E, X diag(lam) Z and the borderline features, rotated; `lam` are their scales.
    """
    diag, off, Yrot, A, _, _, alpha, _, _ = target
    (Q, R), m, K = A.shape, packed.shape[0], lam.size
    sigma2, tau, accepted = collapsed_scales(target, sigma2, tau, np.exp(steps[0]) * steps[1], np.log(steps[2]))
    s = np.sqrt(sigma2 / alpha)
    U, d, Vt = whiten(A, tau, s)
    Yr = np.dot(Yrot / s, U)
    rhs, Xk = np.empty((m, R)), np.empty((m, K))
    for i in range(m):
        for r in range(R):
            rhs[i, r] = Yr[i, r] - d[r] * packed[i, Q + R + r] - packed[i, Q + r]
        for k in range(K):
            Xk[i, k] = packed[i, Q + 2 * R + k]
    new, W = _borderline(diag, off, d, Yr, rhs, Xk, Zk, lam, HALF_CAUCHY, border[0], border[1], border[2])
    return sigma2, tau, accepted, new, d * W, Vt


@njit(cache=True, error_model="numpy")
def given_B(
    F: Array,
    Y: Array,
    rss0: Array,
    rows: float,
    alpha: float,
    scale: Array,
    A: Array,
    B: Array,
    lam: Array,
    tau: Array,
    sigma2: Array,
    z_A: Array,
    sigma_noise: tuple[Array, Array, Array],
    columns: tuple[Array, Array],
    shape: float,
    tau_noise: tuple[Array, Array, Array],
    scales: bool,
    lam_noise: tuple[Array, Array, Array],
    step: float,
    u_shift: float,
) -> tuple[Array, Array, Array, Array, Array, Array, bool]:
    """`gibbs.sweep` from B to the non-centred moves: A, sigma2, the columns' scales, lam, tau, their shift; F = XB.

    Without `scales` the local scales stay. Returns the whitened residual too.
    """
    Q = Y.shape[1]
    A = draw_A(F, Y, sigma2 / alpha, z_A)
    residual = Y - np.dot(F, A.T)
    rss = np.empty(Q)
    for q in range(Q):
        rss[q] = alpha * ((residual[:, q] ** 2).sum() + rss0[q])
    sigma2 = 1 / half_cauchy(1 / sigma2, alpha * rows, rss, scale, sigma_noise[0], sigma_noise[1], sigma_noise[2])
    sigma2 = np.maximum(sigma2, 1e-24 * scale**2)
    A, B, tau = rescale_columns(A, B, tau, shape, columns[0], columns[1])
    moved = False
    if scales:
        lam = draw_lam(lam, B, tau, lam_noise[0], lam_noise[1], lam_noise[2])
    tau = draw_tau(tau, B, lam, tau_noise[0], tau_noise[1], tau_noise[2])
    tau = np.minimum(np.maximum(tau, 1e-15), 1e15)
    if scales:
        lam, tau, moved = shifted(lam, tau, HALF_CAUCHY, step, u_shift)
    return A, B, lam, tau, sigma2, residual / np.sqrt(sigma2 / alpha), moved


@njit(cache=True, error_model="numpy")
def finish(
    blocks: Array,
    gram: Array,
    Y: Array,
    A: Array,
    B: Array,
    lam: Array,
    tau: Array,
    W: Array,
    s: Array,
    theta: Array,
    sites: tuple[Array, Array],
    strong: Array,
    directions: Array,
    stretch: tuple[float, Array, Array],
    follow: tuple[float, Array, Array],
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """`gibbs._finish_row`, every block visited: A, B, lam, tau and what was accepted (sites, compensated scale, stretches).

    `sites` are the normal and the uniform numbers of the sites; `stretch` and `follow` the log step of a move and its numbers.
    """
    (Q, R), (P, m), h = A.shape, (B.shape[0], Y.shape[0]), strong.size
    new = propose_lam(lam, theta, sites[0])
    unit, D, delta = non_centred(A, B, lam, new, s)
    accept, W = single_site(blocks, gram, W, delta, -np.log(sites[1]), np.arange(blocks.shape[0]))
    lam = np.where(accept, new, lam)
    rows = blocks.reshape(-1, m)
    Xs, mine, signals, log_lam = np.empty((h, m)), np.empty((h, Q)), np.empty((h, Q)), np.empty(h)
    for i in range(h):
        Xs[i] = rows[strong[i]]
        log_lam[i] = math.log(lam[strong[i]])
        for q in range(Q):
            signals[i, q] = lam[strong[i]] * D[strong[i], q]
            mine[i, q] = D[strong[i], q] * s[q]
    fit = Y / s - W - np.dot(Xs.T, signals)
    stretched = np.zeros((1, 1), dtype=np.bool_)
    if R == Q:
        A, inverse, fit, W, stretched = stretch_responses(
            A, tau, fit * s, W, np.dot(mine.T, mine), float(h), s,
            directions, math.exp(stretch[0]) * stretch[1], np.log(stretch[2]),
        )  # fmt: skip
        fit = fit / s
        back = np.dot(mine, inverse.T)
        for i in range(h):
            unit[strong[i]] = back[i]
    quad, lin = (fit**2).sum(), (fit * W).sum()
    at, followed = compensated(quad, lin, log_lam, np.log(tau), HALF_CAUCHY, math.exp(follow[0]) * follow[1], np.log(follow[2]))
    c = math.exp(at)
    size = c * lam
    for i in range(h):
        size[strong[i]] = lam[strong[i]]
        lam[strong[i]] /= c
    for p in range(P):
        for r in range(R):
            unit[p, r] *= size[p]
    return A, unit, lam, tau * c, accept, followed, stretched


@njit(cache=True, error_model="numpy")
def keep(
    state: tuple[Array, Array, Array, Array, Array],
    norm2: Array,
    watched: Array,
    n: float,
    C: Array,
    kappa: Array,
    moments: Array,
) -> None:
    """`chain.Chain._keep` for row scales: C of the n-th kept draw, the running shrinkage and moments, all in place."""
    A, B, lam, tau, sigma2 = state
    (P, R), Q = B.shape, A.shape[0]
    spread = 0.0
    for q in range(Q):
        for r in range(R):
            spread += (A[q, r] * tau[r]) ** 2 / sigma2[q] / R
    for p in range(P):
        for q in range(Q):
            x = 0.0
            for r in range(R):
                x += B[p, r] * A[q, r]
            C[p, q] = x
        kappa[p] += (1 / (1 + norm2[p] * spread * lam[p] ** 2) - kappa[p]) / n
    for k in range(moments.shape[1]):
        if k < watched.size:
            x = C[watched[k] // Q, watched[k] % Q]
        else:
            x = math.log(sigma2[k - watched.size])
        away = x - moments[0, k]
        moments[0, k] += away / n
        moments[1, k] += away * (x - moments[0, k])
