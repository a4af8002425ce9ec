"""The report's sections on what speaks against the fit: objections, prediction of unseen rows, residuals, replication."""

from typing import Any

import numpy as np

from intarsia.report import charts
from intarsia.report.gather import Material
from intarsia.report.html import Html, el, fixed, join, scrolled, small, table, with_code
from intarsia.server.assess.criticism import objections
from intarsia.server.assess.knockoffs import MOST_RATE
from intarsia.server.assess.leave_one_out import under_another_sketch

MOST_PAIRS = 12  # residual correlations listed
MOST_DRAWS = 1000  # for the intervals of correlations
MOST_IN_PICTURE = 60  # responses
MOST_KNOCKOFFS = 40  # features in the table of the second opinion


def against(m: Material) -> Html:
    """What a reader must know before believing anything that follows, in sentences; whether it converged is said at the top."""
    said = objections(m.assessment, m.responses, m.residuals)[0 if m.diagnosis.converged else 1 :]
    said += [*_not_replicated(m), *_not_confirmed(m)]
    if not said:
        agree = "the chains agree, " if m.diagnosis.converged else ""
        return el("p", f"Nothing {'' if agree else 'else '}that these checks can see: {agree}every response is predicted better "
                  "than by its mean, and the residuals look as the model says.")  # fmt: skip
    return el("ul", *(el("li", with_code(line)) for line in said))


def _not_replicated(m: Material) -> list[str]:
    rows = m.refits.get("replication", [])
    return [
        f"{_names(row['features'])} does not replicate: of the two halves of the rows, fitted alone, "
        f"they give its sign the probability {small(row['probability'][0])} and {small(row['probability'][1])}."
        for row in rows
        if not row["replicates"]
    ]


def _not_confirmed(m: Material) -> list[str]:
    return [
        f"{_names(row['features'])} is not confirmed: the rows that the screening sketch did not see, fitted alone, give its "
        f"sign the probability {row['probability']:.2f}."
        for row in m.refits.get("confirmation", [])
        if not row["confirmed"]
    ]


def _names(features: list[str]) -> str:
    return features[0] if len(features) == 1 else f"The set {', '.join(features[:5])}" + (" …" if len(features) > 5 else "")


def unseen(m: Material, in_sample: np.ndarray | None) -> Html | None:
    """R² of each response, in-sample beside out-of-sample."""
    loo = m.loo
    if loo is None:
        return None
    folds = m.refits.get("k_fold")
    refitted = m.assessment.weighed is not None
    head = ["response", "in-sample R²", f"out-of-sample R² ({'rows left out' if refitted else 'leave-one-out'})"]
    head += [f"out-of-sample R² ({folds['folds']}-fold)"] if folds else []
    others = _other_sketches(m)
    head += ["with another Φ, in 95 of 100"] if others else []
    rows: list[list[Any]] = []
    for q in range(m.Q):
        row: list[Any] = [
            el("bdi", m.responses[q]),
            "–" if in_sample is None else fixed(float(in_sample[q]), 2),
            join([f"{fixed(loo.r2[q], 2)} ± {fixed(loo.r2_se[q], 2)} ",
                  el("span", "not beyond chance", class_="tag no") if loo.unpredicted[q] else ""]),
        ]  # fmt: skip
        row += [fixed(folds["r2"][q], 2)] if folds else []
        rows.append([*row, others[q]] if others else row)
    how = (
        "The model was fitted again without a fifth of the rows in turn and predicted these, as the study's predictions do: the "
        "sparse fit weighed with others."
        if refitted
        else "Leaving one out says how well the fit predicts what it has not seen."
    )
    words = f"The rows of a sketch are exchangeable. {how} In-sample figures flatter: believe the out-of-sample ones."
    warning = el("p", with_code(loo.warning()), class_="note") if loo.warning() and not refitted else None
    return join([el("h3", "How well are responses predicted?"), el("p", words), table(head, rows), _luck(m, others), warning])


def _other_sketches(m: Material) -> list[Html]:
    """What R² of each response another sketch of the same subjects might have given; none where nothing was mixed."""
    if m.loo is None or m.gram or not m.m or not m.n or m.m >= m.n:
        return []
    low, high = under_another_sketch(m.loo.r2, m.loo.r2_se, m.m, m.n)
    chance = (low < m.loo.r2_se) & ~m.loo.unpredicted
    return [
        join([f"{fixed(low[q], 2)} to {fixed(high[q], 2)} ",
              el("span", "perhaps not beyond chance", class_="tag mid") if chance[q] else ""])
        for q in range(m.Q)
    ]  # fmt: skip


def _luck(m: Material, others: list[Html]) -> Html | None:
    """Why these figures would be others under another Φ, and what makes them firmer."""
    if not others:
        return None
    return el("p", f"The {m.m:,} rows are one random mixture of {m.n:,} subjects. Another Φ, as good as this one, would have "
              "given other figures: the last column says how far apart two sketches may lie. A figure that could have been "
              "that of a response without any signal is no finding. More rows make it firmer.", class_="note")  # fmt: skip


