"""What the gate judges: facts about a cohort, a sketch and its columns, and what a rule says about them."""

from dataclasses import dataclass
from typing import Literal

from intarsia.privacy.blind import Shape
from intarsia.privacy.leakage import Kind
from intarsia.privacy.policy import Override

OK, NOTE, WARN, REFUSE, OVERRIDDEN = "ok", "note", "warn", "refuse", "overridden"
TOLD_MORE = 0.05  # the most that results may tell of a response because its values are few (`ColumnFacts.told_more`)
BY_THEORY = 0.01  # share of a column's variance left unknown below which it counts as decoded where the attack was not tried


@dataclass(frozen=True)
class ColumnFacts:
    """What the site found out about one column, by name; none of it leaves the site but on its own card."""

    name: str
    distinct: int  # capped: "more than a dozen" is all that matters
    smallest_level: int | None  # subjects in the rarest level, of a column of few values
    off_mode: int  # subjects who do not have the commonest value
    dominance: float  # largest share of the column's variance that one subject carries
    duplicate_of: str | None = None
    theory_unknown: float | None = None  # share of variance left unknown if Φ leaks (state evolution)
    # Of a response: k sums over any values tell k/n of the variance. By theory, the share of the rest that other sites, who have
    # k sums as their results, work out because the values are few.
    told_more: float | None = None
    attacked: str | None = None  # "exact", "partly", "no"
    right: float | None = None
    right_rare: float | None = None  # of the subjects who do not have the commonest value, how many were found
    skewness: float = 0.0
    kurtosis: float = 0.0  # excess over a normal column's
    near_duplicate_of: str | None = None
    near_people: int | None = None  # subjects in which it differs from that column
    carried_by: int | None = None  # so few subjects carry nearly all of its variance; None: not so few that it matters

    @property
    def rarest(self) -> int:
        return min(self.off_mode, self.smallest_level if self.smallest_level is not None else self.off_mode)

    @property
    def exposed(self) -> bool:
        """A leaked key would give (much of) this column away: decoded by the self-attack, or by theory."""
        return self.attacked in ("exact", "partly") or (self.theory_unknown is not None and self.theory_unknown < 0.5)


@dataclass(frozen=True)
class Screen:
    """Of a screened study: whose products leave and how often (no `looks` where a sketch screens), and what is kept.

    `features` and `covariates` are those of all sites, `largest` the columns of the other site that brings most, `binary` the
    responses of two values. `farthest` are the squared distances of this site's people from the mean, in features and in
    responses, beside an average person's: of those to whom nobody is farther out in both (None: nobody looked). `earlier_sums`
    left before on these people.
    """

    features: int
    responses: int
    covariates: int
    looks: int
    keep: int | None = None
    largest: int = 0
    binary: int = 0
    farthest: tuple[tuple[float, float], ...] | None = None
    earlier_sums: int = 0

    @property
    def sums(self) -> int:
        """Numbers that leave in all looks."""
        return self.features * self.responses * self.looks


@dataclass(frozen=True)
class Carried:
    """A direction that an attack without the key finds and that few people carry: how it is found, the columns with most weight
    in it, how many people carry it, which share of its squared length, and whether that is too much."""

    how: str
    columns: tuple[str, ...]
    people: int
    share: float
    refuse: bool
    person: int = -1  # place of the first of them in the cohort's order: for the site alone, to tell findings apart


@dataclass(frozen=True)
class Looked:
    """What the search for directions that few people carry found (`carried`), what of it was not looked at (`unseen`, in words),
    and how near the loudest person's column of Φ comes to being the longest direction of all sites' columns (`loudest`: the
    squared cosine, by theory, if the columns of the other sites are like this site's)."""

    carried: tuple[Carried, ...] = ()
    unseen: tuple[str, ...] = ()
    loudest: float | None = None
    differences: Shape | None = None  # of what is left of each column when the one most like it is taken off
    found_in_differences: int | None = None  # columns of Φ that the blind attack finds in these; None: not tried
    farthest: float | None = None  # the largest squared distance of a person's row from the mean, per column


