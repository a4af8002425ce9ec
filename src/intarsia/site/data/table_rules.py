"""What a site says about its table besides the columns' roles."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from intarsia.errors import InputError
from intarsia.site.data.column_rules import MISSING, Rules
from intarsia.site.data.reading import Reading

CONSTANT = ("error", "drop")


@dataclass(frozen=True)
class TableRules:
    """How a table is read, and what is done about missing values, constant columns and subjects who withdrew.

    `missing` is the rule for features and covariates: "error", "mean" (the column's mean) or "regression" (the mean given the
    subject's other columns); a response is filled only if its own rule says so. `constant`: "error", or "drop" to leave such
    columns out of the sketch. `columns` has the rules of single columns (`column_rules`): among them the levels of a
    categorical one, which are fixed where the stores of one site are sketched separately and some lack a level, and the level
    without an indicator. `missing_codes` are the codes that mean "missing" in every column, `reading` says how to read the
    source (`reading.Reading`), `names` are those of an array's columns. Subjects in `without` (ids as
    `privacy.subject_ids.canonical_id` writes them) are not read at all.
    """

    missing: str = "error"
    constant: str = "error"
    columns: Mapping[str, Any] | None = None
    missing_codes: Sequence[Any] = ()
    reading: Mapping[str, Any] | Reading | None = None
    names: Sequence[str] | None = None
    without: Collection[str] = ()

    def __post_init__(self) -> None:
        for value, allowed, what in ((self.missing, MISSING, "missing"), (self.constant, CONSTANT, "constant")):
            if value not in allowed:
                raise InputError(f"{what}={value!r} is not one of {', '.join(allowed)}.")

    @classmethod
    def of(cls, missing: str, constant: str, options: Mapping[str, Any]) -> "TableRules":
        """From a Site's options, by the names that site.toml has under [table]: those of this class, and those of `Reading`."""
        own = [f.name for f in fields(cls) if f.name not in ("missing", "constant", "without")]
        about = [f.name for f in fields(Reading) if f.name not in ("id", "rules", "names")]
        unknown = [name for name in options if name not in (*own, *about)]
        if unknown:
            raise InputError(f"options has {unknown[0]!r}, which says nothing about a table. Known: {', '.join([*own, *about])}.")
        said = {name: options[name] for name in about if name in options}
        if not said:
            return cls(missing, constant, **options)
        if isinstance(options.get("reading"), Reading):
            raise InputError(f"options has both a Reading and {next(iter(said))!r}; say it in one of them.")
        rest = {name: value for name, value in options.items() if name not in about}
        return cls(missing, constant, **rest | {"reading": {**(options.get("reading") or {}), **said}})

    @property
    def by_column(self) -> Rules:
        """The rules of single columns and the codes of all, checked."""
        return Rules.of(self.columns, self.missing_codes)

    def reading_of(self, id: str | None) -> Reading:
        """How to read the source, with the name of its id column."""
        return Reading.of(self.reading, id=id, rules=self.by_column)
