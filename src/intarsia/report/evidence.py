"""The report's sections on trust in the fit: convergence, model checks, rank and shrinkage, noise, traces."""

from typing import Any

import numpy as np

from intarsia.report import charts, doubts
from intarsia.report.charts import Interval
from intarsia.report.checks import Checks
from intarsia.report.gather import Material
from intarsia.report.html import Html, el, fixed, join, number, short, small, table
from intarsia.server.assess.convergence import whole
from intarsia.wire.plain import plural

TRACES = 6  # pictures of chains: of the worst coefficients, and one of a noise level


def convergence(m: Material) -> Html:
    d = m.diagnosis
    rows: list[list[Any]] = []
    names = {
        "rhat": "R̂ (location)",
        "rhat_folded": "R̂ (spread)",
        "ess_bulk": "effective samples, bulk",
        "ess_tail": "effective samples, tails",
        "mcse": "Monte Carlo error of the mean",
    }
    limits = {"rhat": "≤ 1.01", "rhat_folded": "≤ 1.02", "ess_bulk": "≥ 400", "ess_tail": "≥ 400", "mcse": ""}
    for key, row in d.summary().items():
        if key in names:
            show = (lambda v: fixed(v, 3)) if key.startswith("rhat") else (lambda v: f"{whole(v):,}") if "ess" in key else number
            rows.append([names[key], show(row["worst"]), show(row["poor"]), show(row["median"]), limits[key]])
    seconds = m.attrs.get("seconds")
    took = f" in {number(float(seconds), 3)} s" if isinstance(seconds, int | float) else ""
    return join(
        [
            el("p", verdict_words(m), class_="verdict good")
            if d.converged
            else el("p", "The verdict and what to do about it stand at the top of this page; here are the figures behind it."),
            el(
                "p",
                f"{d.chains} chains of {d.draws:,} kept draws{took}. {_what_is_judged(m)}",
            ),
            table(["", "worst", "poorest 5 %", "median", "limit"], rows),
            el(
                "div",
                el(
                    "figure",
                    el("h3", "R̂ of every coefficient"),
                    charts.histogram(d.rhat.ravel(), name="Distribution of R̂ over the coefficients", axis="R̂", rule=1.01),
                    class_="panel",
                ),
                el(
                    "figure",
                    el("h3", "Effective samples of every coefficient"),
                    charts.histogram(
                        np.minimum(d.ess_bulk, d.ess_tail).ravel(),
                        name="Distribution of effective sample sizes",
                        axis="smaller of bulk and tail",
                        rule=400.0,
                    ),
                    class_="panel",
                ),
                class_="panels",
            ),
        ]
    )


def _what_is_judged(m: Material) -> str:
    """What chains are compared by."""
    if not m.posterior.draws.sparse:
        return "Only C = BAᵀ and the noise are identified, so these are what is judged."
    places = m.diagnosis.places
    return (
        f"Chains are compared by the mean of each effect given all else, of the {0 if places is None else len(places):,} of "
        f"{m.P:,} features with an inclusion probability above 0.01, by the inclusion probabilities of all, by "
        "the noise and by the prior's own parameters."
    )


def _included(m: Material) -> str:
    """How many features are in, and what the background takes."""
    C, level = m.posterior.draws.effects, f"{m.probability:.0%}".replace("%", " %")
    ends = [(1 - m.probability) / 2, (1 + m.probability) / 2]
    inside = m.posterior.draws.parameters.get("included", np.diff(C.offsets))
    low, high = np.quantile(inside, ends)
    words = f"Of {m.P:,} features {inside.mean():.1f} are in on average ({level}: {low:.0f} to {high:.0f})."
    ratio, how = m.posterior.draws.parameters.get("background_ratio"), m.posterior.attrs
    if not how.get("background", True):
        if how["model"]["background"]:
            words += " There are too few for a dense background of many small effects beside them."
    elif ratio is not None:
        none = small(float((ratio == 0).mean()), m.findings.draws)
        words += (
            f" The probability that there is no dense background is {none}; its variance is "
            f"{number(float(ratio.mean()), 3)} times the noise's on average."
        )
    return words


