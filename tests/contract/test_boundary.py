"""The trust boundary is the folder layout: server/, wire/, report/ and the server's end of the network never reach site/."""

import ast
from pathlib import Path

import intarsia

PACKAGE = Path(intarsia.__file__).parent
FORBIDDEN = {
    "server": ("site", "carriers"),
    "wire": ("site", "server", "carriers"),
    "privacy": ("site", "server", "carriers"),
    "report": ("site", "carriers"),
    "carriers.flare.server_side": ("site",),
    "carriers.flare.pieces": ("site", "server"),
    "site": ("server", "carriers", "report"),
    "carriers.flare.site_side": ("server", "report"),
}


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


def violations(package: Path) -> list[str]:
    """`a → b → c` for every module of a guarded folder that reaches a forbidden one, directly or through others."""
    known = modules(package)
    # The package's own __init__ only names its exports lazily; it is not a way through the wall.
    graph = {name: imports_of(path, package) & set(known) for name, path in known.items() if name != package.name}
    found = []
    for folder, banned in FORBIDDEN.items():
        walls = tuple(f"{package.name}.{name}" for name in banned)
        for start in (name for name in graph if name.startswith(f"{package.name}.{folder}")):
            seen, queue = {start}, [(start, start)]
            while queue:
                at, way = queue.pop()
                for to in graph.get(at, set()) - seen:
                    seen.add(to)
                    if to.startswith(walls):
                        found.append(f"{way} → {to}")
                    else:
                        queue.append((to, f"{way} → {to}"))
    return found


def test_the_server_and_the_wire_never_reach_a_site() -> None:
    assert len(modules(PACKAGE)) > 10
    assert violations(PACKAGE) == []


def test_the_check_finds_planted_imports(tmp_path: Path) -> None:
    """Direct, relative, from inside a function, by string, and through a third module."""
    package = tmp_path / "intarsia"
    for folder in ("server", "wire", "site", "lab"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "site" / "key.py").touch()
    (package / "lab" / "way.py").write_text("import intarsia.site.key\n")
    planted = {
        "a": "import intarsia.site.key",
        "b": "from intarsia.site import key",
        "c": "from ..site import key",
        "d": "def f():\n    from ..site.key import x",
        "e": "from importlib import import_module\nimport_module('intarsia.site.key')",
        "f": "from intarsia.lab.way import y",
    }
    for name, text in planted.items():
        (package / "server" / f"{name}.py").write_text(text + "\n")
    found = {line.split(" ")[0].rsplit(".", 1)[1] for line in violations(package)}
    assert found == set(planted)
    (package / "server" / "fine.py").write_text("import intarsia.wire\nimport json\n")
    assert not any(line.startswith("intarsia.server.fine") for line in violations(package))


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
    return found


def test_only_the_backend_knows_the_array_library(tmp_path: Path) -> None:
    sampler = PACKAGE / "server" / "sampler"
    outside = [path for path in (PACKAGE / "server").rglob("*.py") if sampler / "backends" not in path.parents]
    assert len(outside) > 10
    assert [line for path in outside for line in array_library_branches(path)] == []
    for bad in (
        "import jax.numpy",
        "if be.kernels is not None:\n    pass",
        "x = 1 if be.name == 'numpy' else 2",
        "if small and KERNELS is not None:\n    pass",
        "if isinstance(be, NumpyBackend):\n    pass",
    ):
        (tmp_path / "bad.py").write_text(bad + "\n")
        assert array_library_branches(tmp_path / "bad.py"), bad


def test_nothing_is_pickled() -> None:
    """No module that crosses the wall, or stands behind it, loads or writes pickles."""
    for folder in ("server", "wire", "site", "carriers"):
        for path in (PACKAGE / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "import pickle" not in text, path
            assert "allow_pickle=True" not in text, path
