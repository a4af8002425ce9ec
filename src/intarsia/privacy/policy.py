"""What a sketch must satisfy before it leaves: limits, who may move them, and exceptions with a reason.

The study states limits; a site may state stricter ones of its own. A rule is broken only by an override that names
the rule and says why; overrides end up on the privacy card.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from intarsia.errors import InputError

# Rules a site may override, with what they mean; the rest (one-time Φ, constant columns) have no exception.
RULES = {
    "ratio": "Σm/n over the cohort's history",
    "membership": "AUC of the membership attack",
    "rare-level": "a level held by few subjects",
    "few-values": "columns of few distinct values",
    "duplicate": "two identical columns",
    "dominant": "one subject carries most of a column's variance",
    "decodable": "columns that the self-attack decoded",
    "self-attack": "the self-attack was switched off or did not finish",
    "precision": "sketch values leave in full precision",
}
_LARGER_IS_STRICTER = {"min_level", "few_values"}


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
    """Limits; the defaults suit a cohort of patients."""

    warn_ratio: float = 0.1
    max_ratio: float = 0.25
    max_auc: float = 0.6
    min_level: int = 10
    few_values: int = 3
    max_dominance: float = 0.5
    self_attack: bool = True
    attack_seconds: float = 20.0
    overrides: tuple[Override, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("warn_ratio", 0, 1), ("max_ratio", 0, 1), ("max_auc", 0.5, 1), ("max_dominance", 0, 1),
            ("min_level", 0, 10**9), ("few_values", 0, 1000), ("attack_seconds", 0, 86400),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise InputError(f"Privacy policy: {name} must be a number from {low} to {high}.")

    @classmethod
    def of_study(cls, privacy: Any) -> "Policy":
        """The limits of a study file's privacy table (anything with attributes of the same names)."""
        names = {f.name for f in fields(cls)} - {"overrides"}
        return cls(**{name: getattr(privacy, name) for name in names if hasattr(privacy, name)})

    def tightened(self, own: Mapping[str, Any]) -> "Policy":
        """These limits with a site's own. A site's looser value is refused: loosening goes through an override."""
        given = dict(own)
        overrides = tuple(_override(o) for o in given.pop("overrides", given.pop("override", ())))
        given.pop("override", None)
        known = {f.name for f in fields(self)} - {"overrides"}
        unknown = sorted(set(given) - known)
        if unknown:
            raise InputError(f"Unknown privacy settings: {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
        for name, value in given.items():
            if not isinstance(value, int | float):
                raise InputError(f"Privacy policy: {name} must be a number, or true or false.")
            now = getattr(self, name)
            looser = value < now if name in _LARGER_IS_STRICTER or name == "self_attack" else value > now
            if looser and name != "attack_seconds":
                raise InputError(
                    f"The site's {name} = {value} is looser than the study's {now}. A site may tighten a limit; "
                    "to break it, "
                    "write an override with the rule's name and a reason."
                )
        return replace(self, **given, overrides=self.overrides + overrides)

    def overridden(self, rule: str, columns: Iterable[str] = ()) -> Override | None:
        return next((o for o in self.overrides if o.covers(rule, columns)), None)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _override(raw: Any) -> Override:
    if isinstance(raw, Override):
        return raw
    if not isinstance(raw, Mapping) or set(raw) - {"rule", "reason", "columns"} or not {"rule", "reason"} <= set(raw):
        raise InputError("An override is written as rule = …, reason = … and, if it is for some columns only, columns = […].")
    columns = raw.get("columns", ())
    if not isinstance(raw["rule"], str) or not isinstance(raw["reason"], str) or isinstance(columns, str):
        raise InputError("An override's rule and reason are text, its columns a list of labels.")
    return Override(raw["rule"], raw["reason"], tuple(str(c) for c in columns))


def load_policy(path: str | Path) -> dict[str, Any]:
    """A site's own limits from a TOML file: keys at the top level, exceptions as [[override]] tables."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read the policy file {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}.") from None
