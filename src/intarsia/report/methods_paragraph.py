"""The paragraph on methods for a paper: what was done in this study, in sentences, with the works they rest on.

Every sentence comes from the study file, the posterior and its assessment, so that another study gets another text.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

import intarsia
from intarsia.privacy.precision import CHANCE, FDR
from intarsia.report.gather import Material
from intarsia.report.power import reach
from intarsia.report.session import PAPER
from intarsia.server.assess.convergence import ESS, RHAT, RHAT_FOLDED, whole
from intarsia.server.sampler.sparse.sample import EXPECTED
from intarsia.wire.kinds import in_words
from intarsia.wire.plain import plural

REFERENCES = {
    "Halverson et al.": PAPER,
    "Mitchell & Beauchamp, 1988": "Mitchell TJ, Beauchamp JJ. Bayesian variable selection in linear regression. J Am Stat Assoc "
    "1988; 83: 1023–1032.",
    "Zhou et al., 2013": "Zhou X, Carbonetto P, Stephens M. Polygenic modeling with Bayesian sparse linear mixed models. PLoS "
    "Genet 2013; 9: e1003264.",
    "Carvalho et al., 2010": "Carvalho CM, Polson NG, Scott JG. The horseshoe estimator for sparse signals. Biometrika 2010; "
    "97: 465–480.",
    "Park & Casella, 2008": "Park T, Casella G. The Bayesian lasso. J Am Stat Assoc 2008; 103: 681–686.",
    "Piironen & Vehtari, 2017": "Piironen J, Vehtari A. Sparsity information and regularization in the horseshoe and other "
    "shrinkage priors. Electron J Stat 2017; 11: 5018–5051.",
    "Huang & Wand, 2013": "Huang A, Wand MP. Simple marginally noninformative prior distributions for covariance matrices. "
    "Bayesian Anal 2013; 8: 439–452.",
    "Bhattacharya et al., 2019": "Bhattacharya A, Pati D, Yang Y. Bayesian fractional posteriors. Ann Stat 2019; 47: 39–66.",
    "Vehtari et al., 2021": "Vehtari A, Gelman A, Simpson D, Carpenter B, Bürkner PC. Rank-normalization, folding, and "
    "localization: an improved R̂ for assessing convergence of MCMC. Bayesian Anal 2021; 16: 667–718.",
    "Müller et al., 2007": "Müller P, Parmigiani G, Rice K. FDR and Bayesian multiple comparisons rules. In: Bayesian "
    "Statistics 8. Oxford University Press 2007; 349–370.",
    "Vehtari et al., 2017": "Vehtari A, Gelman A, Gabry J. Practical Bayesian model evaluation using leave-one-out "
    "cross-validation and WAIC. Stat Comput 2017; 27: 1413–1432.",
    "Canonne et al., 2020": "Canonne CL, Kamath G, Steinke T. The discrete Gaussian for differential privacy. Adv Neural Inf "
    "Process Syst 2020; 33: 15676–15688.",
}


@dataclass
class _Text:
    """Sentences, and the works they cite in the order of their first mention."""

    sentences: list[str] = field(default_factory=list)
    cited: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        self.sentences += [sentence] if sentence else []

    def cite(self, *keys: str) -> str:
        """ "(A; B)", and remember them."""
        self.cited += [key for key in keys if key not in self.cited]
        return f"({'; '.join(keys)})"


def methods(m: Material) -> str:
    """Three paragraphs (data, model, computation) and the references, as Markdown."""
    parts: list[str] = []
    cited: list[str] = []
    steps: Iterable[Callable[[Material, _Text], None]] = (_data, _model, _computation)
    for step in steps:
        text = _Text(cited=cited)
        step(m, text)
        parts.append(" ".join(text.sentences))
    references = "\n".join(f"- {REFERENCES[key]}" for key in cited)
    return "## Methods\n\n" + "\n\n".join(parts) + f"\n\n### References\n\n{references}\n"


def _data(m: Material, t: _Text) -> None:
    s = m.study
    if s is None:
        people = f"{m.n:,} subjects" if m.n else "subjects in one place"
        t.add(f"We regressed {plural(m.Q, 'response')} on {plural(m.P, 'feature')}, in {people}.")
        return
    t.add(
        f"We regressed {plural(m.Q, 'response')} on {plural(m.P, 'feature')} of {m.n:,} subjects. The variables were held by "
        f"{plural(len(m.sites), 'institution')}, which did not show them to each other or to the server that did the computing: "
        + "; ".join(filter(None, (_holds(m, site) for site in m.sites)))
        + "."
    )
    if s.alignment.mode == "strict":
        t.add("All institutions held the same subjects, which was checked by a keyed digest of their identifiers.")
    elif s.alignment.mode == "union":
        t.add(
            "The analysis rests on the subjects that all institutions with features held, found by keyed tokens of their "
            "identifiers; subjects who lacked responses were kept and grouped by those they had."
        )
    else:
        t.add("The analysis rests on the subjects common to all institutions, found by keyed tokens of their identifiers.")
    if m.left:
        t.add(
            f"{_list(list(m.left))} had taken part and left after sending; what was sent was deleted, and the analysis made "
            "again without these variables."
        )
    if s.replaces is not None:
        t.add(f"This analysis replaces an earlier one of the same study{_BECAUSE.get(s.reason or '', '')}.")
    prepared = [f"{name} ({in_words(said)})" for name, said in s.kinds.items() if said["kind"] != "continuous"]
    if prepared:
        t.add(
            "Responses that are no plain measurements were prepared by their owner, and the linear model was fitted to what "
            f"they became: {'; '.join(prepared)}."
        )
    scored = [site.name for site in s.sites if site.transform == "rank-normal"]
    if scored:
        t.add(f"Continuous features of {_list(scored)} were replaced by their normal scores.")
    if s.privacy.epsilon is None:
        t.add("Each institution centred its columns and scaled them to unit standard deviation.")
    else:
        t.add("Each institution centred and scaled its columns by constants fixed in advance and bounded each subject's row.")
    t.add(_sketch(m, t))
    t.add(_filled(m))


_BECAUSE = {
    "join": ", because a further institution joined", "leave": ", because an institution left",
    "withdrawal": ", because subjects had withdrawn", "correction": ", because values had been corrected",
}  # fmt: skip


def _holds(m: Material, site: str) -> str:
    adjusted = m.covariate_sites.count(site)
    counts = (
        (m.feature_sites.count(site), "feature"),
        (m.response_sites.count(site), "response"),
        (adjusted, "covariate"),
    )
    has = [plural(count, name) for count, name in counts if count]
    return f"{site} ({', '.join(has)})" if has else ""


def _sketch(m: Material, t: _Text) -> str:
    s = m.study
    if m.gram:
        return (
            f"The server received the exact correlations of all columns over the {m.n:,} subjects and nothing else: the "
            "institutions computed them together from shares of their columns, none of which tells anything alone."
        )
    rows, kind = s.sketch.m, s.sketch.kind
    law = (
        "with orthonormal rows orthogonal to the constant vector"
        if kind == "orthonormal"
        else "with independent normal entries of variance 1/n"
    )
    key = (
        "that the institutions agreed on by a signed key exchange"
        if s.agrees
        else "that the institutions had exchanged among themselves"
    )
    parts = s.alignment.mode == "union"
    matrix = f"a secret matrix {law} for each group of subjects" if parts else f"one secret {rows:,} × {m.n:,} matrix {law}"
    words = (
        f"It then sent {rows:,} random linear combinations of the {m.n:,} subjects (m/n = {rows / m.n:.3f}): its columns "
        f"multiplied by {matrix}, generated from a key {key} and the server did not have {t.cite('Halverson et al.')}."
    )
    if s.privacy.epsilon is not None:
        words += (
            f" Noise of a discrete Gaussian law {t.cite('Canonne et al., 2020')} was added before sending, which gives "
            f"differential privacy against the server with ε = {s.privacy.epsilon:g} and δ = {s.privacy.delta:g}."
        )
    return words


def _filled(m: Material) -> str:
    cards = [] if m.card is None else list(m.card.get("sites", ()))
    if not cards:
        return "[How missing values were handled is on each institution's own privacy card; say it here.]"
    counts = {name: count for card in cards for name, count in (card.get("imputed") or {}).items()}
    told = {str(card["site"]).removeprefix("site ") for card in cards}
    others = [site for site in m.sites if site not in told]
    more = f" [How {_list(others)} handled missing values is on the privacy card there; say it here.]" if others else ""
    where = f"At {_list(sorted(told))} there" if others else "There"
    if not counts:
        return f"{where} were no missing values.{more}"
    filled = f"{plural(sum(counts.values()), 'missing value')} in {plural(len(counts), 'column')} were filled in"
    return f"{filled} at {_list(sorted(told)) if others else 'the institutions'}.{more}"


_LAWS = {
    "horseshoe": ("horseshoe priors", ("Carvalho et al., 2010",), "half-Cauchy C⁺(0, 1)"),
    "laplace": ("Laplace (Bayesian lasso) priors", ("Park & Casella, 2008",), "gamma distributed in the square"),
    "student": ("Student t priors with 4 degrees of freedom", (), "inverse gamma distributed in the square"),
}


def _model(m: Material, t: _Text) -> None:
    f = m.study.fit if m.study is not None else None
    model = m.attrs.get("model") if f is None else None
    chosen = model if isinstance(model, dict) else {}

    def choice(name: str, default: object) -> object:
        return getattr(f, name) if f is not None else chosen.get(name, default)

    rank = choice("rank", None) or m.Q
    covariates = m.posterior.covariates
    if m.posterior.draws.sparse:
        _sparse(m, t, choice("rank", None), choice("expected_features", None))
        return _rest(m, t, choice)
    equation = "Y = X B Aᵀ + Z Γ + E" if covariates else "Y = X B Aᵀ + E"
    t.add(
        f"The model is the reduced-rank regression {equation} with {plural(int(str(rank)), 'component')}, fitted to the "
        f"{'correlations' if m.gram else 'combinations' if m.study is not None else 'rows'} {t.cite('Halverson et al.')}."
    )
    priors, works, scales = _LAWS[str(choice("law", "horseshoe"))]
    where = "each feature" if choice("local", "row") == "row" else "each entry of B"
    cited = f" {t.cite(*works)}" if works else ""
    t.add(
        f"The rows of B have {priors}{cited}: normal with a global scale for each component and a local scale for {where}, "
        f"the local scales {scales}; the entries of A are standard normal."
    )
    asked = choice("expected_features", None)
    expected = m.attrs.get("expected_features", asked)
    if expected is None:
        t.add("The global scales are half-Cauchy C⁺(0, 1).")
    else:
        cited = t.cite("Piironen & Vehtari, 2017")
        number = f"{float(str(expected)):.3g}"
        why = "" if asked is not None else ", about as many as so many rows can tell from the others"
        t.add(f"The global scales are half-Cauchy, scaled so that {number} features are expected to matter{why} {cited}.")
    _rest(m, t, choice)


def _sparse(m: Material, t: _Text, rank: object, expected: object) -> None:
    """The default prior: a feature is in or out, on a dense background where one was fitted."""
    background = bool(m.attrs.get("background", False))
    of = "correlations" if m.gram else "combinations" if m.study is not None else "rows"
    B = "(B + D)" if background else "B"
    adjusted = " + Z Γ" if m.posterior.covariates else ""
    began = (
        f", as proposed by {t.cite('Halverson et al.')[1:-1]} with another prior" if m.study is not None and not m.gram else ""
    )
    t.add(f"The model is the multivariate regression Y = X {B}{adjusted} + E, fitted to the {of}{began}.")
    given = f"{float(str(expected)):.3g}" if expected is not None else f"{EXPECTED:.3g}"
    t.add(
        f"Its prior is a spike and slab {t.cite('Mitchell & Beauchamp, 1988')}: a row of B is exactly zero unless the feature is "
        f"in; the probability of that has a beta prior under which {given} features are expected. A feature that is in acts on "
        "each response with a probability of that response's own, on one at least."
    )
    shared = "" if rank is None else f" of rank {int(str(rank))} and a multiple of the identity"
    t.add(
        f"Where it acts, its effects are normal with mean zero and a common covariance{shared} that is learned." if m.Q > 1 else
        "Its effect is then normal with mean zero and a variance that is learned."
    )  # fmt: skip
    if background:
        t.add(
            "D is a dense background of many effects too small to be named, normal with a variance proportional to the noise's; "
            f"half of the prior mass is at no background {t.cite('Zhou et al., 2013')}. It was integrated out."
        )


def _rest(m: Material, t: _Text, choice: Callable[[str, object], object]) -> None:
    """Noise, covariates, groups and power: the same under every prior."""
    covariates = m.posterior.covariates
    noise = str(choice("noise", "correlated"))
    t.add(_noise_of_sparse(noise, m.Q) if m.posterior.draws.sparse else _noise(noise, m.Q, t))
    if covariates:
        t.add(
            f"{plural(len(covariates), 'covariate')} ({_list(covariates)}) were adjusted for: flat priors on Γ, no shrinkage and "
            "no selection."
        )
    if m.study is not None and m.study.alignment.mode == "union":
        t.add("The combinations of responses that a group of subjects lacked were drawn in every sweep, given all else.")
    power = float(str(choice("power", 1.0)))
    if power < 1:
        t.add(f"The likelihood was raised to the power {power:g} {t.cite('Bhattacharya et al., 2019')}.")


def _noise_of_sparse(noise: str, Q: int) -> str:
    if noise == "correlated" and Q > 1:
        return (
            "The noise E is normal with a full covariance Σ between the responses, under a weak inverse Wishart prior (two "
            "degrees of freedom beyond their number)."
        )
    between = " and independent between responses" if Q > 1 else ""
    return (
        f"The noise is normal{between}, with a weak inverse gamma prior on its variance{' for each response' if Q > 1 else ''}."
    )


def _noise(noise: str, Q: int, t: _Text) -> str:
    if noise == "correlated" and Q > 1:
        return (
            "The noise E is normal with a full covariance Σ between the responses, under a prior that makes every correlation "
            f"uniform {t.cite('Huang & Wand, 2013')}."
        )
    if noise == "jeffreys":
        return "The noise is normal and independent between responses, with the prior p(σ²) ∝ 1/σ² on each variance."
    each = " for each response" if Q > 1 else ""
    between = " and independent between responses" if Q > 1 else ""
    return f"The noise is normal{between}, with a half-Cauchy prior on its standard deviation{each}."


def _computation(m: Material, t: _Text) -> None:
    chains, draws = m.posterior.draws.chains, m.posterior.draws.draws
    warmup, thin, seed = (m.attrs.get(name) for name in ("warmup", "thin", "seed"))
    length = f"{plural(chains, 'chain')}"
    if warmup is not None and thin is not None:
        kept = "keeping every draw" if int(thin) == 1 else f"keeping one in {int(thin)}"
        length += f" of {int(warmup):,} warm-up and {draws * int(thin):,} further sweeps each, {kept}"
    moves = "Gibbs steps with slice and Metropolis moves"
    if m.posterior.draws.sparse:
        moves = "a Gibbs sampler that visits every feature's inclusion in turn"
    t.add(
        f"The posterior was drawn by Markov chain Monte Carlo ({moves}): {length}, "
        f"{chains * draws:,} draws in all" + ("." if seed is None else f" (seed {seed}).")
    )
    t.add(_convergence(m, t))
    t.add(
        f"We report posterior means and equal-tailed {m.probability:.0%} credible intervals"
        + (", in standard deviations of feature and response unless a unit is given." if m.study is not None else ".")
    )
    t.add(_selection(m, t))
    t.add(_could_find(m))
    t.add(_unseen(m, t))
    t.add(_again(m))
    versions = m.attrs.get("versions")
    used = versions if isinstance(versions, dict) else {"intarsia": intarsia.__version__}
    t.add(f"Computations were done with {_list([f'{name} {version}' for name, version in used.items()])}.")


def _could_find(m: Material) -> str:
    """What would have been found, so that what was not is read for what it is."""
    found = reach(m)
    if found is None or not found.smallest < 1:
        return ""
    return (
        f"By its size ({found.m:,} rows, {found.features:,} features) the analysis had a power of {CHANCE:.0%} to select an "
        f"effect of {found.smallest:.2f} standard deviations of the response per standard deviation of the feature, at a false "
        f"discovery rate of {FDR:.0%}; smaller effects may have been missed."
    )


def _unseen(m: Material, t: _Text) -> str:
    """Where the out-of-sample figures come from."""
    if m.loo is None:
        return ""
    if m.assessment.weighed is None:
        return (
            "Out-of-sample shares of variance explained come from leave-one-out over the rows with Pareto-smoothed importance "
            f"sampling {t.cite('Vehtari et al., 2017')}."
        )
    sparse, independent = m.assessment.weighed.weight, m.assessment.weighed.weight_independent
    others = f", the same model with independent noise ({independent:.2f}) and" if independent else " with"
    return (
        "Out-of-sample shares of variance explained come from fits that left out a fifth of the rows in turn. Predictions weigh "
        f"the sparse fit ({sparse:.2f}){others} a ridge ({1 - sparse - independent:.2f}), by the error on the rows left out."
    )


def _again(m: Material) -> str:
    """What `intarsia check` found by fitting parts of the rows again."""
    said = []
    folds = m.refits.get("k_fold")
    if folds:
        said.append(
            f"The shares were computed a second time by {folds['folds']}-fold cross-validation of the whole fit over the rows."
        )
    found = m.refits.get("replication")
    if found:
        both = sum(bool(row["replicates"]) for row in found)
        said.append(
            f"The rows were split at random into halves, each fitted alone: {both} of {plural(len(found), 'finding')} had the "
            "same sign with a probability of at least 0.9 in both."
        )
    return " ".join(said)


def _convergence(m: Material, t: _Text) -> str:
    d = m.diagnosis
    every = [d] if d.noise is None else [d, d.noise]
    with np.errstate(invalid="ignore"):
        worst = max(float(np.nanmax(one.rhat)) for one in every)
        least = min(float(np.nanmin(np.minimum(one.ess_bulk, one.ess_tail))) for one in every)
    what = "coefficient and noise variance" if d.noise is not None else "coefficient"
    found = (
        f"the largest rank-normalised split R̂ over every {what} was {worst:.3f} and the smallest effective sample size "
        f"{whole(least):,} {t.cite('Vehtari et al., 2021')}"
    )
    if d.converged:
        return f"The chains converged: {found}."
    limits = f"R̂ ≤ {RHAT}, folded R̂ ≤ {RHAT_FOLDED}, {ESS:.0f} effective samples"
    return f"**The chains had not converged (limits: {limits}), so that all results are provisional**: {found}."


def _selection(m: Material, t: _Text) -> str:
    chosen = m.findings
    if chosen.method == "mixture":
        return (
            "Features were selected by a two-component normal mixture on the absolute posterior means, at a probability of "
            f"{1 - chosen.fdr:g} or more of the larger component {t.cite('Halverson et al.')}."
        )
    words = (
        f"Features were selected at a Bayesian false discovery rate of {chosen.fdr:.3g} {t.cite('Müller et al., 2007')}, by "
        + (
            "their posterior inclusion probabilities"
            if chosen.counted
            else "local false discovery rates that come from the share of the posterior beyond zero, seen from its mean"
        )
    )
    if chosen.sets:
        words += "; correlated features that pass together but not singly are reported as sets, one member of which matters"
    found = f"{plural(m.count, 'feature')}" + (f" and {plural(len(chosen.sets), 'set')}" if chosen.sets else "")
    if not m.count and not chosen.sets:
        return f"{words}. This selected no feature."
    share = "less than 0.001" if chosen.expected_fdr < 0.001 else f"{chosen.expected_fdr:.3f}"
    return f"{words}. This selected {found}; the share of them that is expected to be wrong is {share}."


def _list(names: Iterable[str]) -> str:
    *first, last = [str(name) for name in names]
    return f"{', '.join(first)} and {last}" if first else last
