"""A study as the text of a study.toml, for studies made in Python; written ones keep their comments."""

import json
from typing import Any

from intarsia.wire.study import Study


def dump(study: Study) -> str:
    """A study as TOML text (for studies made in Python; written ones keep their comments)."""
    return _toml(study.to_dict())


def _toml(content: dict[str, Any], prefix: str = "") -> str:
    plain = {k: v for k, v in content.items() if not isinstance(v, dict) and not _tables(v)}
    lines = [f"{_key(k)} = {json.dumps(v, ensure_ascii=False)}" for k, v in plain.items()]
    for k, v in content.items():
        if isinstance(v, dict):
            lines += ["", f"[{prefix}{_key(k)}]", _toml(v, f"{prefix}{_key(k)}.")]
        elif _tables(v):
            for table in v:
                lines += ["", f"[[{prefix}{_key(k)}]]", _toml(table, f"{prefix}{_key(k)}.")]
    return "\n".join(lines) + "\n"


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)
