"""The server's part where a sketch screens: which features to keep, whether these are the columns that were sketched, and what
the part of their Gram matrix that the sketch has not seen says of the findings.

The rows of Φ are orthonormal, so XᵀΦᵀΦX is a part of XᵀX, and what is left, XᵀX − XᵀΦᵀΦX, is the Gram matrix of n − 1 − m further
rows. With normal noise these are independent of the sketch: whatever the screen kept by chance has no better chance in them.
"""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError
from intarsia.files import DamagedFileError, read_arrays, replace_arrays
from intarsia.server.study import feature_scores, gram, screened
from intarsia.wire.messages import Joined
from intarsia.wire.screening import KeptList

if TYPE_CHECKING:
    from intarsia.server.assess.assessment import Assessment
    from intarsia.server.posterior.posterior import Posterior
    from intarsia.server.sampler.settings import Settings
    from intarsia.server.study.folder import StudyFolder
    from intarsia.server.study.round_folder import RoundFolder
    from intarsia.wire.study import Study

Array = NDArray[np.float64]

FILE = "scores.npz"
DRAWS, WARMUP, CHAINS = 400, 100, 4  # of the fit to the sketch that says what is kept: no draw of it is told to anybody
MATTER = 0.2  # of those that are kept: so many that fit expects to matter
BELOW_ZERO = 1e-5  # of a correlation: a sketch in float32 leaves so much
FAR = 8.0  # standard errors between a correlation in the sketch and the exact one: no honest pair of columns is so far apart
FEWEST = 20  # rows of a sketch by which correlations are judged so
AGAIN = "Nothing is fitted; start a new run of the study."


def listed(folder: "StudyFolder", most: int) -> KeptList:
    """The features with the largest inclusion probabilities in a fit to the sketch, `most` of them."""
    labels = [label for block in screened.stated(folder).values() for label in block.features]
    return KeptList(folder.study.hash, 1, tuple(labels[j] for j in best(scores(folder, most), most)))


def best(found: dict[str, Array], most: int) -> NDArray[np.int64]:
    """The places of those to keep, in their order; ties go to what single products say, then to the first."""
    order = np.lexsort((np.arange(len(found["pip"])), -found["score"], -found["pip"]))
    return np.sort(order[:most])


