"""Which of the studies that a site has accepted a command is about."""

from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import InputError
from intarsia.wire.plain import meant

if TYPE_CHECKING:
    from intarsia.wire.study import Study

HELP = "which accepted study: its id, the beginning of its hash, or both as liver-1a2b3c4d"


def accepted(folder: Path, name: str | None = None) -> "list[Study]":
    """The accepted studies, or those that go by this name; a name that fits none is refused with the names there are."""
    from intarsia.wire.study import Study

    studies = [Study.load(path) for path in sorted((folder / "accepted").glob("*.toml"))]
    found = [study for study in studies if name is None or is_called(study, name)]
    if name is not None and not found:
        raise InputError(_which(folder, studies, 0, name))
    return found


def the_one(folder: Path, name: str | None = None) -> "Study":
    """The one accepted study, or the one that goes by this name."""
    found = accepted(folder, name)
    if len(found) != 1:
        raise InputError(_which(folder, accepted(folder), len(found)))
    return found[0]


def is_called(study: "Study", name: str) -> bool:
    """Whether a study goes by this name: its id, the beginning of its hash, or both with a hyphen, as folders have it."""
    short = f"{study.id}-{study.hash}"
    return (
        name == study.id
        or (len(name) >= 4 and study.hash.startswith(name))
        or (len(name) > len(study.id) + 1 and short.startswith(name))
    )


def _which(folder: Path, studies: "list[Study]", fit: int, name: str | None = None) -> str:
    if not studies:
        return f"{folder} has accepted no study yet. Begin with: intarsia site accept {folder} study.toml"
    have = ", ".join(f"{study.id}-{study.hash[:8]}" for study in studies)
    hint = f" One that was given up is forgotten by: intarsia site forget {folder} --study NAME" if fit > 1 else ""
    if name is not None:
        known = [word for study in studies for word in (study.id, f"{study.id}-{study.hash[:8]}")]
        return f"No study accepted here is called {name!r}{meant(name, known)} Accepted here, by the names --study takes: {have}."
    return f"Say which study with --study: {fit} fit. Accepted here, by the names --study takes: {have}.{hint}"
