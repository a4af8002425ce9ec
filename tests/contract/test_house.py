"""Habits of the code that a reader relies on: few parameters per function, one module per name."""

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "intarsia"
MOST_PARAMETERS = 7

# Entry points whose settings are known by name from the field, and compiled kernels, which take arrays alone.
SETTINGS = {
    ("regression.py", "ReducedRankHorseshoe.__init__"),
    ("site/site.py", "Site.__init__"),
    ("site/data/table.py", "Table.open"),
    ("server/sampler/sample.py", "sample"),
    ("server/sampler/private.py", "sample"),
}
KERNELS = {"server/sampler/kernels.py", "server/results/compiled_diagnostics.py", "site/sketch/stream_compiled.py"}


def crowded(text: str) -> dict[str, int]:
    """Functions of a module with more parameters than a reader can hold, self and cls not counted."""
    found: dict[str, int] = {}

    def look(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                a = child.args
                names = [arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
                count = len(names) - (names[:1] in (["self"], ["cls"]))
                if count > MOST_PARAMETERS:
                    found[owner + child.name] = count
                look(child, f"{owner}{child.name}.")
            else:
                look(child, f"{owner}{child.name}." if isinstance(child, ast.ClassDef) else owner)

    look(ast.parse(text), "")
    return found


def test_a_planted_function_of_eight_parameters_is_found() -> None:
    seven = "class Site:\n    def send(self, a, b, c, d, *, e, f, g): ..."
    assert crowded(seven) == {}
    assert crowded(seven.replace("g)", "g, h)")) == {"Site.send": 8}
    assert crowded("def outer():\n    if True:\n        async def inner(a, b, c, d, e, f, g, h, i): ...") == {"outer.inner": 9}


def test_functions_take_values_with_names_instead_of_eight_parameters() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), name): count
        for path in sorted(SOURCE.rglob("*.py"))
        for name, count in crowded(path.read_text(encoding="utf-8")).items()
    }
    assert {where: count for where, count in found.items() if where not in SETTINGS and where[0] not in KERNELS} == {}
    assert set(found) >= SETTINGS, "an entry of the list is no longer needed: take it out"


# Names of modules that occur twice because the folder makes each plain: a command and what it calls, a message and its
# sender, methods compared in the lab and the report's paragraph on methods. A name is added here with its reason or changed.
TWICE = {
    "base", "check", "fit", "key", "kinds", "methods", "paper", "prediction", "private", "protocol", "shares",
    "site", "steps", "study",
}  # fmt: skip


def test_a_new_module_does_not_take_the_name_of_another() -> None:
    names = Counter(path.stem for path in SOURCE.rglob("*.py") if path.stem != "__init__")
    assert {name for name, count in names.items() if count > 1} == TWICE