def scores(folder: "StudyFolder", most: int) -> dict[str, Array]:
    """By feature: `pip` in a fit to the sketch, `score` (−log₁₀ p) and `r` (feature × response) of its products with what the
    covariates leave of the responses. Worked out once, for `most` that are to be kept; again where the disk changed it.
    """
    path = screened.round_path(folder, 1) / FILE
    with suppress(FileNotFoundError, DamagedFileError):
        return read_arrays(path, "")
    found = scored(screened.sketched(folder), most, folder.study.fit.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_arrays(path, found)
    return found


def scored(joined: Joined, most: int, seed: int) -> dict[str, Array]:
    """The same of joined sketches: a fit takes off what strong effects explain, which single products do not."""
    from intarsia.server.covariates import Covariates, adjust
    from intarsia.server.sampler.sample import sample
    from intarsia.server.sampler.settings import Settings
    from intarsia.server.sampler.sparse.sample import EXPECTED, SparseModel

    X, Y, covariates = np.asarray(joined.X, float), np.asarray(joined.Y, float), Covariates.of(joined)
    if covariates.names:
        left = adjust(covariates.Z, X, Y, covariates.names)
        X, Y = left.X_left, left.Y_left
    model = SparseModel(background=False, expected_features=max(EXPECTED, most * MATTER))
    draws = sample(X, Y, model, Settings(DRAWS, WARMUP, CHAINS, seed=seed))
    assert draws.inclusion is not None
    lengths = np.linalg.norm(X, axis=0)
    r = X.T @ Y / np.outer(lengths, np.linalg.norm(Y, axis=0))
    sums = X.T @ Y / lengths[:, None] * np.sqrt(len(X) - 1)
    return {"pip": draws.inclusion.mean(), "r": r, "score": feature_scores.scores(sums, Y.T @ Y, len(X))}


def check_bound(folder: "StudyFolder", one: "RoundFolder") -> None:
    """The kept columns are those that were sketched, as far as a sketch can tell: no direction is longer in it than it is, and no
    correlation is far from the exact one."""
    G, Z = gram.joint(one), _sketched_columns(folder, one)
    d = np.sqrt(np.diagonal(G))
    inside = Z.T @ Z / np.outer(d, d)
    right = bool(np.linalg.eigvalsh(G / np.outer(d, d) - inside)[0] > -BELOW_ZERO)
    if right and len(Z) >= FEWEST:
        lengths = np.sqrt(np.diagonal(inside))
        apart = _fisher(inside / np.outer(lengths, lengths)) - _fisher(G / np.outer(d, d))
        right = bool(np.abs(apart).max() * np.sqrt(len(Z) - 3) < FAR)
    if not right:
        raise FederationError(
            "keep: the exact products of the kept columns do not belong to the columns that were sketched: a site stated other "
            f"columns now than it sketched. {AGAIN}"
        )


def _fisher(r: Array) -> Array:
    """arctanh of correlations, of a column with itself as good as of any."""
    return np.asarray(np.arctanh(np.clip(r, -1 + 1e-6, 1 - 1e-6)))


def _sketched_columns(folder: "StudyFolder", one: "RoundFolder") -> Array:
    """The sketch of a round's columns, in the order of its joint Gram matrix."""
    joined = screened.sketched(folder)
    place = {label: k for k, label in enumerate((*joined.features, *joined.responses, *joined.covariates))}
    labels = [label for b in gram.own_blocks(one).values() for label in (*b.features, *b.responses, *b.covariates)]
    whole = np.concatenate([np.asarray(part, dtype=np.float64) for part in (joined.X, joined.Y, joined.Z)], axis=1)
    return np.asarray(whole[:, [place[label] for label in labels]])


def table(folder: "StudyFolder", most: int) -> dict[str, Any]:
    """Every feature that was looked at, for results; what is said of it is what the sketch says."""
    blocks, found = screened.stated(folder), scores(folder, most)
    names = [name for name, block in blocks.items() for _ in block.features]
    labels = [label for block in blocks.values() for label in block.features]
    responses = [label for block in blocks.values() for label in block.responses]
    kept = set(screened.kept(screened.round_path(folder, 1)).features)
    rows = [
        {"feature": label, "site": name, "kept": 1 if label in kept else None, "score": float(found["score"][j]),
         "pip": float(found["pip"][j]), "r": dict(zip(responses, map(float, found["r"][j]), strict=True))}
        for j, (label, name) in enumerate(zip(labels, names, strict=True))
    ]  # fmt: skip
    n = next(iter(blocks.values())).n
    return {"looked_at": len(rows), "looks": 0, "m": folder.study.sketch.m, "n": n, "responses": responses, "features": rows}


def unseen(folder: "StudyFolder") -> Joined:
    """A root of the part of the kept Gram matrix that the sketch has not seen: n − 1 − m rows."""
    from intarsia.server.study.round_folder import RoundFolder

    one = RoundFolder(folder, 1)
    G, Z = gram.joint(one), _sketched_columns(folder, one)
    return gram.joined(one, G - Z.T @ Z, next(iter(screened.stated(folder).values())).n - 1 - len(Z), BELOW_ZERO)


def confirmation(
    folder: "StudyFolder", posterior: "Posterior", assessment: "Assessment", settings: "Settings"
) -> list[dict[str, Any]]:
    """Every finding in a fit to what the sketch has not seen."""
    findings = assessment.findings.findings
    if not len(findings):
        return []
    return held_against(folder.study, (unseen(folder), screened.joined(folder)), posterior, findings, settings)


def held_against(
    study: "Study", parts: tuple[Joined, Joined], posterior: "Posterior", findings: Any, settings: "Settings"
) -> list[dict[str, Any]]:
    """The same from rows: those the sketch has not seen, and all. The prior counts the kept features alone: in the unseen rows
    nothing else was looked at."""
    from intarsia.server.assess.criticism import found_again
    from intarsia.server.study.fit import posterior_of

    plain = replace(study, fit=replace(study.fit, background=False))
    fit, _ = posterior_of(plain, parts[0], settings)
    again = found_again([fit], parts[1].X, posterior, findings)
    return [
        {"features": row["features"], "probability": row["probability"][0], "confirmed": row["replicates"]}
        for row in again.to_dict(posterior.features)
    ]
