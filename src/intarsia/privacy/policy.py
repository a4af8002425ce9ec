"""What a sketch must satisfy before it leaves: limits, who may move them, and exceptions with a reason.

The defaults are the floor. A study may state stricter limits, and a site stricter ones still. A looser value in study.toml
changes nothing by itself (`loosened` lists such values, for the person who accepts the study): a rule is broken only by an
override in the site's own site.toml that names the rule and says why; overrides end up on the privacy card.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from intarsia.errors import InputError
from intarsia.wire.study_parts import Privacy

# Rules a site may override, with what they mean; the rest (one-time Φ, constant columns) have no exception.
RULES = {
    "ratio": "Σm/n over the cohort's history",
    "membership": "AUC of the membership attack",
    "sums": "a site brings so many columns that with the server it could work out responses from exact sums",
    "rare-level": "a level held by few subjects",
    "few-values": "columns of few distinct values",
    "duplicate": "two identical columns",
    "dominant": "one subject carries most of a column's variance, or a few nearly all of it",
    "decodable": "columns that the self-attack decoded",
    "readable-response": "a response of few values that other sites can read from their own results",
    "self-attack": "the self-attack was switched off or did not finish",
    "precision": "sketch values leave in full precision",
    "near-duplicate": "two columns that differ in few subjects, or one that is a sum of others but for few",
    "leverage": "a direction among the columns that few people carry and that is found without the key",
    "blind": "Φ can be found without the key",
    "budget": "Σε and Σδ over the cohort's history",
}
# Which rule a limit belongs to.
RULE_OF = {
    "warn_ratio": "ratio", "max_ratio": "ratio", "max_auc": "membership", "min_level": "rare-level",
    "few_values": "few-values", "max_dominance": "dominant", "warn_blind": "blind", "max_blind": "blind",
    "max_epsilon": "budget", "max_delta": "budget", "self_attack": "self-attack",
}  # fmt: skip
_LARGER_IS_STRICTER = {"min_level", "few_values", "self_attack"}


@dataclass(frozen=True)
class Override:
    """An explicit exception: which rule, for which columns (all, if none are named), and why."""

    rule: str
    reason: str
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"No rule {self.rule!r} can be overridden. The rules are {', '.join(RULES)}.")
        if len(self.reason.strip()) < 8:
            raise InputError(f"The override of {self.rule!r} needs a reason that a data officer can read.")

    def covers(self, rule: str, columns: Iterable[str]) -> bool:
        return rule == self.rule and (not self.columns or set(columns) <= set(self.columns))


@dataclass(frozen=True)
class Policy:
    """Limits; the defaults, most of them those of study.toml, suit a cohort of patients.

    Σm/n up to .25: beyond, a leaked key decodes 0/1 columns of a tenth of ones and more. Σε up to 10: beyond, the odds of
    any guess about a person may change by more than e¹⁰ = 22,000, which promises next to nothing. `max_blind` is in units
    of where the blind attack begins to find columns of Φ, measured (`intarsia.privacy.blind`).
    """

    warn_ratio: float = Privacy.warn_ratio
    max_ratio: float = Privacy.max_ratio
    max_auc: float = Privacy.max_auc
    min_level: int = Privacy.min_level
    few_values: int = 3
    max_dominance: float = 0.5
    warn_blind: float = 0.3
    max_blind: float = Privacy.max_blind
    max_epsilon: float = Privacy.max_epsilon
    max_delta: float = 1e-4
    self_attack: bool = Privacy.self_attack
    attack_seconds: float = 20.0
    overrides: tuple[Override, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("warn_ratio", 0, 1), ("max_ratio", 0, 1), ("max_auc", 0.5, 1), ("max_dominance", 0, 1),
            ("min_level", 0, 10**9), ("few_values", 0, 1000), ("attack_seconds", 0, 86400), ("warn_blind", 0, 1e6),
            ("max_blind", 0, 1e6), ("max_epsilon", 0, 1e6), ("max_delta", 0, 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise InputError(f"Privacy policy: {name} must be a number from {low} to {high}.")

    @classmethod
    def of_study(cls, privacy: Any) -> "Policy":
        """The defaults, tightened by a study file's privacy table (anything with attributes of the same names).

        Where the study is looser than the default, the default stays.
        """
        stated = {name: getattr(privacy, name) for name in _LIMITS if hasattr(privacy, name)}
        return replace(cls(), **{name: value for name, value in stated.items() if not _looser(name, value, getattr(cls(), name))})

    def tightened(self, own: Mapping[str, Any]) -> "Policy":
        """These limits with a site's own. A site's looser value is refused: loosening goes through an override."""
        given = dict(own)
        overrides = tuple(_override(o) for o in (*given.pop("overrides", ()), *given.pop("override", ())))
        known = {f.name for f in fields(self)} - {"overrides"}
        unknown = sorted(set(given) - known)
        if unknown:
            raise InputError(f"Unknown privacy settings: {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
        for name, value in given.items():
            if not isinstance(value, int | float):
                raise InputError(f"Privacy policy: {name} must be a number, or true or false.")
            now = getattr(self, name)
            if name in RULE_OF and _looser(name, value, now):
                raise InputError(
                    f"The site's {name} = {value} is looser than the limit in force, {now}. A site may tighten a limit; "
                    "to break it, write an [[override]] in site.toml with the rule's name and a reason."
                )
        return replace(self, **given, overrides=self.overrides + overrides)

    def overridden(self, rule: str, columns: Iterable[str] = ()) -> Override | None:
        return next((o for o in self.overrides if o.covers(rule, columns)), None)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_LIMITS = tuple(f.name for f in fields(Policy) if f.name in RULE_OF)


def _looser(name: str, value: float, than: float) -> bool:
    return value < than if name in _LARGER_IS_STRICTER else value > than


@dataclass(frozen=True)
class Loosened:
    """A limit that study.toml states looser than the default, and what happens to it at this site."""

    limit: str
    stated: float
    default: float
    rule: str
    override: Override | None

    def __str__(self) -> str:
        said = f"{self.limit} = {self.stated} is looser than the default {self.default}"
        if self.override is None:
            return f"{said}: the default stays in force here"
        return f"{said}: this site overrides the rule '{self.rule}' ({self.override.reason})"


def loosened(study: Any, policy: "Policy | Mapping[str, Any] | None" = None) -> list[Loosened]:
    """Every limit that a study states looser than the defaults, for the person who accepts it; `policy` is the site's own."""
    own = policy if isinstance(policy, Policy) else Policy().tightened(
        {key: value for key, value in (policy or {}).items() if key in ("override", "overrides")}
    )  # fmt: skip
    out = []
    for name in _LIMITS:
        stated, default = getattr(study.privacy, name, None), getattr(Policy(), name)
        if stated is not None and _looser(name, stated, default):
            rule = RULE_OF[name]
            out.append(Loosened(name, stated, default, rule, own.overridden(rule)))
    return out


def _override(raw: Any) -> Override:
    if isinstance(raw, Override):
        return raw
    if not isinstance(raw, Mapping) or set(raw) - {"rule", "reason", "columns"} or not {"rule", "reason"} <= set(raw):
        raise InputError("An override is written as rule = …, reason = … and, if it is for some columns only, columns = […].")
    columns = raw.get("columns", ())
    if not isinstance(raw["rule"], str) or not isinstance(raw["reason"], str) or isinstance(columns, str):
        raise InputError("An override's rule and reason are text, its columns a list of labels.")
    return Override(raw["rule"], raw["reason"], tuple(str(c) for c in columns))
