"""A REDCap data dictionary as the [table] part of a new site.toml: which columns stay here, which are categories or grades, which
codes mean "missing". The export is the raw one (codes, not labels), as CSV.

Nothing leaves that nobody thought about: identifiers, dates, free text, REDCap's own columns and questions that were asked
only of some are put under `ignore`, each with the reason beside it. What was guessed (that categories are in order) is said.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from intarsia.errors import InputError
from intarsia.wire.plain import plural, some

# A dictionary as the project's page writes it, and as the API does.
_NAMES = {
    "name": ("Variable / Field Name", "field_name"),
    "type": ("Field Type", "field_type"),
    "label": ("Field Label", "field_label"),
    "choices": ("Choices, Calculations, OR Slider Labels", "select_choices_or_calculations"),
    "validation": ("Text Validation Type OR Show Slider Number", "text_validation_type_or_show_slider_number"),
    "identifier": ("Identifier?", "identifier"),
    "branching": ("Branching Logic (Show field only if...)", "branching_logic"),
    "matrix": ("Matrix Group Name", "matrix_group_name"),
}
_NEEDED = ("name", "type", "label", "choices")
_NO_ANSWER = re.compile(
    r"unknown|refuse|declin|prefer not|not to (say|answer)|(don.?t|do not) know|no answer|not asked|missing|"
    r"not applicable|^n/?a$",
    re.IGNORECASE,
)
_GRADES = re.compile(
    r"\b(never|rarely|sometimes|often|always|not at all|several days|nearly every day|none|mild|moderate|severe|poor|excellent|"
    r"(strongly|somewhat) (dis)?agree|very|extremely|a little|daily|weekly|monthly|low|high)\b",
    re.IGNORECASE,
)
_OWN = re.compile(r"redcap_\w+|\w+_complete|\w+_timestamp")  # columns that REDCap adds to an export
_NOT_LETTERS = re.compile(r"[^a-z0-9_]")
_MOST_LABEL = 70  # characters of a question in a comment


class Choice(NamedTuple):
    code: str
    label: str

    @property
    def no_answer(self) -> bool:
        return bool(_NO_ANSWER.search(self.label))


@dataclass(frozen=True)
class Field:
    """One line of the dictionary."""

    name: str
    type: str
    label: str
    choices: tuple[Choice, ...] = ()
    validation: str = ""
    identifier: bool = False
    branching: str = ""
    matrix: str = ""

    @property
    def answers(self) -> tuple[Choice, ...]:
        return tuple(choice for choice in self.choices if not choice.no_answer)

    @property
    def no_answers(self) -> tuple[str, ...]:
        return tuple(choice.code for choice in self.choices if choice.no_answer)

    @property
    def ordered(self) -> bool:
        """Whether the answers are grades: numbers that never fall, and of a matrix, from 0 on, or in words of more and less."""
        codes = [_number(choice.code) for choice in self.answers]
        if len(codes) < 3 or any(code is None for code in codes) or codes != sorted(set(codes)):  # type: ignore[type-var]
            return False
        words = sum(bool(_GRADES.search(choice.label)) for choice in self.answers)
        return bool(self.matrix) or words >= 2

    def columns(self) -> tuple[str, ...]:
        """What an export calls it: a checkbox has a column for each choice."""
        if self.type != "checkbox":
            return (self.name,)
        return tuple(self.box(choice) for choice in self.choices)

    def box(self, choice: Choice) -> str:
        return f"{self.name}___{_NOT_LETTERS.sub('_', choice.code.lower())}"

    def stays(self) -> str:
        """Why it should stay at the site, or ""."""
        if self.identifier:
            return "marked as an identifier"
        if self.type == "text" and not self.validation.startswith(("number", "integer")):
            return self.validation.split("_")[0].replace("datetime", "date") or "free text"
        if self.type in ("notes", "file", "signature", "sql"):
            return {"notes": "free text", "sql": "a list from the database"}.get(self.type, "a file")
        return f"asked only if {_short(self.branching)}" if self.branching else ""


@dataclass
class Described:
    """What the dictionary says of a table, as lines of site.toml."""

    id: str
    ignore: dict[str, str] = field(default_factory=dict)  # column, why
    kinds: dict[str, str] = field(default_factory=dict)  # response, as TOML
    rules: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def ignored(self) -> str:
        lines = [f"  {_toml(name)},  # {reason}" if reason else f"  {_toml(name)}," for name, reason in self.ignore.items()]
        return "[\n" + "\n".join(lines) + "\n]" if lines else "[]"

    def kinds_line(self) -> str:
        return f"kinds = {{ {', '.join(f'{_toml(name)} = {kind}' for name, kind in self.kinds.items())} }}" if self.kinds else ""

    def summary(self) -> list[str]:
        shown = ", ".join(f"{count:,} {what}" for what, count in self.counts.items())
        return [
            f"dictionary   {shown}",
            f"             why {plural(len(self.ignore), 'column')} should stay here, and what was guessed, stands in site.toml",
        ]


def read_dictionary(path: Path) -> list[Field]:
    """The dictionary's lines; a descriptive text is no field."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read as a REDCap data dictionary ({type(error).__name__}). It is the CSV file of Project Setup › "
            "Data Dictionary › Download, in UTF-8."
        ) from None
    rows = list(csv.reader(text.splitlines(keepends=True)))
    at = {key: rows[0].index(name) for key, names in _NAMES.items() for name in names if rows and name in rows[0]}
    missing = [_NAMES[key][0] for key in _NEEDED if key not in at]
    if missing:
        raise InputError(
            f"{path} is no REDCap data dictionary: it has no column {some([repr(name) for name in missing])}. "
            "Download it from Project Setup › Data Dictionary."
        )

    def cell(row: Sequence[str], key: str) -> str:
        return row[at[key]].strip() if key in at and at[key] < len(row) else ""

    fields = [
        Field(
            cell(row, "name"), cell(row, "type"), re.sub(r"<[^>]*>", "", cell(row, "label")),
            _choices(cell(row, "type"), cell(row, "choices")), cell(row, "validation"), cell(row, "identifier").lower() == "y",
            cell(row, "branching"), cell(row, "matrix"),
        )
        for row in rows[1:] if cell(row, "name") and cell(row, "type") != "descriptive"
    ]  # fmt: skip
    if not fields:
        raise InputError(f"{path} is a REDCap data dictionary without a field.")
    return fields


