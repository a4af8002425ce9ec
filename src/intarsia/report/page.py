"""The report: one HTML file with everything in it, that needs no network and no script."""

import base64
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import intarsia
from intarsia.errors import InputError, UnknownNameError
from intarsia.report import (
    adjusted,
    close_up,
    contributions,
    doubts,
    earlier,
    evidence,
    outcomes,
    participants,
    power,
    results,
    sections,
)
from intarsia.report.assets import LOGO, SCRIPT, STYLE
from intarsia.report.checks import check
from intarsia.report.gather import Beside, Material, from_folder, gather, rows_of
from intarsia.report.html import Html, about, el, join, text
from intarsia.wire.container import write as write_whole
from intarsia.wire.plain import plural


def write(posterior: Any, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write the report of a posterior, a study folder, or a fitted study, and return its path.

    `posterior` is an `intarsia.server.posterior.posterior.Posterior`, the path of a study folder or of a posterior.nc, or what
    `intarsia.fit` returned. Options: title, study, joined (the sketches, for the model checks), card, truth (P × Q, for
    simulations), regions (a CSV of code, network, x, y, z, for features that join regions), probability, top.
    """
    where = Path(path)
    command = options.pop("command", None)
    content = render(collect(posterior, **options), command=command)
    write_whole(where, content.encode())
    return where


def collect(source: Any, **options: Any) -> Material:
    """The material behind a report, from whatever holds a posterior."""
    from intarsia.server.posterior.posterior import Posterior

    if isinstance(source, str | os.PathLike):
        place = Path(source)
        if not place.exists():
            raise UnknownNameError(f"There is no posterior at {place}: nothing is there. Give a study folder, or a posterior.nc.")
        if place.is_dir() and place.suffix != ".zarr":
            return from_folder(place, **options)
        return gather(Posterior.load(place), Beside.out_of(options), **options)
    if hasattr(source, "posterior") and hasattr(source, "study"):
        options.setdefault("study", source.study)
        source = source.posterior
    if hasattr(source, "posterior_"):  # the scikit-learn estimator
        source = source.posterior_
    if not hasattr(source, "rank_summary"):
        raise InputError("A report needs a posterior, a fitted estimator or study, or the path of one.")
    return gather(source, Beside.out_of(options), **options)


def render(m: Material, *, command: str | None = None, made: str | None = None) -> str:
    """The page as text."""
    checks = None
    rows = rows_of(m.posterior, m.joined)
    if rows is not None:
        checks = check(m.posterior, rows, m.probability, np.random.default_rng(m.seed))
    parts: list[tuple[str, str, Html | None]] = [
        ("asked", "What was asked", sections.asked(m)),
        ("people", "Who is in it", participants.section(m)),
        ("converged", "Can the sampler be trusted?", evidence.convergence(m)),
        ("against", "What speaks against this fit", doubts.against(m)),
        ("selected", "Selected features" if m.diagnosis.converged else "Selected features (provisional)", results.selected(m)),
        ("power", "What this study could have found", power.section(m)),
        ("changes", "Beside the earlier fit", earlier.changes(m)),
        ("groups", "Who contributes to what", contributions.groups(m)),
        ("outcomes", "Outcomes that are not measurements", outcomes.outcomes(m)),
        ("covariates", "Covariates", adjusted.effects(m)),
        ("map", "All coefficients", close_up.coefficient_map(m)),
        ("forest", "Effects by response", results.forests(m)),
        ("brain", "Connections in the brain", results.connections(m)),
        ("checks", "Does the model fit?", evidence.checks(m, checks)),
        ("rank", "Rank and shrinkage", evidence.rank(m)),
        ("noise", "Noise levels", evidence.noise(m, checks)),
        ("traces", "Traces of the worst", evidence.traces(m)),
        ("privacy", "Privacy card", sections.privacy(m)),
        ("again", "To do it again", sections.reproduce(m, command)),
    ]
    bodies = [el("section", el("h2", title), body, id=key) for key, title, body in parts if body is not None]
    links = [el("li", el("a", title, href=f"#{key}")) for key, title, body in parts if body is not None]
    main = [_header(m), el("main", *bodies, id="main"), _footer(made)]
    theme = el("button", "Light / dark", type="button", id="theme", class_="js")
    side = el("nav", el("div", Html(LOGO), "intarsia", class_="logo"), el("ul", *links), theme, aria_label="Sections")
    return document(f"{m.title} – intarsia report", el("div", side, *main, class_="page"), SCRIPT)


def _header(m: Material) -> Html:
    tiles: list[tuple[Any, str]] = [(f"{m.n:,}", "subjects")] if m.n else []
    tiles += [(len(m.sites), "sites" if len(m.sites) > 1 else "site")] if m.study is not None else []
    tiles += [(f"{m.P:,}", "features" if m.P > 1 else "feature"), (m.Q, "responses" if m.Q > 1 else "response")]
    tiles += [(f"{m.m:,}", "sketch rows")] if m.m and not m.gram else []
    fine = m.diagnosis.converged
    tiles += [(f"{m.count:,}", "selected" if fine else "selected, provisional")]
    name, colour, _words = evidence.standing(m)
    state = el("span", name, class_="tag " + {"good": "yes", "close": "mid", "bad": "no"}[colour])
    findings = len(m.findings.findings)
    wrong = f", {about(m.findings.expected_fdr * findings)} expected to be wrong" if findings else ""
    sets = f" and {plural(len(m.findings.sets), 'set')} of interchangeable ones" if m.findings.sets else ""
    line = f"{m.count:,} of {m.P:,} features{sets} selected{wrong}."
    if not fine:
        line = f"Provisionally, {line}"
    return el(
        "header",
        el("p", "Bayesian regression across sites", class_="kicker"),
        el("h1", el("bdi", m.title)),
        el("p", state, " ", line),
        None if fine else el("p", evidence.verdict_words(m), class_=f"verdict {colour}"),
        el(
            "div",
            *(el("div", el("b", value), el("span", name), class_="tile") for value, name in tiles),
            class_="tiles",
        ),
        class_="top",
    )


def _footer(made: str | None) -> Html:
    made = made or time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return el("footer", f"Made {made} by intarsia {intarsia.__version__}. This page holds no data of any subject: only what the "
              "server has, the posterior and the sketches' summaries. It loads nothing from elsewhere.")  # fmt: skip


def document(title: str, body: Html, script: str, extra: Mapping[str, str] | None = None) -> str:
    """A whole page. The policy lets in our own script and nothing else, should an escape ever fail."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": f"'sha256-{digest}'",
    }
    policy |= {"base-uri": "'none'", "form-action": "'none'", **(extra or {})}
    head = join([
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content="; ".join(f"{k} {v}" for k, v in policy.items())),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        Html(f"<style>{STYLE}</style>"),
    ])  # fmt: skip
    skip = el("a", "Skip to the content", href="#main", class_="skip")
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{skip}{text(body)}<script>{script}</script></body></html>\n'
    )