def residual_correlations(m: Material) -> Html | None:
    """Σ's correlations beside those of the residuals, as numbers and as a picture."""
    found = m.residuals
    if found is None or m.Q < 2:
        return None
    flat = m.posterior.draws.flat_Sigma
    flat = flat[:: max(1, len(flat) // MOST_DRAWS)]
    sd = np.sqrt(np.maximum(np.einsum("sqq->sq", flat), np.finfo(float).tiny))
    R = flat / (sd[:, :, None] * sd[:, None, :])
    at = np.column_stack(np.triu_indices(m.Q, k=1))
    size = np.maximum(np.abs(found.correlation), np.abs(found.expected))[at[:, 0], at[:, 1]]
    ends = [(1 - m.probability) / 2, (1 + m.probability) / 2]
    rows: list[list[Any]] = []
    for q, r in at[np.argsort(-size, kind="stable")[:MOST_PAIRS]]:
        low, high = np.quantile(R[:, q, r], ends)
        fitted = (
            "0 (taken as independent)" if found.independent else f"{fixed(found.expected[q, r])} [{fixed(low)}, {fixed(high)}]"
        )
        rows.append([join([el("bdi", m.responses[q]), " and ", el("bdi", m.responses[r])]), fitted,
                     fixed(found.correlation[q, r])])  # fmt: skip
    noise = "as independent" if found.independent else "with a covariance Σ of its own"
    off = found.correlation - found.expected
    np.fill_diagonal(off, 0.0)
    fit = "more than chance explains" if found.correlated else "within what chance gives"
    parts: list[Any] = [
        el("h3", "Correlation of the noise between responses"),
        el("p", f"The model takes the noise of different responses {noise}. Residuals differ from that by at most "
           f"{fixed(float(np.abs(off).max()))}, {fit}."),
        table(["responses", "the noise's correlation", "residuals' correlation"], rows),
    ]  # fmt: skip
    if m.Q <= MOST_IN_PICTURE:
        picture = charts.heat(
            found.correlation, m.responses, m.responses, name="Residual correlations", largest=1.0, look="off-diagonal"
        )
        parts.append(scrolled(picture, "Residual correlations"))
    return join(parts)


def confirmation(m: Material) -> Html | None:
    """Which findings stand in the rows that the screening sketch has not seen."""
    rows = m.refits.get("confirmation")
    if not rows:
        return None
    body: list[list[Any]] = [
        [el("bdi", ", ".join(row["features"][:6])), fixed(row["probability"], 2),
         "yes" if row["confirmed"] else el("span", "no", class_="tag no")] for row in rows
    ]  # fmt: skip
    return join([
        el("h3", "Confirmation by what the sketch did not see"),
        el("p", "A sketch said which features to keep. Their exact products less the sketch's are those of further rows, which "
           "owe nothing to the screen. Fitted alone they confirm a finding where its sign has a probability of at least 0.9."),
        table(["finding", "probability of its sign", "confirmed"], body),
    ])  # fmt: skip


def replication(m: Material) -> Html | None:
    """Which findings were found again in both halves of the rows, if that was asked."""
    rows = m.refits.get("replication")
    if not rows:
        return None
    body: list[list[Any]] = [
        [el("bdi", ", ".join(row["features"][:6])), *(small(p) for p in row["probability"]),
         "yes" if row["replicates"] else el("span", "no", class_="tag no")] for row in rows
    ]  # fmt: skip
    return join([
        el("h3", "Replication in two halves"),
        el("p", "The rows were split at random and both halves fitted alone. A finding replicates when each half gives its "
           "sign a probability of at least 0.9. A half has half of the evidence: not to replicate is a doubt, not a refutation."),
        table(["finding", "first half", "second half", "replicates"], body),
    ])  # fmt: skip


def knockoffs(m: Material) -> Html | None:
    """What a selection without a prior says of the features named here."""
    found = m.assessment.knockoffs
    if found is None:
        return None
    named = np.flatnonzero(m.findings.selected)
    confirmed = int((found.q_value[named] <= MOST_RATE).sum())
    extra = int((~m.findings.selected[found.named]).sum())
    body: list[list[Any]] = [
        [el("bdi", m.features[p]), small(float(m.findings.pip[p])),
         fixed(float(found.q_value[p]), 2) if found.q_value[p] <= MOST_RATE else el("span", "not found", class_="tag no")]
        for p in named[np.argsort(found.q_value[named], kind="stable")][:MOST_KNOCKOFFS]
    ]  # fmt: skip
    least = fixed(1 / found.copies, 2)
    return join([
        el("h3", "Knockoffs: a second opinion without a prior"),
        el("p", f"Each feature competed with {found.copies} knockoffs of it, made from the sums alone. Of {len(named)} features "
           f"named here {confirmed} are found at a false discovery rate of {fixed(MOST_RATE, 2)} or less, and "
           f"{extra} not named here. With k found the rate is at least {least}/k: where little is to be found, "
           "knockoffs find nothing."),
        table(["feature", "inclusion probability", "least rate at which knockoffs find it"], body) if body else None,
    ])  # fmt: skip
