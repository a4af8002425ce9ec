"""The trust boundary is the folder layout: every room of the package lists the rooms it may import; nothing else is let through.

Because every room is listed, no way leads through a third one: what a room may not import, it cannot reach.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import intarsia

PACKAGE = Path(intarsia.__file__).parent

PLAIN = {"errors", "files", "inverse_normal", "compilation"}  # hold nothing of anybody's; import nothing but each other
SERVER_END = PLAIN | {"wire", "privacy", "server", "progress"}
SITE_END = PLAIN | {"wire", "privacy", "site"}
EVERYTHING = SERVER_END | SITE_END | {"carriers", "report", "regression", "estimator", "prepared"}
# Modules that start, harden and certify the engine: they see configurations and certificates, nothing of a study.
STARTERS = ("start_job", "start_server", "start_site")
ENGINE = {
    f"carriers.flare.{name}"
    for name in ("pieces", "certificates", "requests", "hardening", "guard", "jobs", "launcher", "tidy", *STARTERS)
}

# Room -> the rooms its modules may import, beside their own. A module of carriers/ is a room of its own: each stands on one
# side of the wall, or (in_process, pipes) runs both sides on the machine of somebody who has all the data.
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(PLAIN, PLAIN),
    "wire": PLAIN,
    "privacy": PLAIN | {"wire"},
    "site": SITE_END,
    "server": PLAIN | {"wire", "privacy"},
    "progress": PLAIN | {"server"},
    "report": SERVER_END,
    "carriers": set(),
    "carriers.files": SERVER_END,
    "carriers.by_letters": SERVER_END | {"carriers.files"},
    "carriers.in_process": SERVER_END | SITE_END | {"carriers.go_on", "carriers.notebook"},
    "carriers.go_on": SERVER_END | SITE_END,
    "carriers.all_sites": SERVER_END | SITE_END | {"carriers.in_process", "carriers.notebook"},
    "carriers.notebook": PLAIN | {"wire"},
    "carriers.pipes": SERVER_END | SITE_END,
    "carriers.flare": PLAIN,
    **dict.fromkeys(ENGINE, PLAIN | {"wire"} | ENGINE),
    "carriers.flare.engine": SERVER_END | ENGINE,
    "carriers.flare.server_side": SERVER_END | ENGINE,
    "carriers.flare.network_study": SERVER_END | {"carriers.flare.engine"},
    "carriers.flare.site_side": SITE_END | ENGINE,
    "prepared": SERVER_END | SITE_END,
    "estimator": SERVER_END | SITE_END | {"prepared"},
    "regression": SERVER_END | SITE_END | {"prepared", "estimator"},
    "demo": EVERYTHING,
    "cli": EVERYTHING | {"demo"},
    "__main__": {"cli"},
}
# The rooms that never see raw data, ids or the key, and the walls they stop at.
BLIND = sorted(room for room, may in MAY_IMPORT.items() if "site" not in may and room not in ("site", "__main__"))


def imports_of(path: Path, package: Path) -> set[str]:
    """Modules of the package a file imports, anywhere in it; a string that names one counts too (import_module)."""
    parts = path.relative_to(package).with_suffix("").parts
    here = [package.name, *(parts[:-1] if parts[-1] == "__init__" else parts)]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + (path.name == "__init__.py")] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return {name for name in found if name.startswith(f"{package.name}.")}


def modules(package: Path) -> dict[str, Path]:
    out = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        out[".".join([package.name, *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    return out


def room_of(module: str) -> str:
    """`intarsia.server.sampler.sweep` -> `server`; a module of carriers/ is its own room."""
    _, first, *rest = module.split(".")
    return ".".join([first, *rest]) if first == "carriers" else first


def violations(package: Path) -> list[str]:
    """`a → b` for every import that crosses a wall, and the modules of which nobody has said in which room they are."""
    known = modules(package)
    known.pop(package.name, None)  # the package's own __init__ only names its exports, and loads them when they are asked for
    found = [f"{name}: say in MAY_IMPORT which side of the wall it is on" for name in known if room_of(name) not in MAY_IMPORT]
    for name, path in known.items():
        room = room_of(name)
        may = MAY_IMPORT.get(room, set()) | {room}
        for to in sorted(imports_of(path, package) & set(known)):
            there = room_of(to)
            if there not in may and not ("carriers" in may and there.startswith("carriers.")):
                found.append(f"{name} → {to}")
    return found


def test_no_room_imports_what_it_may_not_see() -> None:
    assert len(modules(PACKAGE)) > 100
    assert violations(PACKAGE) == []


def test_every_listed_room_exists() -> None:
    rooms = {room_of(name) for name in modules(PACKAGE) if name != "intarsia"}
    assert set(MAY_IMPORT) <= rooms | PLAIN


def test_no_room_reaches_another_through_a_third() -> None:
    """The table itself: whatever a blind room may import may not see a site either."""
    for room in BLIND:
        assert all(MAY_IMPORT[other].isdisjoint({"site"}) for other in MAY_IMPORT[room]), room
    assert {"server", "wire", "privacy", "report", "carriers.flare.server_side", "carriers.flare.pieces"} <= set(BLIND)
    assert not {"server", "report", "carriers"} & MAY_IMPORT["site"]
    assert "server" not in MAY_IMPORT["carriers.flare.site_side"]


WAYS = {
    "plain": "import intarsia.{dotted}",
    "from": "from intarsia.{folder} import {module}",
    "inside a function": "def f():\n    from intarsia.{dotted} import x",
    "by its name": "from importlib import import_module\nimport_module('intarsia.{dotted}')",
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package with every room, an empty module in each."""
    package = tmp_path / "intarsia"
    for room in MAY_IMPORT:
        (package / room.replace(".", "/")).mkdir(parents=True, exist_ok=True)
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").touch()
        if folder != package and "carriers" not in folder.parts:
            (folder / "module.py").touch()
    assert violations(package) == []
    return package


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("room", BLIND)
def test_a_planted_import_of_a_site_is_found(room: str, way: str, house: Path) -> None:
    planted = house / room.replace(".", "/") / "__init__.py"
    planted.write_text(WAYS[way].format(dotted="site.module", folder="site", module="module") + "\n")
    assert f"intarsia.{room} → intarsia.site.module" in violations(house)