def standing(m: Material) -> tuple[str, str, str]:
    """How far the chains have come: name, colour, words."""
    name = m.diagnosis.standing
    words = {"converged": ("good", "The chains agree: "), "almost converged": ("close", "Almost, the results are provisional: ")}
    colour, said = words.get(name, ("bad", "Not converged, so that nothing below is a result yet: "))
    return name, colour, said


def verdict_words(m: Material) -> str:
    words = str(m.diagnosis.verdict)
    return standing(m)[2] + words + ("" if words.endswith(".") else ".")


def checks(m: Material, c: Checks | None) -> Html:
    if c is None:
        return join(
            [
                el(
                    "p",
                    "The sketches are not at hand, so the model cannot be held against the data here. Make the report "
                    "from the study folder to have these checks.",
                ),
                doubts.unseen(m, None),
                doubts.replication(m),
                doubts.confirmation(m),
                doubts.knockoffs(m),
            ]
        )
    worst = c.worst(6)
    level = f"{m.probability:.0%}".replace("%", " %")
    parts: list[Any] = [
        el(
            "p",
            f"From {c.replicates} draws the {c.m} rows of each sketched response were made anew and held against those that "
            "came. Shares near 0 or 1 say that the replicates do not look like the data in that respect.",
        ),
        table(
            ["response", f"variance explained in-sample [{level}]", f"inside {level} predictive", "spread", "largest value", ""],
            _by_response(m, c),
        ),
        el(
            "h3",
            "Observed against predicted quantiles" + (f", the {len(worst)} most extreme of {m.Q}" if len(worst) < m.Q else ""),
        ),
        el("div", *(_quantiles(m, c, q) for q in sorted(worst)), class_="panels tight"),
    ]
    parts += [doubts.unseen(m, c.r2[:, 0]), doubts.residual_correlations(m)]
    parts += [doubts.replication(m), doubts.confirmation(m), doubts.knockoffs(m)]
    parts.append(
        el(
            "p",
            "What these checks cannot see: every row of a sketch mixes all subjects, so residuals look normal whatever "
            "single subjects do. Outliers, skewness and bends must be looked for at the sites, before sketching.",
            class_="note",
        )
    )
    return join(parts)


def _by_response(m: Material, c: Checks) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for q in range(m.Q):
        odd = min(c.p_spread[q], 1 - c.p_spread[q], c.p_largest[q], 1 - c.p_largest[q]) < 0.01
        rows.append(
            [
                el("bdi", m.responses[q]),
                f"{c.r2[q, 0]:.2f} [{c.r2[q, 1]:.2f}, {c.r2[q, 2]:.2f}]",
                f"{c.coverage[q]:.0%}",
                fixed(c.p_spread[q], 2),
                fixed(c.p_largest[q], 2),
                el("span", "look", class_="tag no") if odd else "fine",
            ]
        )
    return rows


def _quantiles(m: Material, c: Checks, q: int) -> Html:
    words = f"Observed against predicted order statistics of {m.responses[q]}"
    band = charts.quantile_band(c.observed[q], c.low[q], c.middle[q], c.high[q], words)
    return el("figure", el("h3", el("bdi", short(m.responses[q], 26))), band, class_="panel small")


def rank(m: Material) -> Html:
    s, draws = m.posterior.rank_summary(m.probability), m.posterior.draws
    low, high = s["effective_rank_interval"]
    matter = sum(share > 0.01 for share in s["share"])
    tau = draws.parameters.get("tau")
    allowed = "" if tau is None else f"; B was allowed {plural(tau.shape[2], 'column')}"
    parts: list[Any] = [
        el(
            "p",
            "The effective rank of C is ",
            el("strong", number(s["effective_rank"], 2)),
            f" ({number(low, 2)} to {number(high, 2)}). {matter} of {len(s['singular_values'])} components carry more than "
            f"1 % of the signal{allowed}.",
        ),
    ]
    panels = [
        el(
            "figure",
            el("h3", "Singular values of C"),
            charts.scree(s["singular_values"], s["singular_value_intervals"]),
            class_="panel",
        )
    ]
    if draws.sparse:
        parts.append(el("p", _included(m)))
    if draws.shrinkage is not None:
        kappa = np.asarray(draws.shrinkage, dtype=float)
        kept = float((1 - kappa).sum())
        parts.append(
            el(
                "p",
                f"Shrinkage κ is 0 for a feature left alone and 1 for one shrunk to nothing. The prior leaves "
                f"about {number(kept, 3)} of {m.P:,} features in the model.",
            )
        )
        panels.append(
            el(
                "figure",
                el("h3", "Shrinkage of every feature"),
                charts.histogram(kappa, name="Distribution of shrinkage factors", axis="κ", limits=(0.0, 1.0)),
                class_="panel",
            )
        )
    return join([*parts, el("div", *panels, class_="panels")])


