"""The [table] part of site.toml: where the table is, what its columns are and how it is read. The site's own decision.

[table]
source = "visits.csv"            # a file, several, or a database
id = "patient"
responses = ["asthma"]
covariates = ["age", "centre"]
missing = "mean"                 # features and covariates; a response is filled only by a rule of its own
missing_codes = [999, -99]       # in every column
separator = ";"                  # and decimal, encoding, query, password_file, dataset, names

[table.columns.centre]           # one column
categorical = true
reference = 3

[table.columns.pets]
merge = { other = ["bird", "ferret"] }   # rare levels as one

[table.columns.siblings]
at_most = 3                      # larger numbers as this one; at_least for smaller ones

[table.columns.pain]
order = ["none", "mild", "severe"]       # read as 1, 2, 3; scores = [0, 1, 3] for other numbers

[table.kinds]                    # responses that are no plain measurements, as study.toml says them
asthma = "binary"
months = { kind = "time", event = "died", horizon = 24, unit = "months" }
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from intarsia.errors import InputError
from intarsia.site.data.column_rules import KNOWN as KNOWN_OF_COLUMN
from intarsia.site.data.column_rules import MISSING, ColumnRule, Rules
from intarsia.site.data.reading import DATABASES
from intarsia.site.data.table_rules import CONSTANT, TableRules
from intarsia.wire.kinds import check_kind
from intarsia.wire.schema import Checker

ROLES = ("features", "responses", "covariates", "ignore")
READING = ("separator", "decimal", "encoding", "query", "password_file", "dataset", "names")
KNOWN = ("source", "id", *ROLES, "missing", "constant", "key", "missing_codes", "columns", "kinds", *READING)
_AT = ("table",)


def table_settings(check: Checker, table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by name; complaints go to `check`. `options` are those of `TableRules` beside missing and constant."""
    check.known(table, _AT, KNOWN)
    out: dict[str, Any] = {}
    if "source" in table:
        several = isinstance(table["source"], list)
        out["source"] = list(check.strings(table, _AT, "source", ())) if several else check.text(table, _AT, "source")
    for key in ("id", "key"):
        if key in table:
            out[key] = check.text(table, _AT, key)
    if "missing" in table:
        out["missing"] = check.choice(table, _AT, "missing", MISSING, "error")
    if "constant" in table:
        out["constant"] = check.choice(table, _AT, "constant", CONSTANT, "error")
    for key in ROLES:
        if key in table:
            out[key] = list(check.strings(table, _AT, key, ()))
    out["kinds"] = _kinds(check, table)
    out["options"] = _options(check, table)
    return out


def _kinds(check: Checker, table: Mapping[str, Any]) -> dict[str, Any]:
    given = table.get("kinds", {})
    if not isinstance(given, dict):
        check.fail((*_AT, "kinds"), 'kinds must be a table, such as kinds = { asthma = "binary" }')
        return {}
    out = {}
    for name, said in given.items():
        try:
            out[name] = check_kind(said)
        except InputError as error:
            check.fail((*_AT, "kinds", name), f"response {name!r}: {error}")
    return out


def _options(check: Checker, table: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    reading = {key: check.text(table, _AT, key) for key in READING if key in table}
    if reading:
        options["reading"] = reading
    if "missing_codes" in table:
        options["missing_codes"] = _codes(check, table, _AT, "missing_codes")
    columns = table.get("columns", {})
    if not isinstance(columns, dict) or not all(isinstance(rule, dict) for rule in columns.values()):
        check.fail((*_AT, "columns"), "columns must be tables, one per column, written [table.columns.NAME]")
    elif columns:
        options["columns"] = {name: _rule(check, name, rule) for name, rule in columns.items()}
    return options


def _rule(check: Checker, name: str, rule: Mapping[str, Any]) -> dict[str, Any]:
    at = (*_AT, "columns", name)
    check.known(rule, at, KNOWN_OF_COLUMN)
    out: dict[str, Any] = {}
    if "categorical" in rule:
        out["categorical"] = check.boolean(rule, at, "categorical", False)
    if "missing" in rule:
        out["missing"] = check.choice(rule, at, "missing", MISSING, "error")
    for key in ("levels", "missing_codes"):
        if key in rule:
            out[key] = _codes(check, rule, at, key)
    if "reference" in rule:
        found = _codes(check, {"reference": [rule["reference"]]}, at, "reference")
        out |= {"reference": found[0]} if found else {}
    out |= {key: rule[key] for key in ("merge", "order", "scores", "at_least", "at_most") if key in rule}
    try:
        ColumnRule.of(name, out)
    except InputError as error:
        check.fail(at, str(error).rstrip("."))
        return {}
    return out


def _codes(check: Checker, table: Mapping[str, Any], at: tuple[str, ...], key: str) -> list[Any]:
    value = table[key]
    codes = value if isinstance(value, list) else [value]
    if not all(isinstance(code, str | int | float) and not isinstance(code, bool) for code in codes):
        check.fail((*at, key), f"{key} must be numbers or texts, such as [999, -99]")
        return []
    return codes


def resolve(folder: Path, source: str | list[str]) -> str | list[str]:
    """A source as site.toml names it, relative paths counted from the site's folder."""
    if isinstance(source, list):
        return [str(resolve(folder, one)) for one in source]
    return source if source.startswith(DATABASES) else str(folder / source)


def resolve_options(folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(options)
    if "password_file" in out.get("reading", {}):
        out["reading"] = {**out["reading"], "password_file": str(folder / out["reading"]["password_file"])}
    return out


def for_new_subjects(rules: TableRules, names: Sequence[str], kept: Mapping[str, Any]) -> TableRules:
    """The rules that also hold for a table of new subjects, which may come in another file and lack some columns.

    A code that means "missing" and a category's rule mean the same there, and where the new table is a database too, its query
    (unless `predict part --query` names another). Categorical columns have the levels that the sketch had (`kept`), whichever of
    them occur among the new subjects.
    """
    columns = {name: rule for name, rule in (rules.columns or {}).items() if any(fnmatchcase(one, name) for one in names)}
    said = Rules.of(columns)
    for name, levels in kept["levels"].items():
        if name in names:
            columns[name] = replace(said.at(name), levels=tuple(levels), reference=kept["reference"].get(name))
    known = rules.reading_of(None)
    reading = replace(known, dataset=None, names=None, id=None, rules=Rules())
    return TableRules(rules.missing, "drop", columns, rules.missing_codes, reading)
