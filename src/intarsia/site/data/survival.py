"""Times to event as one number per subject: pseudo-observations of the restricted mean survival time, martingale residuals.

Both in O(n log n). `t` are times, `d` is 1 where the event came and 0 where the subject was last seen without it.
"""

import numpy as np


def _risk_table(t: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct event times u, the number of events and the number at risk at each (a subject censored at u is at risk at u)."""
    u, events = np.unique(t[d > 0], return_counts=True)
    at_risk = len(t) - np.searchsorted(np.sort(t), u, side="left")
    return u, events.astype(np.float64), at_risk.astype(np.float64)


def restricted_mean(t: np.ndarray, d: np.ndarray, horizon: float) -> float:
    """The area under the Kaplan–Meier curve up to the horizon."""
    u, events, at_risk = _risk_table(t, d)
    inside = u < horizon
    survival = np.concatenate([[1.0], np.cumprod(1 - events[inside] / at_risk[inside])])
    edges = np.concatenate([[0.0], u[inside], [horizon]])
    return float(survival @ np.diff(edges))


def rmst_pseudo_observations(t: np.ndarray, d: np.ndarray, horizon: float) -> np.ndarray:
    """n θ̂ − (n − 1) θ̂₍₋ᵢ₎ for every subject i, θ̂ being the restricted mean (Andersen, Hansen & Klein 2004).

    Leaving i out lowers the number at risk by one at every event time up to tᵢ, takes i's own event away at tᵢ, and changes
    nothing afterwards. So θ̂₍₋ᵢ₎ is the area up to tᵢ under the curve with one subject less, A, plus A just after tᵢ times R(tᵢ),
    the area from tᵢ on under the usual curve started anew at 1. A runs forwards, R backwards, each over the event times once.
    """
    n = len(t)
    u, events, at_risk = _risk_table(t, d)
    inside = u < horizon
    u, events, at_risk = u[inside], events[inside], at_risk[inside]
    k = len(u)
    edges = np.concatenate([[0.0], u, [horizon]])
    widths = np.diff(edges)
    # Where one subject alone is at risk, the factor without it is used by nobody; it is set to 1.
    less = np.where(at_risk > 1, np.clip(1 - events / np.maximum(at_risk - 1, 1), 0.0, 1.0), 1.0)
    A = np.concatenate([[1.0], np.cumprod(less)])  # A[j]: just after the j-th event time
    area = np.concatenate([[0.0], np.cumsum(A * widths)])  # area[j]: from 0 to edges[j]
    factor = 1 - events / at_risk
    R = np.empty(k + 1)  # R[j]: from edges[j] on, started at 1 there; R[k] is the last stretch
    R[k] = widths[k]
    for j in range(k - 1, -1, -1):
        R[j] = widths[j] + factor[j] * R[j + 1]
    # How many event times lie before t_i (at t_i itself: not counted).
    before: np.ndarray = np.searchsorted(u, t, side="left")
    out = np.full(n, area[-1])  # beyond the horizon: the whole area under A
    early = t < horizon
    at_event = np.zeros(n, dtype=bool)
    at_event[early] = (before[early] < k) & (u[np.minimum(before[early], k - 1)] == t[early]) if k else False
    # Censored between event times: A up to t_i, then the usual curve from A(t_i) on.
    i = np.flatnonzero(early & ~at_event)
    begun = area[before[i]] + A[before[i]] * (t[i] - edges[before[i]])
    rest = R[before[i]] - (t[i] - edges[before[i]])  # R from t_i on: the curve is flat between edges[j] and t_i
    out[i] = begun + A[before[i]] * rest
    # At an event time: the factor there has one subject less at risk, and one event less if it was i's own.
    i = np.flatnonzero(at_event)
    own = before[i]
    left = np.maximum(at_risk[own] - 1, 1)
    f = np.where(at_risk[own] > 1, 1 - (events[own] - d[i]) / left, 1.0)
    out[i] = area[own + 1] + A[own] * f * R[own + 1]
    return n * restricted_mean(t, d, horizon) - (n - 1) * out


def martingale_residuals(t: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Events that came minus events to be expected by then (Nelson–Aalen, no covariates): dᵢ − Λ̂(tᵢ)."""
    u, events, at_risk = _risk_table(t, d)
    hazard = np.concatenate([[0.0], np.cumsum(events / at_risk)])
    return d - hazard[np.searchsorted(u, t, side="right")]