def noise(m: Material, c: Checks | None) -> Html:
    sigma = np.sqrt(m.posterior.draws.sigma2.reshape(-1, m.Q))
    ends = [(1 - m.probability) / 2, 0.25, 0.75, (1 + m.probability) / 2]
    low, a, b, high = np.quantile(sigma, ends, axis=0)
    mean = sigma.mean(axis=0)
    most = min(m.Q, 40)
    rows = [
        Interval(m.responses[q], float(mean[q]), float(low[q]), float(high[q]), (float(a[q]), float(b[q]))) for q in range(most)
    ]
    level = f"{m.probability:.0%}".replace("%", " %")
    figures = [
        el(
            "figure",
            el("h3", "Noise σ of each response"),
            charts.forest(
                rows,
                title="Noise standard deviations",
                axis="σ (1 = the response's own sd)",
                limits=(0.0, max(float(high[:most].max()) * 1.05, 1.05)),
                zero=False,
            ),
            class_="panel neutral",
        )
    ]
    if c is not None:
        shares = [Interval(m.responses[q], float(c.r2[q, 0]), float(c.r2[q, 1]), float(c.r2[q, 2])) for q in range(most)]
        figures.append(
            el(
                "figure",
                el("h3", "Share of variance explained, in-sample"),
                charts.forest(shares, title="Variance explained in-sample", axis="R², in-sample", limits=(0.0, 1.0), zero=False),
                class_="panel neutral",
            )
        )
    more = f" The first {most} of {m.Q} responses are drawn." if most < m.Q else ""
    return join(
        [
            el("p", f"Dots are posterior means, thin lines {level} intervals.{more}"),
            el("div", *figures, class_="panels"),
        ]
    )


def traces(m: Material) -> Html:
    """Trace and rank plots of the entries furthest from their limits, and of the worst noise level."""
    names = {name: i for i, name in enumerate(m.features)}
    at_q = {name: i for i, name in enumerate(m.responses)}
    panels = []
    for row in m.diagnosis.worst(TRACES - 1):
        p, q = names[str(row["feature"])], at_q[str(row["response"])]
        title = f"{short(m.features[p], 22)} → {short(m.responses[q], 16)}"
        known = m.posterior.draws.inclusion
        found = (m.posterior.draws.effects if known is None else known.effects).dense(np.array([p]))
        panels.append(_trace(found[:, :, 0, q], title, row))
    if m.diagnosis.noise is not None:
        row = m.diagnosis.noise.worst(1)[0]
        q = int(row["response"])
        panels.append(_trace(np.sqrt(m.posterior.draws.sigma2[:, :, q]), f"σ of {short(m.responses[q], 22)}", row))
    return join(
        [
            el(
                "p",
                "The coefficients furthest from their limits, worst first. Traces of chains that agree cover each other; bars of "
                "the rank plots stay near the dashed line.",
            ),
            el("div", *panels, class_="panels"),
        ]
    )


def _trace(draws: np.ndarray, title: str, row: dict[str, Any]) -> Html:
    numbers = f"R̂ {fixed(row['rhat'], 3)}, {number(min(row['ess_bulk'], row['ess_tail']), 3)} effective"
    return el(
        "figure",
        el("h3", el("bdi", title), " ", el("small", numbers)),
        charts.trace(draws, title),
        charts.rank_plot(draws, title),
        class_="panel trace",
    )