@dataclass(frozen=True)
class Facts:
    """What the gate judges.

    `columns` counts all columns the server will hold for this cohort, as far as this site can know; with
    `columns_known` false other sites bring an unknown number, and no figure that grows with it is stated.
    """

    n: int
    m: int
    kind: Kind | Literal["gram", "screened"]
    columns: int
    columns_known: bool = True
    folds: int = 1  # parts of the subjects of which a Gram study shows the second moments one by one
    own_columns: tuple[ColumnFacts, ...] = ()
    responses: frozenset[str] = frozenset()  # which of them are responses: other sites get effects on these
    other_sites: bool = False  # whether other sites bring columns, which this site cannot compare with its own
    history_m: int = 0  # Σm of earlier runs on (any part of) this cohort
    told: int = 0  # effects on a response that other sites get, in this run and the earlier ones on (any part of) this cohort
    sums: int = 0  # sums over this site's features that another site gets in this run; in the earlier ones (`earlier_sums`)
    earlier_sums: int = 0
    strangers: int = 0  # earlier runs of this site, where none of them had any of these subjects
    most_told: int | None = None  # of a site's effects, so many may be told in full for these features; None: all
    epsilon: float | None = None  # of this run, against the server
    delta: float | None = None
    earlier_budget: tuple[float, float] | None = (0.0, 0.0)  # Σε, Σδ of earlier runs; None: one of them had no noise
    earlier_private: tuple[float, float] = (0.0, 0.0)  # Σε, Σδ of those earlier runs that had noise
    precision: str = "float64"
    attack_complete: bool = True
    attack_ran: bool = True
    singled_out: int | None = None  # smallest group that exact products single out together; None: no earlier one of these people
    scales_single_out: int | None = None  # the same for exact scales of responses; None: none leave, or none left before
    combined: tuple[str, ...] = ()  # columns of which one is nearly a sum of the others, but for few subjects
    combined_people: int = 0  # how many
    screen: Screen | None = None  # of a screened study whose sites said how many columns they bring
    looked: Looked | None = None  # for directions that few people carry; None where no value is looked at
    blind_found: int | None = None  # columns of Φ the blind self-attack found in this site's own sketch; None: not tried

    @property
    def exact(self) -> bool:
        """Exact sums of products leave, and no sketch."""
        return self.kind == "gram" or (self.kind == "screened" and not self.m)

    @property
    def people(self) -> int:
        """Subjects of the smallest part whose second moments are shown by themselves."""
        return self.n // self.folds

    @property
    def readable(self) -> tuple[str, ...]:
        """Responses that other sites read from their results: by theory, or as the self-attack did where they get (half of) the
        sketch."""
        responses = [c for c in self.own_columns if c.name in self.responses]
        sketch_told = not self.exact and 0 < self.m <= 2 * self.told
        tried = [c.name for c in responses if sketch_told and c.attacked in ("exact", "partly")]
        return tuple(c.name for c in responses if c.name in tried or (c.told_more or 0.0) > TOLD_MORE)

    @property
    def differential_privacy(self) -> bool:
        return self.epsilon is not None

    @property
    def shape(self) -> Shape:
        """The columns' shape, the other sites' columns (where counted) taken to be like this site's."""
        own = Shape.of([c.skewness for c in self.own_columns], [c.kurtosis for c in self.own_columns], self.n)
        return self._of_all(own)

    @property
    def shape_of_differences(self) -> Shape:
        """The same of the differences of columns that are alike: these may be skewed where the columns are not."""
        own = None if self.looked is None else self.looked.differences
        return Shape(0, 0.0, 0.0) if own is None else self._of_all(own)

    def _of_all(self, own: Shape) -> Shape:
        return own.scaled(max(self.columns, own.columns)) if own.columns else own


@dataclass(frozen=True)
class Finding:
    """What one rule says: its name, how grave it is, the number, the limit and the remedy."""

    rule: str
    level: str
    text: str
    number: float | None = None
    limit: float | None = None
    columns: tuple[str, ...] = ()
    override: Override | None = None
