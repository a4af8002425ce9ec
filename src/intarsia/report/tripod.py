"""The items of TRIPOD+AI (Collins et al., BMJ 2024; 385: e078378), answered where the study's own files know the answer.

For each item its number, its subject in a few words of our own, and what to write or where it stands; "authors" where only they
know. The published checklist says what each item asks in full.
"""

from collections.abc import Callable

import numpy as np

import intarsia
from intarsia.report.gather import Material
from intarsia.report.methods_paragraph import methods
from intarsia.wire.kinds import in_words
from intarsia.wire.plain import plural, some

AUTHORS = "*authors*"
METHODS = "the paragraph on methods"
Answer = Callable[[Material], str] | str


def checklist(m: Material) -> str:
    """Both tables and the paragraph on methods that they point to, as Markdown."""
    rows = [(number, subject, _answer(m, answer)) for number, subject, answer in ITEMS]
    known = sum(not answer.startswith(AUTHORS) for _, _, answer in rows)
    lines = [
        f"# TRIPOD+AI for {m.title}",
        "",
        f"{known} of {len(rows)} items are answered from the study's files (intarsia {intarsia.__version__}); the others "
        "are for the "
        "authors. Items in full: www.tripod-statement.org. The checklist is for prediction models: where the study is of "
        "associations alone, items on use and on new subjects do not apply.",
        "",
        "| item | subject | answer |",
        "|---|---|---|",
        *(f"| {number} | {subject} | {_cell(answer)} |" for number, subject, answer in rows),
        "",
    ]
    return "\n".join(lines) + "\n" + methods(m)


def _answer(m: Material, answer: Answer) -> str:
    said = answer if isinstance(answer, str) else answer(m)
    return said or AUTHORS


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _title(m: Material) -> str:
    return f"study “{m.title}”; outcomes: {some(m.responses)}. {AUTHORS}: the population"


def _sources(m: Material) -> str:
    if m.study is None:
        return f"{AUTHORS}; data in one place"
    sites = f"{plural(len(m.sites), 'institution')} ({some(m.sites)})"
    return f"columns of {sites}, of the same people, not pooled. {AUTHORS}: registry, cohort, trial"


def _preparation(m: Material) -> str:
    if m.study is None:
        return f"{METHODS}"
    kinds = [f"{name}: {in_words(said)}" for name, said in m.study.kinds.items()]
    ranks = [site.name for site in m.study.sites if site.transform == "rank-normal"]
    said = ["columns centred and scaled at their institution"]
    said += [f"normal scores of the features at {some(ranks)}"] if ranks else []
    said += [f"outcomes prepared by their owner ({'; '.join(kinds)})"] if kinds else []
    return "; ".join(said)


def _outcomes(m: Material) -> str:
    kinds = {} if m.study is None else m.study.kinds
    told = [f"{name} ({in_words(kinds[name]) if name in kinds else 'a measurement'})" for name in m.responses]
    return f"{some(told)}. {AUTHORS}: definition, time point, who assessed it"


def _predictors(m: Material) -> str:
    by_site = {site: m.feature_sites.count(site) for site in dict.fromkeys(m.feature_sites)}
    held = "; ".join(f"{site}: {plural(count, 'feature')}" for site, count in by_site.items())
    return f"{plural(m.P, 'candidate feature')} ({held or 'one table'}); all entered, none selected beforehand by the program"


def _size(m: Material) -> str:
    if m.n is None:
        return AUTHORS
    if m.m and not m.gram:
        return f"{m.n:,} people, whose sketch has {m.m:,} rows (m/n = {m.m / m.n:.3f}): the information of about {m.m:,} people"
    return f"{m.n:,} people"


def _missing(m: Material) -> str:
    sites = [] if m.card is None else list(m.card.get("sites", ()))
    if not sites:
        return f"{AUTHORS}: stands on each institution's privacy card (`--cards`)"
    counts = sum(sum((site.get("imputed") or {}).values()) for site in sites)
    filled = f"{plural(counts, 'missing value')} filled at the institutions whose cards were given"
    return f"{filled}; an outcome only by a rule under its own name"


def _partition(m: Material) -> str:
    folds = m.refits.get("k_fold")
    said = ["all rows are used to fit"]
    said += [f"{folds['folds']}-fold cross-validation of the whole fit"] if folds else []
    said += ["rows left out in turn for the out-of-sample figures"] if m.loo is not None else []
    return "; ".join(said)


def _model(m: Material) -> str:
    prior = "a prior under which each feature is in or out" if m.posterior.draws.sparse else "shrinkage priors"
    return (
        f"Bayesian linear regression of all outcomes together, {prior}; inclusion, shrinkage and noise are learned in one fit; "
        f"{METHODS} has priors, computation and convergence"
    )


def _performance_measures(m: Material) -> str:
    return (
        "out-of-sample share of variance explained with its standard error; coverage of predictive intervals; predictive checks"
    )


def _participants(m: Material) -> str:
    if m.n is None:
        return AUTHORS
    listed = "; ".join(f"{site} listed {count:,}" for site, count in m.listed.items())
    return f"{m.n:,} people in the analysis" + (f" ({listed})" if listed else "")


