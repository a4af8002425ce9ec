"""`--kind RESPONSE=KIND,OPTION=VALUE,…` of `intarsia study new`: kinds of responses from the command line into study.toml."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.errors import InputError
from intarsia.wire.kinds import OPTIONS, check_kind

HELP = (
    "what a response is, once for each that is no measurement: asthma=binary, months=time,horizon=24,unit=months, "
    "admissions=count, stage=ordinal,order=none/mild/severe (docs/outcomes.md)"
)
_LISTS = ("order", "scores")  # values separated by slashes
_NUMBERS = ("horizon", "scores", "cap")
_AT_THE_SITE = ("event", "yes")


def kinds_by_site(texts: Sequence[str], responses: Mapping[str, Sequence[str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Of every site the kinds of its responses, as study.toml has them; InputError where one cannot be."""
    owner = {label: site for site, labels in responses.items() for label in labels}
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for text in texts:
        label, found, said = text.partition("=")
        if not found or not said:
            raise InputError(f"Write --kind RESPONSE=KIND, such as asthma=binary; {text!r} has no '='.")
        if label not in owner:
            raise InputError(f"--kind speaks of {label!r}, which is not among the responses. Name it: --responses SITE={label}.")
        out.setdefault(owner[label], {})[label] = _said(label, said)
    return out


def _said(label: str, text: str) -> dict[str, Any]:
    kind, *options = text.split(",")
    said: dict[str, Any] = {"kind": kind}
    for option in options:
        name, found, value = option.partition("=")
        if not found:
            raise InputError(f"--kind {label}: options are written NAME=VALUE; {option!r} has no '='.")
        if name in _AT_THE_SITE and name in OPTIONS.get(kind, ()):
            raise InputError(f"--kind {label}: {name} is said by the site that owns the response: [table.kinds] in site.toml.")
        said[name] = [_value(name, one) for one in value.split("/")] if name in _LISTS else _value(name, value)
    try:
        return check_kind(said)
    except InputError as error:
        raise InputError(f"--kind {label}: {error}.") from None


def _value(name: str, text: str) -> Any:
    if name not in _NUMBERS:
        return text
    try:
        return float(text)
    except ValueError:
        return text


def block(kinds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The lines of a site's table in study.toml."""
    lines = ["[site.kinds]"] if kinds else []
    for label, said in kinds.items():
        table = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in said.items())
        lines.append(f"{json.dumps(label, ensure_ascii=False)} = {{ {table} }}")
    return lines
