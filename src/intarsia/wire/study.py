"""study.toml: what is asked, of whom, under which rules; parsed, validated, hashed.

Every party works from its own copy. The hash is taken over the content (not the comments or the layout), and every
message carries it, so a party that works from another text is found out at its first message.
"""

import hashlib
import json
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from intarsia.errors import InputError, StudyError
from intarsia.wire.defaults import CHAINS, DRAWS, ESS, GRAM_ROWS, RHAT, RHAT_FOLDED
from intarsia.wire.kinds import check_kind
from intarsia.wire.schema import ABOVE_ONE, POSITIVE, PROBABILITY, Checker, Range, check_name

SCHEMA = 1
KINDS = ("orthonormal", "gaussian")
GRAM = "gram"  # no sketch: the exact Gram matrix of all sites' columns, by secure multiplication between the sites
PRECISIONS = ("float64", "float32")
TRANSFORMS = ("rank-normal",)
MAX_LIST_RATIO = 10
REASONS = ("repeat", "join", "leave", "withdrawal", "correction")  # why a run replaces another
CANONICAL_RULES = ("strip", "collapse", "nfc", "lower", "upper", "no-leading-zeros", "integer")


@dataclass(frozen=True)
class SketchPlan:
    """How the columns are sketched: m rows, which kind, at which precision the values leave the site.

    A study of kind "gram" has no sketch, so m is 0; `rows` is how many subjects a message between its sites covers.
    """

    m: int
    kind: str = "orthonormal"
    precision: str = "float64"
    rows: int | None = None

    @property
    def gram(self) -> bool:
        return self.kind == GRAM

    def blocks(self, n: int) -> int:
        """In how many messages n subjects travel between two sites."""
        return -(-n // (self.rows or n))


@dataclass(frozen=True)
class Alignment:
    """How the sites find the same subjects; `canonical` lists the rules applied to every id, in order.

    `max_subjects` caps the list a site may bring to an intersection: whoever lists a population finds out who of it is at the
    other sites. Without it a site refuses lists above `MAX_LIST_RATIO` times its own. In mode "union" subjects are grouped by the
    responses they have, and groups below `min_group` subjects are left out (`wire.cohort_groups`).
    """

    mode: str = "strict"
    canonical: tuple[str, ...] = ("strip", "nfc")
    max_subjects: int | None = None
    min_group: int | None = None


@dataclass(frozen=True)
class Fit:
    """The model and the sampler (the arguments of `intarsia.server.sampler.sample.sample`) and the selection rule.

    Each chain keeps at most `draws` draws. With `until = "converged"` the run stops before that, as soon as every coefficient and
    noise variance has R̂ ≤ `rhat`, folded R̂ ≤ `rhat_folded` and at least `ess` effective samples (a noise variance a quarter of
    them); with `until = "draws"` never.
    """

    rank: int | None = None
    local: str = "row"
    law: str = "horseshoe"
    noise: str = "correlated"
    power: float = 1.0
    expected_features: float | None = None
    draws: int = DRAWS
    warmup: int | None = None  # None: as the number of features asks for (`wire.defaults`)
    chains: int = CHAINS
    thin: int | None = None
    until: str = "converged"
    rhat: float = RHAT
    rhat_folded: float = RHAT_FOLDED
    ess: float = ESS
    seed: int = 0
    select: str = "bfdr"
    fdr: float = 0.05


@dataclass(frozen=True)
class Delivery:
    """What goes back to a site: at most `draws` joint draws of its rows of C, or only their mean, sd and interval.

    With `share_scales` the owner of a response publishes its standard deviation, and every site's effects are in its units; of
    a yes/no response the server tells everybody the noise variance too, and every site has odds ratios.
    """

    content: str = "draws"
    interval: float = 0.95
    draws: int = 1000
    share_scales: bool = False


@dataclass(frozen=True)
class Predict:
    """Limits of joint prediction: how few new subjects are still answered, and how much of a part one column may explain (R²)."""

    min_subjects: int = 20
    max_column_share: float = 0.95


@dataclass(frozen=True)
class Privacy:
    """The study's limits. They may only tighten the defaults: a looser one counts for nothing unless a site overrides the rule
    in its own site.toml, with a reason.

    `row_bound`, `centres` and `scales` are public constants for differential privacy: by site, and for the last two
    by column label within the site ("*" for all its other columns).
    """

    warn_ratio: float = 0.1
    max_ratio: float = 0.25
    max_auc: float = 0.6
    min_level: int = 10
    max_blind: float = 1.0
    max_epsilon: float = 10.0
    self_attack: bool = True
    epsilon: float | None = None
    delta: float | None = None
    row_bound: Mapping[str, float] = field(default_factory=dict)
    centres: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    scales: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteEntry:
    """One site of the roster. `features`, `responses` and `covariates` are labels or patterns with `*`.

    `columns` is how many columns the site brings in all (indicators counted one by one), `transform = "rank-normal"` turns its
    continuous features into normal scores before they are sketched. `kinds` says, by response, what is not a plain measurement
    (`wire.kinds.check_kind`).
    """

    name: str
    features: tuple[str, ...] = ()
    responses: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()
    columns: int | None = None
    transform: str | None = None
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    exchange_key: str | None = None
    signing_key: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels and patterns of the site."""
        return (*self.features, *self.responses, *self.covariates)

    def claims_feature(self, label: str) -> bool:
        return _claims(self.features, label) and not _names(self.responses, label) and not self.claims_covariate(label)

    def claims_response(self, label: str) -> bool:
        return _claims(self.responses, label)

    def claims_covariate(self, label: str) -> bool:
        return _claims(self.covariates, label)

    def foreign(
        self, features: Iterable[str], responses: Iterable[str], covariates: Iterable[str]
    ) -> tuple[str, list[str]] | None:
        """The first role with labels that the study does not give to this site, and those labels."""
        roles = (
            ("feature", features, self.claims_feature),
            ("response", responses, self.claims_response),
            ("covariate", covariates, self.claims_covariate),
        )
        for role, labels, claims in roles:
            if outside := [label for label in labels if not claims(label)]:
                return role, outside
        return None


def _claims(patterns: tuple[str, ...], label: str) -> bool:
    return any(p == label or ("*" in p and fnmatchcase(label, p)) for p in patterns)


def _names(patterns: tuple[str, ...], label: str) -> bool:
    return any(p == label for p in patterns)


@dataclass(frozen=True)
class Study:
    """One study, as every party reads it from its own study.toml."""

    id: str
    run: str
    sketch: SketchPlan
    sites: tuple[SiteEntry, ...]
    title: str = ""
    replaces: str | None = None  # the hash of the run this one was made from
    reason: str | None = None  # why: one of REASONS
    alignment: Alignment = Alignment()
    fit: Fit = Fit()
    deliver: Delivery = Delivery()
    predict: Predict = Predict()
    privacy: Privacy = field(default_factory=Privacy)

    @classmethod
    def load(cls, path: str | Path) -> "Study":
        """Read and validate study.toml; every complaint names the line."""
        path = Path(path)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise StudyError(f"Cannot read the study file {path}: {error.strerror}.") from None
        if len(raw) > 16 * 2**20:
            raise StudyError(f"{path} is larger than 16 MB; a study file holds no data.")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StudyError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str = "study.toml") -> "Study":
        """Validate the text of a study file; all problems are reported together, each with its line."""
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise StudyError(f"{source} is not valid TOML: {error}.") from None
        except RecursionError:
            raise StudyError(f"{source} is not a study file: it nests too deeply.") from None
        return _read(content, Checker(source, text))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Study":
        """A study from plain values, as `to_dict` gives them; validated like a file."""
        return _read(dict(content), Checker("study", ""))

    def to_dict(self) -> dict[str, Any]:
        """The canonical content: plain values, defaults filled in, nothing that is absent."""
        out: dict[str, Any] = {"schema": SCHEMA, "id": self.id, "run": self.run}
        for name in ("title", "replaces", "reason"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        for name in ("sketch", "alignment", "fit", "deliver", "predict", "privacy"):
            out[name] = _plain(getattr(self, name))
        out["site"] = [_plain(site) for site in self.sites]
        return out

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of the canonical content."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(b"intarsia study 1\n" + text.encode()).hexdigest()

    @property
    def folder_name(self) -> str:
        """What a folder or file of this study and run is called, at the server and at every site."""
        return f"{self.id}-{self.hash[:16]}"

    def owner(self, response: str) -> str:
        """The one site that study.toml gives this response to, by name: prediction takes nobody else's word for it."""
        owners = [site.name for site in self.sites if response in site.responses]
        if len(owners) != 1:
            raise StudyError(
                "A response of this fit is not listed by name for one site in study.toml. Prediction needs the owner of each "
                "response from the study file: name the responses there, without patterns."
            )
        return owners[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)

    @property
    def kinds(self) -> dict[str, Mapping[str, Any]]:
        """What the study file says of its responses' kinds, by response; a plain measurement may be left out there."""
        return {name: said for site in self.sites for name, said in site.kinds.items()}

    @property
    def yes_or_no(self) -> tuple[str, ...]:
        """The responses that study.toml calls binary."""
        return tuple(name for name, said in self.kinds.items() if said["kind"] == "binary")

    def site(self, name: str) -> SiteEntry:
        for entry in self.sites:
            if entry.name == name:
                return entry
        raise StudyError(f"Site {name!r} is not on the roster of study {self.id!r}: it lists {', '.join(self.names)}.")

    @property
    def agrees(self) -> bool:
        """Whether the sites agree on the study key through the server (all keys pinned) or bring a key file."""
        return all(site.exchange_key is not None for site in self.sites)

    def again(self, run: str | None = None, reason: str | None = None) -> "Study":
        """The same study with a new run nonce: Φ is used once, so a withdrawal or a repeat needs a new run."""
        return replace(self, run=run or new_run(), replaces=self.hash, reason=reason)

    def differences(self, other: "Study") -> list[str]:
        """Entry by entry what `other` says otherwise than this study; the run and what it replaces are left out."""
        mine, theirs = (_entries(study.to_dict()) for study in (self, other))
        out = []
        for key in dict.fromkeys([*mine, *theirs]):
            if mine.get(key) != theirs.get(key) and key not in ("run", "replaces", "reason"):
                was, now = (json.dumps(one[key]) if key in one else "absent" for one in (mine, theirs))
                out.append(f"{key}: {was} → {now}")
        return out


def new_run() -> str:
    """A fresh run nonce, 32 hexadecimal digits."""
    return secrets.token_hex(16)


def _entries(content: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """A study's content by dotted names; sites by their name."""
    out: dict[str, Any] = {}
    for key, value in content.items():
        if key == "site" and not at:
            for entry in value:
                out |= _entries(entry, f"site {entry['name']}.")
        elif isinstance(value, Mapping):
            out |= _entries(value, f"{at}{key}.")
        else:
            out[f"{at}{key}"] = value
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {k: _plain(v) for k, v in pairs if v is not None and not (isinstance(v, Mapping) and not v)}
    return value


def _read(content: dict[str, Any], check: Checker) -> Study:
    schema = check.integer(content, (), "schema", default=SCHEMA, low=1)
    if schema != SCHEMA:
        check.fail(("schema",), f"schema {schema} is not known to this version, which reads schema {SCHEMA}")
        check.finish()
    known = (
        "schema",
        "id",
        "run",
        "replaces",
        "reason",
        "title",
        "sketch",
        "alignment",
        "fit",
        "deliver",
        "predict",
        "privacy",
        "site",
    )
    check.known(content, (), known)
    study = Study(
        id=check.label(content, (), "id"),
        run=_run(content, check),
        title=check.text(content, (), "title", default=""),
        replaces=_replaces(content, check),
        reason=check.choice(content, (), "reason", REASONS, "repeat") if "reason" in content else None,
        sites=_sites(content, check),
        sketch=_sketch(content, check),
        alignment=_alignment(content, check),
        fit=_fit(content, check),
        deliver=_deliver(content, check),
        predict=_predict(content, check),
        privacy=Privacy(),
    )
    study = replace(study, privacy=_privacy(content, check, study))
    if study.sketch.gram:
        _gram(study, check)
    if study.alignment.mode == "union":
        for what, there in (
            ('kind = "gram"', study.sketch.gram),
            ("differential privacy", study.privacy.epsilon is not None),
            ("a fractional likelihood (power)", study.fit.power != 1),
        ):
            if there:
                check.fail(("alignment", "mode"), f'mode = "union" does not cover {what} yet: leave one of the two out')
    check.finish()
    return study


def _run(content: dict[str, Any], check: Checker) -> str:
    run = check.text(content, (), "run").lower()
    if run and (len(run) < 16 or len(run) > 64 or any(c not in "0123456789abcdef" for c in run)):
        check.fail(("run",), "run must be 16 to 64 hexadecimal digits; `intarsia study new` makes one")
    return run


def _replaces(content: dict[str, Any], check: Checker) -> str | None:
    found = check.text(content, (), "replaces", default="").lower()
    if found and (len(found) != 64 or any(c not in "0123456789abcdef" for c in found)):
        check.fail(
            ("replaces",), "replaces is the hash of another run: 64 hexadecimal digits, as `intarsia study check` shows it"
        )
    return found or None


def _sketch(content: dict[str, Any], check: Checker) -> SketchPlan:
    table, at = check.table(content, "sketch", required=True), ("sketch",)
    check.known(table, at, ("m", "kind", "precision", "rows"))
    if table.get("kind") == GRAM:
        for key, only in (("m", 0), ("precision", "float64")):
            if table.get(key, only) != only:
                check.fail((*at, key), f'kind = "gram" sends no sketch: leave {key} out')
        return SketchPlan(0, GRAM, rows=check.integer(table, at, "rows", default=GRAM_ROWS, low=64, high=2**20))
    if "rows" in table:
        check.fail((*at, "rows"), 'rows is for kind = "gram"; the number of sketch rows is m')
    return SketchPlan(
        m=check.integer(table, at, "m", low=2, high=10**7),
        kind=check.choice(table, at, "kind", (*KINDS, GRAM), "orthonormal"),
        precision=check.choice(table, at, "precision", PRECISIONS, "float64"),
    )


def _gram(study: Study, check: Checker) -> None:
    """What a study of kind "gram" needs, and what it cannot do yet."""
    if len(study.sites) != 3:
        check.fail(
            ("site",),
            f'kind = "gram" is computed by three sites, and this study has {len(study.sites)}: use a sketch (kind = '
            '"orthonormal")',
        )
    if not study.agrees:
        check.fail(("site",), 'kind = "gram" seals messages from site to site: pin exchange_key and signing_key of every site')
    if study.privacy.epsilon is not None:
        check.fail(
            ("privacy", "epsilon"),
            'differential privacy does not cover kind = "gram" yet: use kind = "gaussian", or leave epsilon out',
        )


def _alignment(content: dict[str, Any], check: Checker) -> Alignment:
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


def _fit(content: dict[str, Any], check: Checker) -> Fit:
    table, at, d = check.table(content, "fit"), ("fit",), Fit()
    check.known(table, at, tuple(f.name for f in fields(Fit)))
    return Fit(
        rank=check.integer(table, at, "rank", low=1) if "rank" in table else None,
        local=check.choice(table, at, "local", ("row", "element"), d.local),
        law=check.text(table, at, "law", default=d.law),
        noise=check.choice(table, at, "noise", ("correlated", "independent", "jeffreys"), d.noise),
        power=check.number(table, at, "power", default=d.power, within=POSITIVE),
        expected_features=check.number(table, at, "expected_features", within=POSITIVE) if "expected_features" in table else None,
        draws=check.integer(table, at, "draws", default=d.draws, low=1, high=10**7),
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


def _deliver(content: dict[str, Any], check: Checker) -> Delivery:
    table, at = check.table(content, "deliver"), ("deliver",)
    check.known(table, at, tuple(f.name for f in fields(Delivery)))
    return Delivery(
        check.choice(table, at, "content", ("draws", "summary"), "draws"),
        check.number(table, at, "interval", default=0.95, within=PROBABILITY),
        check.integer(table, at, "draws", default=1000, low=2, high=10**6),
        check.boolean(table, at, "share_scales", default=False),
    )


def _predict(content: dict[str, Any], check: Checker) -> Predict:
    """The defaults are the floor: a study may be stricter, never looser."""
    table, at, d = check.table(content, "predict"), ("predict",), Predict()
    check.known(table, at, tuple(f.name for f in fields(Predict)))
    return Predict(
        check.integer(table, at, "min_subjects", default=d.min_subjects, low=d.min_subjects, high=10**9),
        check.number(table, at, "max_column_share", d.max_column_share, Range(0.0, d.max_column_share, open_low=True)),
    )


def _privacy(content: dict[str, Any], check: Checker, study: Study) -> Privacy:
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
    for key in ("row_bound", "centres", "scales"):
        for name in getattr(policy, key):
            if name not in study.names:
                check.fail((*at, key), f"{key} speaks of site {name!r}, which is not on the roster")
    if (epsilon is None) != (delta is None):
        check.fail((*at, "epsilon" if delta is None else "delta"), "state epsilon and delta together or not at all")
    if epsilon is not None:
        if study.sketch.kind not in ("gaussian", GRAM):
            check.fail((*at, "epsilon"), 'differential privacy needs [sketch] kind = "gaussian"')
        if any(site.covariates for site in study.sites):
            # Projecting on noisy covariates would leave confounding behind and say nothing about it.
            check.fail((*at, "epsilon"), "differential privacy does not cover covariates yet: leave one of the two out")
        if any(site.transform for site in study.sites):
            check.fail((*at, "epsilon"), "differential privacy does not cover transform: ranks depend on everybody's values")
        if any(said["kind"] != "continuous" for site in study.sites for said in site.kinds.values()):
            check.fail((*at, "epsilon"), "differential privacy does not cover kinds of responses yet: leave one of the two out")
        missing = [name for name in study.names if name not in policy.row_bound]
        if missing:
            check.fail((*at, "epsilon"), f"differential privacy needs a row_bound for {', '.join(missing)}")
    return policy


def _sites(content: dict[str, Any], check: Checker) -> tuple[SiteEntry, ...]:
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


__all__ = [
    "Alignment",
    "Delivery",
    "Fit",
    "Predict",
    "Privacy",
    "SiteEntry",
    "SketchPlan",
    "Study",
    "check_name",
    "new_run",
]