def describe(
    fields: Sequence[Field], columns: Sequence[str], outcomes: Collection[str], covariates: Collection[str]
) -> Described:
    """What site.toml should say of a table with these columns; outcomes and covariates that were named never stay here."""
    known = {name: one for one in fields for name in one.columns()}
    out = Described(fields[0].name)
    if out.id not in columns:
        raise InputError(
            f"The table has no column {out.id!r}, the record id by the dictionary; it begins with {some(columns, 4)}. "
            "Export the data raw (codes, not labels), as CSV."
        )
    named = {*outcomes, *covariates}
    for name in columns:
        if name == out.id:
            continue
        one = known.get(name)
        reason = _stays(one, name)
        if reason and name not in named:
            out.ignore[name] = reason
            out.counts["asked only of some" if reason.startswith("asked") else "to stay here"] += 1
        elif one is not None:
            out.counts[_said(out, one, name, outcome=name in outcomes)] += 1
    absent = [one.name for one in fields if not set(one.columns()) & set(columns)]
    if absent:
        out.counts["not in the table"] = len(absent)
    return out


def _stays(one: Field | None, name: str) -> str:
    if one is None:
        return "REDCap's own" if _OWN.fullmatch(name) else "not in the dictionary"
    if one.type == "checkbox" and any(one.box(choice) == name and choice.no_answer for choice in one.choices):
        return "ticked where there was no answer"
    return one.stays()


def _said(out: Described, one: Field, name: str, outcome: bool) -> str:
    """Write the column's rule; return what it was taken as."""
    rule, kind = [], "number"
    if one.type in ("yesno", "truefalse", "checkbox"):
        kind = "yes or no"
        if outcome:
            out.kinds[name] = '"binary"'
    elif one.type in ("radio", "dropdown"):
        kind = "in order" if one.ordered else "category"
        codes = [choice.code for choice in one.answers]
        listed = ", ".join(map(_toml_code, codes))
        if outcome and (one.ordered or len(codes) == 2):
            out.kinds[name] = f'{{ kind = "ordinal", order = [{listed}] }}' if one.ordered else '"binary"'
        elif one.ordered:
            rule += [f"order = [{listed}]", f"scores = [{listed}]"]
        elif not outcome:
            rule += ["categorical = true"]
        rule += [f"missing_codes = [{', '.join(map(_toml_code, one.no_answers))}]"] if one.no_answers else []
        answers = "; ".join(f"{choice.code} {choice.label}" for choice in one.choices)
        said = f"# {_short(one.label)}: {_short(answers, 200)}"
        out.rules.append("\n".join([f"[table.columns.{name}]", said, *rule]))
    return kind


def _choices(type: str, text: str) -> tuple[Choice, ...]:
    if type not in ("radio", "dropdown", "checkbox"):
        return ()
    parts = (part.partition(",") for part in text.split("|"))
    return tuple(Choice(code.strip(), re.sub(r"<[^>]*>", "", label).strip()) for code, _, label in parts if code.strip())


def _number(code: str) -> float | None:
    return float(code) if re.fullmatch(r"-?\d+(\.\d+)?", code) else None


def _toml(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_code(code: str) -> str:
    plain = re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", code)
    return code if plain else _toml(code)


def _short(text: str, most: int = _MOST_LABEL) -> str:
    line = " ".join("".join(_printable(text)).split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def _printable(text: str) -> Iterator[str]:
    return (letter if letter.isprintable() else " " for letter in text)
