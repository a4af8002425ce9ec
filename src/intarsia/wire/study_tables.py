"""Each table of a study file, read and checked: parsed text in, a value of `study_parts` out, complaints to the checker."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from intarsia.errors import InputError
from intarsia.wire.defaults import GRAM_ROWS
from intarsia.wire.kinds import check_kind
from intarsia.wire.schema import ABOVE_ONE, POSITIVE, PROBABILITY, Checker, Range
from intarsia.wire.study_parts import (
    GRAM,
    LOCALS,
    NOISES,
    PRECISIONS,
    PRIORS,
    SCREENED,
    SKETCH_KINDS,
    Alignment,
    Delivery,
    Fit,
    Predict,
    Privacy,
    SiteEntry,
    SketchPlan,
)

TRANSFORMS = ("rank-normal",)
OF_THE_MODEL = ("prior", "background")
_GRAM_ONLY = ("rows", "holders", "folds")
_SCREENED_ONLY = ("keep", "again")
MOST_AGAIN = 5  # looks after the first
CANONICAL_RULES = ("strip", "collapse", "nfc", "lower", "upper", "no-leading-zeros", "integer")


def read_run(content: dict[str, Any], check: Checker) -> str:
    run = check.text(content, (), "run").lower()
    if run and (len(run) < 16 or len(run) > 64 or any(c not in "0123456789abcdef" for c in run)):
        check.fail(("run",), "run must be 16 to 64 hexadecimal digits; `intarsia study new` makes one")
    return run


def read_replaces(content: dict[str, Any], check: Checker) -> str | None:
    found = check.text(content, (), "replaces", default="").lower()
    if found and (len(found) != 64 or any(c not in "0123456789abcdef" for c in found)):
        check.fail(
            ("replaces",), "replaces is the hash of another run: 64 hexadecimal digits, as `intarsia study check` shows it"
        )
    return found or None


def read_sketch(content: dict[str, Any], check: Checker) -> SketchPlan:
    table, at = check.table(content, "sketch", required=True), ("sketch",)
    check.known(table, at, ("m", "kind", "precision", *_GRAM_ONLY, *_SCREENED_ONLY))
    kind = table.get("kind")
    for key in _SCREENED_ONLY:
        if key in table and kind != SCREENED:
            check.fail((*at, key), f'{key} is for kind = "screened"')
    if kind in (GRAM, SCREENED):
        screens = kind == SCREENED and table.get("m", 0) != 0  # by a sketch of m rows
        for key, only in (("m", 0), ("precision", "float64")):
            if table.get(key, only) != only and not screens:
                more = ", or give m, and a sketch screens" if (kind, key) == (SCREENED, "precision") else ""
                check.fail((*at, key), f'kind = "{kind}" sends no sketch: leave {key} out{more}')
        if screens and table.get("again", 0) != 0:
            check.fail(
                (*at, "again"), "a look again is exact sums of all features; with m a sketch screens: leave one of the two out"
            )
        return SketchPlan(
            check.integer(table, at, "m", low=2, high=10**7) if screens else 0, str(kind),
            precision=check.choice(table, at, "precision", PRECISIONS, "float64"),
            rows=check.integer(table, at, "rows", default=GRAM_ROWS, low=64, high=2**20),
            holders=check.strings(table, at, "holders", default=()) or None,
            folds=check.integer(table, at, "folds", low=2, high=20) if "folds" in table else None,
            keep=check.integer(table, at, "keep", low=1, high=10**6) if "keep" in table else None,
            again=check.integer(table, at, "again", default=0, low=0, high=MOST_AGAIN) or None,
        )  # fmt: skip
    for key in _GRAM_ONLY:
        if key in table:
            more = "; the number of sketch rows is m" if key == "rows" else ""
            check.fail((*at, key), f'{key} is for kind = "gram"{more}')
    return SketchPlan(
        m=check.integer(table, at, "m", low=2, high=10**7),
        kind=check.choice(table, at, "kind", (*SKETCH_KINDS, GRAM, SCREENED), "orthonormal"),
        precision=check.choice(table, at, "precision", PRECISIONS, "float64"),
    )


def read_alignment(content: dict[str, Any], check: Checker) -> Alignment:
    table, at = check.table(content, "alignment"), ("alignment",)
    check.known(table, at, ("mode", "canonical", "max_subjects", "min_group"))
    rules = check.strings(table, at, "canonical", default=Alignment().canonical)
    for rule in rules:
        if rule not in CANONICAL_RULES:
            check.fail((*at, "canonical"), f"unknown rule {rule!r}; the rules are {', '.join(CANONICAL_RULES)}")
    if "lower" in rules and "upper" in rules:
        check.fail((*at, "canonical"), "'lower' and 'upper' exclude each other")
    most = check.integer(table, at, "max_subjects", low=1, high=2**40) if "max_subjects" in table else None
    mode = check.choice(table, at, "mode", ("strict", "intersect", "union"), "strict")
    least = None
    if "min_group" in table:
        least = check.integer(table, at, "min_group", low=20, high=10**9)
        if mode != "union":
            check.fail((*at, "min_group"), 'min_group belongs to mode = "union"')
    return Alignment(mode, rules, most, least)


def read_fit(content: dict[str, Any], check: Checker, prior: str | None = None) -> Fit:
    """[model] and [fit]; `prior` is that of a study from before there was a choice."""
    table, at, d = check.table(content, "fit"), ("fit",), Fit()
    check.known(table, at, tuple(f.name for f in fields(Fit) if f.name not in OF_THE_MODEL))
    model, of = check.table(content, "model"), ("model",)
    check.known(model, of, OF_THE_MODEL)
    if prior is not None and model:
        check.fail(of, "schema 1 has no [model], and the horseshoe for a prior; write schema = 2 for another")
    prior = prior or check.choice(model, of, "prior", PRIORS, d.prior)
    for key in ("local", "law") if prior == "sparse" else ():
        if key in table:
            check.fail((*at, key), f'{key} is of the horseshoe: put prior = "horseshoe" into [model], or leave it out')
    if prior == "sparse" and table.get("noise") == "jeffreys":
        check.fail((*at, "noise"), 'noise = "jeffreys" is of the horseshoe: put prior = "horseshoe" into [model]')
    return Fit(
        prior=prior,
        background=check.boolean(model, of, "background", default=d.background),
        rank=check.integer(table, at, "rank", low=1) if "rank" in table else None,
        local=check.choice(table, at, "local", LOCALS, d.local),
        law=check.text(table, at, "law", default=d.law),
        noise=check.choice(table, at, "noise", NOISES, d.noise),
        power=check.number(table, at, "power", default=d.power, within=POSITIVE),
        expected_features=check.number(table, at, "expected_features", within=POSITIVE) if "expected_features" in table else None,
        draws=check.integer(table, at, "draws", low=1, high=10**7) if "draws" in table else None,
        warmup=check.integer(table, at, "warmup", low=0, high=10**7) if "warmup" in table else None,
        chains=check.integer(table, at, "chains", default=d.chains, low=1, high=1024),
        thin=check.integer(table, at, "thin", low=1, high=10**5) if "thin" in table else None,
        until=check.choice(table, at, "until", ("converged", "draws"), d.until),
        rhat=check.number(table, at, "rhat", default=d.rhat, within=ABOVE_ONE),
        rhat_folded=check.number(table, at, "rhat_folded", default=d.rhat_folded, within=ABOVE_ONE),
        ess=check.number(table, at, "ess", default=d.ess, within=POSITIVE),
        seed=check.integer(table, at, "seed", default=d.seed, low=0, high=2**63 - 1),
        select=check.choice(table, at, "select", ("bfdr", "mixture"), d.select),
        fdr=check.number(table, at, "fdr", default=d.fdr, within=Range(0.0, 1.0, open_low=True)),
    )


def read_deliver(content: dict[str, Any], check: Checker) -> Delivery:
    table, at = check.table(content, "deliver"), ("deliver",)
    check.known(table, at, tuple(f.name for f in fields(Delivery)))
    return Delivery(
        check.choice(table, at, "content", ("draws", "summary"), "draws"),
        check.number(table, at, "interval", default=0.95, within=PROBABILITY),
        check.integer(table, at, "draws", default=1000, low=2, high=10**6),
        check.boolean(table, at, "share_scales", default=False),
    )


def read_predict(content: dict[str, Any], check: Checker) -> Predict:
    """The defaults are the floor: a study may be stricter, never looser."""
    table, at, d = check.table(content, "predict"), ("predict",), Predict()
    check.known(table, at, tuple(f.name for f in fields(Predict)))
    return Predict(
        check.integer(table, at, "min_subjects", default=d.min_subjects, low=d.min_subjects, high=10**9),
        check.number(table, at, "max_column_share", d.max_column_share, Range(0.0, d.max_column_share, open_low=True)),
    )


def read_privacy(content: dict[str, Any], check: Checker, sites: tuple[SiteEntry, ...], sketch: SketchPlan) -> Privacy:
    table, at, d = check.table(content, "privacy"), ("privacy",), Privacy()
    check.known(table, at, tuple(f.name for f in fields(Privacy)))
    epsilon = check.number(table, at, "epsilon", within=POSITIVE) if "epsilon" in table else None
    delta = check.number(table, at, "delta", within=PROBABILITY) if "delta" in table else None
    policy = Privacy(
        warn_ratio=check.number(table, at, "warn_ratio", default=d.warn_ratio, within=Range(0.0)),
        max_ratio=check.number(table, at, "max_ratio", default=d.max_ratio, within=POSITIVE),
        max_auc=check.number(table, at, "max_auc", default=d.max_auc, within=Range(0.5, 1.0)),
        min_level=check.integer(table, at, "min_level", default=d.min_level, low=0),
        max_blind=check.number(table, at, "max_blind", default=d.max_blind, within=Range(0.0)),
        max_epsilon=check.number(table, at, "max_epsilon", default=d.max_epsilon, within=POSITIVE),
        self_attack=check.boolean(table, at, "self_attack", default=d.self_attack),
        epsilon=epsilon,
        delta=delta,
        row_bound=check.numbers(table, at, "row_bound", positive=True),
        centres=check.nested_numbers(table, at, "centres"),
        scales=check.nested_numbers(table, at, "scales", positive=True),
    )
    names = [site.name for site in sites]
    for key in ("row_bound", "centres", "scales"):
        for name in getattr(policy, key):
            if name not in names:
                check.fail((*at, key), f"{key} speaks of site {name!r}, which is not on the roster")
    if (epsilon is None) != (delta is None):
        check.fail((*at, "epsilon" if delta is None else "delta"), "state epsilon and delta together or not at all")
    if epsilon is not None:
        if sketch.kind not in ("gaussian", GRAM):
            check.fail((*at, "epsilon"), 'differential privacy needs [sketch] kind = "gaussian"')
        if any(site.covariates for site in sites):
            # Projecting on noisy covariates would leave confounding behind and say nothing about it.
            check.fail((*at, "epsilon"), "differential privacy does not cover covariates yet: leave one of the two out")
        if any(site.transform for site in sites):
            check.fail((*at, "epsilon"), "differential privacy does not cover transform: ranks depend on everybody's values")
        if any(said["kind"] != "continuous" for site in sites for said in site.kinds.values()):
            check.fail((*at, "epsilon"), "differential privacy does not cover kinds of responses yet: leave one of the two out")
        missing = [name for name in names if name not in policy.row_bound]
        if missing:
            check.fail((*at, "epsilon"), f"differential privacy needs a row_bound for {', '.join(missing)}")
    return policy


def read_sites(content: dict[str, Any], check: Checker) -> tuple[SiteEntry, ...]:
    tables = content.get("site", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        check.fail(("site",), "sites are written as [[site]] tables")
        return ()
    entries = []
    for i, table in enumerate(tables):
        at = ("site", i)
        check.known(table, at, tuple(f.name for f in fields(SiteEntry)))
        entry = SiteEntry(
            name=check.label(table, at, "name"),
            features=check.strings(table, at, "features", default=()),
            responses=check.strings(table, at, "responses", default=()),
            covariates=check.strings(table, at, "covariates", default=()),
            columns=check.integer(table, at, "columns", low=1, high=10**9) if "columns" in table else None,
            transform=check.choice(table, at, "transform", TRANSFORMS, "") if "transform" in table else None,
            kinds=_kinds(table, at, check),
            exchange_key=check.key(table, at, "exchange_key"),
            signing_key=check.key(table, at, "signing_key"),
        )
        if not entry.features and not entry.responses and not entry.covariates:
            check.fail(at, f"site {entry.name!r} brings nothing: give it features, responses or covariates")
        for name in entry.kinds:
            if not entry.claims_response(name):
                check.fail((*at, "kinds", name), f"site {entry.name!r}: a kind is given for {name!r}, which is no response of it")
        if (entry.exchange_key is None) != (entry.signing_key is None):
            check.fail(at, f"site {entry.name!r}: exchange_key and signing_key are pinned together or not at all")
        entries.append(entry)
    if not entries:
        check.fail(("site",), "the roster is empty: add a [[site]] table for every site")
    _roster(entries, check)
    return tuple(entries)


def _kinds(table: dict[str, Any], at: tuple[str | int, ...], check: Checker) -> dict[str, dict[str, Any]]:
    given, out = table.get("kinds", {}), {}
    if not isinstance(given, Mapping):
        check.fail((*at, "kinds"), 'kinds must be a table, such as kinds = { asthma = "binary" }')
        return {}
    for name, said in given.items():
        try:
            out[str(name)] = check_kind(said)
        except InputError as error:
            check.fail((*at, "kinds", name), f"response {str(name)[:64]!r}: {error}")
    return out


def _roster(entries: list[SiteEntry], check: Checker) -> None:
    """Names and keys once; every plain label claimed once; somebody brings features and somebody responses."""
    for what in ("name", "exchange_key", "signing_key"):
        seen: dict[str, int] = {}
        for i, entry in enumerate(entries):
            value = getattr(entry, what)
            if value is not None and value in seen:
                check.fail(("site", i, what), f"sites {seen[value] + 1} and {i + 1} have the same {what}")
            elif value is not None:
                seen[value] = i
    for what in ("features", "responses", "covariates"):
        if entries and what != "covariates" and not any(getattr(e, what) for e in entries):
            check.fail(("site",), f"no site brings {what}")
        owner: dict[str, int] = {}
        for i, entry in enumerate(entries):
            for label in getattr(entry, what):
                if "*" in label:
                    continue
                if label in owner:
                    check.fail(("site", i, what), f"{what[:-1]} {label!r} is claimed by site {owner[label] + 1} too")
                owner[label] = i