@pytest.mark.parametrize("room", ["site", "carriers.flare.site_side"])
def test_a_planted_import_of_the_server_is_found(room: str, house: Path) -> None:
    planted = house / room.replace(".", "/") / "__init__.py"
    planted.write_text("from intarsia.server import module\n")
    assert f"intarsia.{room} → intarsia.server.module" in violations(house)


def test_relative_imports_detours_and_new_rooms_are_found(house: Path) -> None:
    (house / "server" / "module.py").write_text("from ..site import module\n")
    (house / "wire" / "module.py").write_text("import intarsia.demo.module\n")  # demo may see a site: not a way round
    (house / "attic").mkdir()
    (house / "attic" / "__init__.py").write_text("import intarsia.site.module\n")
    found = violations(house)
    assert "intarsia.server.module → intarsia.site.module" in found
    assert "intarsia.wire.module → intarsia.demo.module" in found
    assert any(line.startswith("intarsia.attic: say") for line in found)
    (house / "server" / "module.py").write_text("import json\nimport intarsia.wire.module\n")
    assert not any(line.startswith("intarsia.server") for line in violations(house))


def test_nothing_of_a_site_is_loaded_with_the_blind_rooms() -> None:
    """The same by running it: every module of wire/, privacy/, server/ and report/ in one fresh process."""
    names = [name for name in modules(PACKAGE) if name.split(".")[1:2] in (["wire"], ["privacy"], ["server"], ["report"])]
    names = [name for name in names if not name.endswith("jax")]  # an extra
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
    code += "print([name for name in sys.modules if name.startswith('intarsia.site') or name.startswith('intarsia.carriers')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(names) > 40
    assert done.stdout.strip() == "[]"


def array_library_branches(path: Path) -> list[str]:
    """Where a module imports an accelerator's array library, or asks which one it was given (its name, its kernels, its type)."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: set[str] = set()
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = {node.module.split(".")[0]}
        if names & {"jax", "jaxlib", "cupy", "torch"}:
            found.append(f"{path.name}: imports {', '.join(sorted(names))}")
        asked = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
        asked += node.values if isinstance(node, ast.BoolOp) else []
        for test in asked:
            text = ast.unparse(test)
            if any(mark in text for mark in (".kernels", "be.name", "KERNELS", "Backend)", "be.xp is", "xp is ")):
                found.append(f"{path.name}: {text}")
        if isinstance(node, ast.Compare):
            sides = {side.value for side in (node.left, *node.comparators) if isinstance(side, ast.Constant)}
            if sides & {"jax", "numpy", "cupy", "torch"}:
                found.append(f"{path.name}: {ast.unparse(node)}")
    return found


def test_only_the_program_for_accelerators_knows_their_array_library(tmp_path: Path) -> None:
    program = set((PACKAGE / "server" / "sampler" / "sparse").glob("card*.py"))
    outside = [path for path in PACKAGE.rglob("*.py") if path not in program]
    assert len(outside) > 100
    assert [line for path in outside for line in array_library_branches(path)] == []
    for bad in (
        "import jax.numpy",
        "if be.kernels is not None:\n    pass",
        "x = 1 if be.name == 'numpy' else 2",
        "if small and KERNELS is not None:\n    pass",
        "if isinstance(be, NumpyBackend):\n    pass",
        "together = asked['engine'] == 'jax'",
    ):
        (tmp_path / "bad.py").write_text(bad + "\n")
        assert array_library_branches(tmp_path / "bad.py"), bad


def test_nothing_is_pickled() -> None:
    """No module that crosses the wall, or stands behind it, loads or writes pickles."""
    for folder in ("server", "wire", "site", "carriers"):
        files = {path: path.read_text(encoding="utf-8") for path in (PACKAGE / folder).rglob("*.py")}
        assert files, folder
        pickling = re.compile(r"\b(import|from) +(pickle|cloudpickle|dill|joblib|shelve)\b|allow_pickle *= *True")
        assert [path for path, text in files.items() if pickling.search(text)] == []


def test_a_process_that_only_answers_loads_no_library_of_the_fit() -> None:
    """A study over the network starts eight processes: what they load before their first answer is paid eight times."""
    for module in ("intarsia.carriers.flare.site_side", "intarsia.carriers.flare.server_side"):
        code = f"import sys, {module}; print([name for name in ('scipy', 'pandas', 'xarray', 'numba') if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]", module