def _development(m: Material) -> str:
    return f"{m.n:,} people for every outcome" if m.n and not m.groups else AUTHORS


def _specification(m: Material) -> str:
    return (
        "all coefficients: `intarsia report STUDY --table FILE`; each institution has those of its own columns in its own units; "
        f"{plural(m.count, 'feature')} selected"
    )


def _performance(m: Material) -> str:
    if m.loo is None:
        return f"{AUTHORS}: the study has no rows to leave out; evaluate on new people"
    r2, se = np.asarray(m.loo.r2), np.asarray(m.loo.r2_se)
    told = [f"{name} {value:.2f} (SE {error:.2f})" for name, value, error in zip(m.responses, r2, se)]
    weak = f"; {plural(m.loo.unreliable, 'row')} with k̂ above 0.7" if m.loo.unreliable else ""
    return f"out-of-sample R² of the combined rows: {some(told)}{weak}"


def _updating(m: Material) -> str:
    if m.study is not None and m.study.replaces:
        return f"this run replaces an earlier one (reason: {m.study.reason or 'not said'})"
    return "none"


def _limitations(m: Material) -> str:
    said = ["linear effects", "sparse effects are assumed"]
    if m.m and m.n and not m.gram:
        said.append(f"intervals about {np.sqrt(m.n / m.m):.1f} times as wide as on pooled data")
    if not m.diagnosis.converged:
        said.append("THE CHAINS HAD NOT CONVERGED: all results are provisional")
    return "; ".join(said) + f". {AUTHORS}: representativeness, measurement, generalisability"


def _seed(m: Material) -> str:
    seed = m.attrs.get("seed")
    return f"intarsia {intarsia.__version__}, Apache-2.0" + (
        "" if seed is None else f"; seed {seed}; the same files give the same draws"
    )


ITEMS: tuple[tuple[str, str, Answer], ...] = (
    ("1", "title", _title),
    ("2", "abstract", AUTHORS),
    ("3a", "background: the problem and earlier models", AUTHORS),
    ("3b", "target population, purpose, users", AUTHORS),
    ("3c", "known health inequalities", AUTHORS),
    ("4", "objectives", AUTHORS),
    ("5a", "sources of data", _sources),
    ("5b", "dates of collection and follow-up", AUTHORS),
    ("6a", "setting", AUTHORS),
    ("6b", "eligibility", AUTHORS),
    ("6c", "treatments", AUTHORS),
    ("7", "preparation of data", _preparation),
    ("8a", "outcome and when it was assessed", _outcomes),
    ("8b", "who assessed it", AUTHORS),
    ("8c", "blinding of assessment", AUTHORS),
    ("9a", "choice of predictors", _predictors),
    ("9b", "definition of predictors", AUTHORS),
    ("9c", "who measured them", AUTHORS),
    ("10", "sample size", _size),
    ("11", "missing data", _missing),
    ("12a", "use of data: fit and evaluation", _partition),
    ("12b", "form of predictors", "linear, in standard deviations; covariates adjusted for without shrinkage"),
    ("12c", "type of model, building, tuning", _model),
    (
        "12d",
        "differences between clusters",
        f"{AUTHORS}: institutions hold other columns, not other people; name centres as covariates",
    ),
    ("12e", "measures of performance", _performance_measures),
    ("12f", "updating", _updating),
    (
        "12g",
        "how predictions are computed",
        "each institution adds up its own columns' part; the owner of the outcome gets the sum",
    ),
    ("13", "imbalance of classes", "nothing was resampled or reweighted"),
    ("14", "fairness", AUTHORS),
    ("15", "output of the model", "a posterior mean and interval for each outcome, with noise"),
    ("16", "differences between development and evaluation", AUTHORS),
    ("17", "ethics approval", AUTHORS),
    ("18a", "funding", AUTHORS),
    ("18b", "conflicts of interest", AUTHORS),
    ("18c", "protocol", f"{AUTHORS}; the study file, whose hash all institutions agreed on before anything left"),
    ("18d", "registration", AUTHORS),
    ("18e", "data sharing", "rows stay at the institutions; sketches and draws are with the server"),
    ("18f", "code sharing", _seed),
    ("19", "patient and public involvement", AUTHORS),
    ("20a", "flow of participants", _participants),
    (
        "20b",
        "their characteristics",
        f"{AUTHORS}: the server has no means and no counts of levels; each institution describes its own",
    ),
    ("20c", "comparison with evaluation data", AUTHORS),
    ("21", "numbers in each analysis", _development),
    ("22", "the full model", _specification),
    ("23a", "performance with its uncertainty", _performance),
    ("23b", "differences in performance", AUTHORS),
    ("24", "results of updating", _updating),
    ("25", "interpretation, fairness", AUTHORS),
    ("26", "limitations", _limitations),
    ("27a", "poor or missing input at use", "a new person's missing value is handled by the rule the site's own table has"),
    ("27b", "users' part and skill", AUTHORS),
    ("27c", "next steps", AUTHORS),
)
