"""Habits of the code that a reader relies on: few parameters per function, modules of a few screens, nothing unused, plain
words.
"""

import ast
import re
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "intarsia"
MOST_PARAMETERS = 7

# Settings that people write by name: scikit-learn asks an estimator for one parameter per setting, a site's are the entries of
# site.toml, and a study in one process is started by one call.
SETTINGS = {
    ("carriers/in_process.py", "fit"),
    ("regression.py", "ReducedRankHorseshoe.__init__"),
    ("regression.py", "SparseRegression.__init__"),
    ("site/site.py", "Site.__init__"),
}
# Programs of an accelerator: every array stands for itself, since each is placed there, reused or given up on its own.
PROGRAMS = {
    ("server/sampler/sparse/card_device.py", "open_window"),
    ("server/sampler/sparse/card_device.py", "check"),
    ("server/sampler/sparse/card_device.py", "draw_place"),
    ("server/sampler/sparse/card_device.py", "place_near"),
    ("server/sampler/sparse/card_chain.py", "take_turns"),
}


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
    assert set(found) == SETTINGS | PROGRAMS, found


MOST_LINES = 450
# Five protocols in one class, and a book with all its questions: to be split, not to grow company.
LONGER = {"site/site.py", "privacy/ledger.py"}


def test_a_module_is_read_in_one_go() -> None:
    found = {
        path.relative_to(SOURCE).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")
    }
    assert len(found) > 100
    assert {name: lines for name, lines in found.items() if lines > MOST_LINES and name not in LONGER} == {}


ROOT = SOURCE.parents[1]
# Called by the network engine and by Python's HTTP server, which know them by name.
CALLED_BY_OTHERS = {"start_controller", "stop_controller", "process_result_of_unknown_task", "control_flow", "log_message"}


PAGES = ("docs/**/*.md", "docs/**/*.py", "experiments/**/*.py", "*.md")


def named_once(texts: dict[Path, str], elsewhere: str) -> set[str]:
    """Functions, classes and constants of these modules that nothing but their own definition names."""
    count = Counter(word for text in (*texts.values(), elsewhere) for word in re.findall(r"\w+", text))
    found = set()
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name) and target.id.isupper()}
    return {name for name in found if count[name] == 1 and not name.startswith("__")}


def test_nothing_is_kept_for_the_tests_alone() -> None:
    planted = {Path("a.py"): "LIMIT = 3\n\ndef used(): ...\n\ndef unused(): return used()\n\nclass Idle: ..."}
    assert named_once(planted, "print(LIMIT)") == {"unused", "Idle"}
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    pages = [path for pattern in PAGES for path in ROOT.glob(pattern)]
    assert named_once(texts, "\n".join(path.read_text(encoding="utf-8") for path in pages)) - CALLED_BY_OTHERS == set()


NOUNS = (
    "second|minute|hour|row|block|subject|sweep|site|column|chain|feature|person|query|draw|response|study|run|message|file|step|"
    "thread|core|cell|replicate|iteration|patient|worker|process|entry"
)
SMALL_WORDS = (
    "of|for|to|from|in|at|on|with|as|than|by|is|was|over|or|and|gives?|has|have|makes?|after|before|without|between|under|such|"
    "if|where|when|that|about|through|like|beside"
)
# "one scale a feature", "2,000 results a query", "once a sweep"; "one for a feature" and "two runs a site has" are not meant.
DISTRIBUTIVE = re.compile(
    rf"\b(?:[Oo]ne|two|three|[0-9][0-9,.]*)(?: (?!(?:{SMALL_WORDS})\b)[\w²³-]+){{1,2}} an? (?:{NOUNS})\b"
    rf"(?! (?:of|has|is|at|may|can|to|that)\b)|\b(?:[Oo]nce|[Tt]wice) an? (?:{NOUNS})\b"
)


def test_per_is_written_where_per_is_meant() -> None:
    for planted in ("one scale a feature", "2,000 results a query", "170 million normals a second", "once a sweep"):
        assert DISTRIBUTIVE.search(planted), planted
    for right in ("near one for a feature", "one scale per feature", "after two runs a site has two lines", "once per sweep"):
        assert not DISTRIBUTIVE.search(right), right
    pages = [*SOURCE.rglob("*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.py"), *ROOT.glob("*.md")]
    pages.remove(ROOT / "CHANGELOG.md")  # what it says of past versions stays as it was
    found = [f"{path.name}: {hit[0]}" for path in pages for hit in DISTRIBUTIVE.finditer(path.read_text(encoding="utf-8"))]
    assert found == []


# What a number counts, where the constant's name says it. Of every other one a comment beside it does, or above its paragraph.
UNITS = """
    seconds bytes byte bits rows row columns features responses subjects draws warmup thin chains levels values words characters
    entries arrays numbers members share ratio factor factors sd correlation correlations cosine eigenvalue tolerance fdr m rho
    steps folds shown projections refits probes version schema format exit
"""


def without_unit(text: str) -> set[str]:
    """Constants of a module that are bare numbers, named without a unit and without a comment."""
    lines, found = text.splitlines(), set()
    for node in ast.parse(text).body:
        if not (isinstance(node, ast.Assign) and _is_number(node.value)):
            continue
        paragraph = "\n".join(lines[: node.lineno]).split("\n\n")[-1]
        if "  # " in lines[node.lineno - 1] or re.search(r"^#", paragraph, re.M):
            continue
        names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        found |= {name for name in names if name.isupper() and not set(name.lower().split("_")) & set(UNITS.split())}
    return found


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def test_a_constant_says_what_it_counts() -> None:
    planted = "LIMIT = 3\nLIMIT_SECONDS = 3\nMOST = 4  # names\nON = True\n\n# rows\nPIECE = 2**8\n"
    assert without_unit(planted) == {"LIMIT"}
    found = {f"{path.stem}.{name}" for path in SOURCE.rglob("*.py") for name in without_unit(path.read_text(encoding="utf-8"))}
    assert found == set()
