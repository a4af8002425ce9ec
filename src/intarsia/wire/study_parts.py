"""The tables of study.toml as values: how columns are sketched, how subjects are found, fit, delivery, limits, and the sites."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from intarsia.wire.defaults import CHAINS, ESS, RHAT, RHAT_FOLDED

SKETCH_KINDS = ("orthonormal", "gaussian")
PRECISIONS = ("float64", "float32")
GRAM = "gram"  # no sketch: the exact Gram matrix of all sites' columns, by secure multiplication between the sites
SCREENED = "screened"  # sums of products of all columns with the responses, then the exact Gram matrix of the few that matter
LOOK_BITS = 12  # fractional bits of the coefficients whose residuals the holders multiply
SERVER = "server"  # among the holders of shares: the server holds the third
LOCALS = ("row", "element")
NOISES = ("correlated", "independent", "jeffreys")
PRIORS = ("sparse", "horseshoe")
MAX_LIST_RATIO = 10
REASONS = ("repeat", "join", "leave", "withdrawal", "correction")  # why a run replaces another


@dataclass(frozen=True)
class SketchPlan:
    """How the columns are sketched: m rows, which kind, at which precision the values leave the site.

    A study of kind "gram" has no sketch, so m is 0; `rows` is how many subjects a message between its sites covers, `holders`
    are the three that hold shares of the columns (None: the three sites), `folds` into how many parts the subjects are split.
    One of kind "screened" keeps at most `keep` features (None: as many as the sites' gates allow) and looks `again` times at what
    these leave unexplained; with m it screens by a sketch of m rows in place of exact sums of all features.
    """

    m: int
    kind: str = "orthonormal"
    precision: str = "float64"
    rows: int | None = None
    holders: tuple[str, ...] | None = None
    folds: int | None = None
    keep: int | None = None
    again: int | None = None

    @property
    def gram(self) -> bool:
        return self.kind == GRAM

    @property
    def screened(self) -> bool:
        return self.kind == SCREENED

    @property
    def by_sketch(self) -> bool:
        """A screened study in which a sketch says which features to keep: only these are ever shared with holders."""
        return self.screened and self.m > 0

    @property
    def mixing(self) -> str:
        """The kind of the sketch that leaves, where one does."""
        return SKETCH_KINDS[0] if self.screened else self.kind

    @property
    def shares(self) -> bool:
        """Columns are multiplied by shares, with keys pinned and three holders."""
        return self.kind in (GRAM, SCREENED)

    @property
    def looks(self) -> int:
        """How often products of all features leave in a screened study: the screen, and every look again; never where a sketch
        screens."""
        return 1 + (self.again or 0) if self.screened and not self.by_sketch else 0

    def fold_sizes(self, n: int) -> tuple[int, ...]:
        """How many of n subjects each fold has; one fold of all where the study asks for none."""
        k = self.folds or 1
        return tuple(len(range(fold, n, k)) for fold in range(k))


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
    """The model, the sampler (its share of `intarsia.server.sampler.settings.Settings`) and the selection rule.

    Each chain keeps at most `draws` draws. With `until = "converged"` the run stops before that, as soon as every coefficient
    has R̂ ≤ `rhat`, folded R̂ ≤ `rhat_folded` and at least `ess` effective samples (a noise variance: five times as far from one,
    and a quarter of the samples); with `until = "draws"` never.

    `prior` is "sparse" (features in or out, on a dense `background`) or the paper's "horseshoe", which alone has `local`, `law`.
    """

    prior: str = "sparse"
    background: bool = True
    rank: int | None = None
    local: str = "row"
    law: str = "horseshoe"
    noise: str = "correlated"
    power: float = 1.0
    expected_features: float | None = None
    draws: int | None = None  # None, as of `warmup` and `thin`: as the problem's size asks for (`wire.defaults`)
    warmup: int | None = None
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
    """What goes back to a site: at most `draws` joint draws of its rows of C, or only their mean, sd and interval. Beyond 20 it
    is no more draws than have 1 GiB at all sites together.

    With `share_scales` the owner of a response publishes its standard deviation, and every site's effects are in its units; of
    a yes/no response the server tells everybody the noise variance too, and every site has odds ratios.
    """

    content: str = "draws"
    interval: float = 0.95
    draws: int = 1000
    share_scales: bool = False


@dataclass(frozen=True)
class Predict:
    """Limits of joint prediction: the fewest new subjects, and how much of a column of a site its parts may explain (R²)."""

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
