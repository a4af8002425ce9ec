"""A dataclass as arrays and words, and back, by its fields: how an assessment is kept in a posterior's file.

Arrays become variables named by their path (`findings.pip`); their dimensions are those of the field's type,
`Annotated[Array, "feature", "response"]`. Arrays within a tuple of dataclasses are few numbers, and stay among the words.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

Variables = dict[str, tuple[tuple[str, ...], Any]]
_ARRAY, _LIST = "@array", "@list"


def stored(value: Any) -> tuple[Variables, Any]:
    """The arrays within a dataclass, and all else as JSON knows it."""
    arrays: Variables = {}

    def words(one: Any, hint: Any, name: str) -> Any:
        if isinstance(one, np.ndarray):
            dims = hint.__metadata__ if get_origin(hint) is Annotated else tuple(f"{name}_{k}" for k in range(one.ndim))
            arrays[name] = (dims, one.astype(np.int8) if one.dtype == bool else one)
            return {_ARRAY: name}
        if is_dataclass(one):
            hints = get_type_hints(type(one), include_extras=True)
            return {f.name: words(getattr(one, f.name), hints[f.name], f"{name}.{f.name}".lstrip(".")) for f in fields(one)}
        return _within(one)

    return arrays, words(value, None, "")


def _within(one: Any) -> Any:
    """A value in words, arrays and all."""
    if isinstance(one, np.ndarray):
        return {_LIST: one.tolist(), "type": str(one.dtype)}
    if is_dataclass(one):
        return {f.name: _within(getattr(one, f.name)) for f in fields(one)}
    if isinstance(one, tuple | list):
        return [_within(each) for each in one]
    return one.item() if isinstance(one, np.generic) else one


def restored(hint: Any, arrays: Variables, words: Any) -> Any:
    """The value again; the types of the fields say what the words stand for."""
    if isinstance(words, dict) and _ARRAY in words:
        values = arrays[words[_ARRAY]][1]
        return values.astype(bool) if np.bool_ in _parts(hint) else values
    if isinstance(words, dict) and _LIST in words:
        return np.asarray(words[_LIST], dtype=words["type"])
    of: Any = next((one for one in _parts(hint) if isinstance(one, type) and is_dataclass(one)), None)
    if isinstance(words, list):
        back = [restored(of, arrays, each) for each in words]
        return tuple(back) if get_origin(hint) is tuple else back
    if of is None or words is None:
        return words
    hints = get_type_hints(of, include_extras=True)
    return of(**{f.name: restored(hints[f.name], arrays, words[f.name]) for f in fields(of) if f.name in words})


def _parts(hint: Any) -> Iterator[Any]:
    """Every type that a hint is made of."""
    yield hint
    for one in get_args(hint):
        yield from _parts(one)
