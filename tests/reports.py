"""Small posteriors for the tests of the report: made up, with a known truth, no sampler involved."""

from typing import Any

import numpy as np

from intarsia.server.posterior.draws import Draws, diagonal
from intarsia.server.posterior.posterior import Names, Posterior
from intarsia.wire.messages import Joined


def made_up(
    P: int = 60,
    Q: int = 3,
    active: int = 4,
    *,
    chains: int = 4,
    draws: int = 200,
    m: int = 40,
    features: list[str] | None = None,
    responses: list[str] | None = None,
    seed: int = 0,
) -> tuple[Posterior, Joined, Any]:
    """A posterior around a sparse truth, the sketch it could come from, and the truth."""
    rng = np.random.default_rng(seed)
    C = np.zeros((P, Q))
    at = rng.choice(P, active, replace=False)
    C[at] = rng.choice([-1, 1], (active, Q)) * rng.uniform(0.3, 0.9, (active, Q))
    X = rng.standard_normal((m, P))
    Y = X @ C + 0.6 * rng.standard_normal((m, Q))
    width = np.where(C.any(axis=1), 0.05, 0.01)[:, None]
    samples = C + width * rng.standard_normal((chains, draws, P, Q))
    sigma2 = 0.36 * np.exp(0.1 * rng.standard_normal((chains, draws, Q)))
    tau = np.abs(rng.standard_normal((chains, draws, Q)))
    shrinkage = np.where(C.any(axis=1), 0.1, 0.95)
    info = {"seconds": 1.0, "seed": seed, "versions": {"intarsia": "0"}}
    features = features or [f"f{i:03d}" for i in range(P)]
    responses = responses or [f"y{q}" for q in range(Q)]
    sites = ["imaging"] * (P // 2) + ["laboratory"] * (P - P // 2)
    names: dict[str, Any] = {
        "features": features,
        "responses": responses,
        "feature_sites": sites,
        "response_sites": ["clinic"] * Q,
    }
    made = Draws(samples, diagonal(sigma2), {"tau": tau}, shrinkage, info)
    posterior = Posterior.from_draws(made, Names(**names), attrs={"n": 900, "m": m})
    labels = {key: tuple(value) for key, value in names.items()}
    joined = Joined(X=X, Y=Y, n=900, m=m, kind="orthonormal", study_hash="ab" * 32, key_fingerprint="cd" * 16, **labels)
    return posterior, joined, C


def card(level: str) -> dict[str, Any]:
    """A small privacy card whose first finding is of this level."""
    found = [{"rule": "ratio", "level": level, "text": "ratio: Σm/n = 0.100."}, {"rule": "x", "level": "ok", "text": "x: fine"}]
    return {
        "study": {"id": "s", "run": "ab", "hash": "cd"}, "made_by": "site clinic", "in_one_sentence": "It tells little.",
        "sketch": {"n": 2000, "m": 200, "kind": "orthonormal", "precision": "float64"}, "not_claimed": ["Nothing."],
        "information": {"phi_known": "much", "phi_secret_bits": {"lower": 1, "upper": 2, "exact": True},
                        "phi_secret_bits_per_subject": [1, 2]},
        "attacks": {"membership_auc": 0.58421, "correlations_known_to": 0.07, "known_rows_r2": 0.1, "columns_per_subject": 0.1},
        "columns": {"own": 3}, "findings": found, "differential_privacy": None, "blind_danger": 0.001,
        "parties": {"sites": ["clinic"], "server_receives": "a sketch", "server_never_receives": "rows", "know_phi": "sites"},
    }  # fmt: skip
