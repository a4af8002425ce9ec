"""Which column of a table plays which role: id, feature, response, covariate, ignored; by name or by pattern."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from intarsia.errors import InputError
from intarsia.wire.plain import meant, plural, some

Wanted = Sequence[str] | str | None
_ROW_NUMBERS = re.compile(r"__index_level_\d+__")  # how pandas keeps an index without a name in a Parquet or Feather file


@dataclass(frozen=True)
class Roles:
    """The table's own column names by role, each in the table's order."""

    features: tuple[str, ...] = ()
    responses: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Features, then responses, then covariates: the order of the columns in every block."""
        return self.features + self.responses + self.covariates


def assign(
    names: Sequence[str], *, id: str | None, features: Wanted, responses: Wanted, covariates: Wanted, ignore: Wanted
) -> Roles:
    """Each column's role. Without a list of features every column that has no other role is one."""
    if id is not None and id not in names:
        raise _no_column(id, names, "id")
    taken = {id} if id is not None else set()
    taken |= set(match(ignore, names, "ignored"))
    chosen: dict[str, tuple[str, ...]] = {}
    for role, wanted in (("response", responses), ("covariate", covariates)):
        found = match(wanted, names, role)
        if role == "covariate":
            _one_role(wanted, found, set(chosen["response"]))
        chosen[role] = tuple(name for name in found if name not in taken)
        taken |= set(chosen[role])
    found = match("*" if features is None else features, names, "feature")
    if features is not None and not isinstance(features, str):
        _one_role(features, found, taken)
    roles = Roles(tuple(name for name in found if name not in taken), chosen["response"], chosen["covariate"])
    only_ids = id is not None and features is not None and not features
    if not roles.features and not roles.responses and not roles.covariates and not only_ids:
        raise InputError("No column is left as feature, response or covariate. Give at least one.")
    return roles


def check_roles(data: Any, roles: Mapping[str, Any], names: Sequence[str] | None = None) -> None:
    """Refuse roles of columns that a table in memory has not; a file or a database is looked at when it is opened."""
    known = _names(data, names)
    if known is None or not all(isinstance(name, str) for name in known):
        return
    id = roles["id"]
    if any(_ROW_NUMBERS.fullmatch(word) for word in _words(roles)):
        return  # an index of pandas without a name: it is a column once the table is opened
    assign(known, **{**roles, "id": id if isinstance(id, str) else None})


def _words(roles: Mapping[str, Any]) -> list[str]:
    said = [[wanted] if isinstance(wanted, str) else wanted for wanted in roles.values()]
    return [word for words in said if isinstance(words, list | tuple) for word in words if isinstance(word, str)]


def _names(data: Any, names: Sequence[str] | None) -> list[str] | None:
    if isinstance(data, Mapping):
        return list(data)
    if hasattr(data, "column_names"):  # Arrow
        return list(data.column_names)
    if hasattr(data, "columns"):  # pandas, which brings its index too, and polars
        index = [name for name in getattr(getattr(data, "index", None), "names", ()) if name is not None]
        return [*data.columns, *index]
    return None if names is None or not hasattr(data, "shape") else list(names)


def _one_role(wanted: Wanted, found: Sequence[str], taken: set[str]) -> None:
    """Refuse a column that is named outright (not by a pattern) for two roles."""
    named = {wanted} if isinstance(wanted, str) else set(wanted or ())
    twice = sorted(named & set(found) & taken)
    if twice:
        raise InputError(f"Columns with two roles: {some(twice)}. Give each column one role.")


def match(wanted: Wanted, names: Sequence[str], role: str) -> list[str]:
    """Columns that a role names, exactly or by a pattern such as `snp_*`, in the table's order.

    An index of pandas without a name is no variable: it has a role only where it is named outright.
    """
    patterns = [wanted] if isinstance(wanted, str) else list(wanted or ())
    known, chosen = set(names), set[str]()
    open_to_patterns = [name for name in names if not _ROW_NUMBERS.fullmatch(name)]
    for pattern in patterns:
        found = {pattern} if pattern in known else {name for name in open_to_patterns if fnmatchcase(name, pattern)}
        if not found and (column := pattern.split("=")[0]) in known:
            found = {column}  # an indicator's label names its column
        if not found:
            raise _no_column(pattern, names, role)
        chosen |= found
    return [name for name in names if name in chosen]


def _no_column(name: str, names: Sequence[str], role: str) -> InputError:
    """With the column that was probably meant, and those there are."""
    return InputError(f"No column {name!r} for the role {role}{meant(name, names)} The table has {those_there(names)}.")


def those_there(names: Sequence[str]) -> str:
    """The columns of a table, for somebody who named one that it has not."""
    only = "" if len(names) > 1 else " (one only: say the separator?)"
    return f"{plural(len(names), 'column')}{only}: {some(names, 10)}"
