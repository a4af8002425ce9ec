"""The documents are true: their Python runs, their commands exist, their links hold, and the public names are in order."""

import argparse
import functools
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import intarsia
from intarsia.cli import COMMANDS, build_parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHORT = {"draws": 120, "warmup": 120, "chains": 2, "thin": 1, "seed": 1}

# What a page takes as given before its first block.
GIVEN = {
    "selection.md": "from tests.reports import made_up\nposterior, joined, _C = made_up()\nX = joined.X",
    "criticism.md": """
import numpy as np
from intarsia import ReducedRankHorseshoe
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 6))
Y = np.column_stack([X[:, 0], X[:, 1]]) + rng.normal(size=(60, 2))
run = {"draws": 80, "warmup": 60, "chains": 2, "thin": 1, "random_state": 0}
model = ReducedRankHorseshoe(**run).fit(X, Y)
smaller = ReducedRankHorseshoe(**run).fit(X[:, 1:], Y)
""",
    "covariates.md": "",
    "screened.md": "",
    "sketch.md": """
import numpy as np, pandas as pd
from intarsia import SketchKey
from tests.federation import study as make_study
rng = np.random.default_rng(0)
def frame(n):
    return pd.DataFrame(rng.normal(size=(n, 3)), columns=["bmi", "age", "hba1c"])
frame(900).assign(patient=[f"P{i}" for i in range(900)]).to_parquet("clinic.parquet")
frame(30_000).to_parquet("north.parquet")
frame(20_000).to_parquet("south.parquet")
key, study = SketchKey.new(), make_study()
key.save("study.key")
""",
    "tables.md": """
import numpy as np, pandas as pd
rng, n = np.random.default_rng(0), 300
visits = pd.DataFrame({"patient": range(n), "fev1": rng.normal(3, 1, n), "age": rng.normal(50, 9, n)})
visits["bmi"] = rng.normal(25, 3, n)
visits["centre"], visits["asthma"] = rng.integers(1, 7, n), rng.choice(["yes", "no"], n)
visits.loc[:4, "bmi"] = 999
""",
    "outcomes.md": """
import numpy as np, pandas as pd
rng, n = np.random.default_rng(0), 300
visits = pd.DataFrame(rng.normal(size=(n, 3)), columns=["fev1", "bmi", "age"])
visits["patient"], visits["asthma"] = range(n), rng.choice(["yes", "no"], n)
""",
    "tutorial-files.md": """
import numpy as np, pandas as pd
from intarsia.server.study.folder import dump
from intarsia.wire.study import Study
rng = np.random.default_rng(0)
def frame(n, names, start=0):
    found = pd.DataFrame(rng.normal(size=(n, len(names))), columns=names)
    return found.assign(patient=[f"P{i + start}" for i in range(n)])
visits, scans = frame(400, ["bmi", "alt", "ast"]), frame(400, ["roi1", "roi2"])
new_visits, new_scans = frame(25, ["bmi"], 900), frame(25, ["roi1", "roi2"], 900)
roster = [
    {"name": "clinic", "features": ["bmi"], "responses": ["alt", "ast"]}, {"name": "mri", "features": ["roi*"]},
]
content = {"id": "liver", "run": "ab" * 16, "sketch": {"m": 40}, "site": roster, "fit": SHORT}
open("study.toml", "w").write(dump(Study.from_dict(content)))
""",
}


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)


def with_python() -> list[Path]:
    return [path for path in PAGES if blocks(path, "python")]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "tutorial-python.md",
        "choosing-m.md",
        "selection.md",
        "covariates.md",
        "criticism.md",
        "sketch.md",
        "tables.md",
        "outcomes.md",
        "tutorial-files.md",
    ],
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """Block after block in one namespace, in an empty folder; only the length of the default run is cut."""
    from intarsia.carriers import in_process as local

    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        local, "study_for", functools.partial(local.study_for, fit=SHORT) if page == "README.md" else local.study_for
    )
    if page == "README.md":  # one Φ: with another key one selection in twenty may have a false feature
        monkeypatch.setattr(local.SketchKey, "new", classmethod(lambda cls: cls(bytes(32))))
        monkeypatch.setattr("intarsia.wire.study.new_run", lambda: "0" * 32)
    names: dict[str, object] = {"SHORT": SHORT}
    exec(GIVEN.get(page, ""), names)
    with _quiet():
        for block in blocks(path, "python"):
            exec(compile(block, str(path), "exec"), names)
    if page == "README.md":
        assert names["result"].selected == ["roi3", "marker7"]
        assert (tmp_path / "report.html").stat().st_size > 50_000
    if page == "tutorial-python.md":
        assert (tmp_path / "trial.html").is_file()
        assert 1.2 < names["wider"] < 4
        mean = names["prediction"].mean[:, 0]
        assert mean[1::2].mean() > mean[::2].mean()  # dose 2 against dose 0


def _quiet():
    import warnings

    return warnings.catch_warnings(action="ignore")


def test_no_page_with_python_is_left_out():
    """The how-to pages run as a whole, commands and all, in tests/e2e/test_howto.py."""
    howto = {path.name for path in (ROOT / "docs").glob("howto-*.md")}
    assert len(howto) == 3
    assert {path.name for path in with_python()} == {"README.md", "tutorial-python.md", "choosing-m.md", *GIVEN, *howto}


def commands() -> list[tuple[str, str]]:
    """Every line of a document that calls intarsia, comments and line ends removed."""
    found = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        fenced = "\n".join(blocks(path, "(?:bash|sh|console)?")) if "```" in text else ""
        inline = re.findall(r"`(intarsia [a-z][^`…]*)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
        if path.name == "protocol-bytes.md":
            inline = []  # what is hashed begins with the product's name, too
        lines = [line.strip().removeprefix("$ ") for line in fenced.replace("\\\n", " ").splitlines()]
        found += [(path.name, line) for line in lines if line.startswith("intarsia ") and "…" not in line]
        found += [(path.name, line) for line in inline]
    return found


def test_there_are_commands():
    assert len(commands()) > 30


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda v: v[:60])
def test_commands_exist(page, line, capsys):
    """The parser takes every documented line; a bare command or group must at least be known."""
    words = shlex.split(re.sub(r"<[^<>]*>", "X", line), comments=True)[1:]
    words = words[: next((i for i, word in enumerate(words) if word in (">", "|")), None)]
    if words in (["--help"], ["--version"]):
        return
    assert words[0] in COMMANDS, f"{page}: {line}"
    # In running text a command is often named without its arguments.
    assert _complaint(words, capsys) in ("", "required"), f"{page}: {line}"


def _complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        build_parser(words[0]).parse_args(words)
    except SystemExit as stop:
        told = capsys.readouterr().err
        return "" if stop.code == 0 else "required" if "required" in told else told
    return ""


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {t for path in PAGES for t in re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(encoding="utf-8"), re.M)}
    assert {"demo", "test"} <= named <= targets


def test_named_tests_and_functions_exist():
    """Paths and dotted names in the documents lead somewhere."""
    from importlib import import_module

    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    paths = set(re.findall(r"\b(?:tests|experiments|docs)/[\w/.-]+\.(?:py|md|jsonl|json|csv|png)", text))
    rooms = "|".join(sorted(folder.name for folder in (ROOT / "src" / "intarsia").iterdir() if folder.is_dir()))
    modules = set(re.findall(rf"`((?:{rooms})/[\w/]+\.py)", text))
    assert "site/preflight.py" in modules
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [path for path in modules if not (ROOT / "src" / "intarsia" / path).exists()] == []
    for name in set(re.findall(r"`((?:intarsia|experiments)(?:\.\w+)+)", text)):
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            try:
                found = import_module(".".join(parts[:cut]))
            except ImportError:
                continue
            for part in parts[cut:]:
                found = getattr(found, part)
            break


def test_the_plan_of_the_rooms_is_that_of_the_tree():
    """Every folder and module at the top of the package has its line in the table, and the picture names what there is."""
    package = ROOT / "src" / "intarsia"
    there = {p.name + "/" * p.is_dir() for p in package.iterdir() if p.is_dir() or p.suffix == ".py"}
    there -= {"__init__.py", "__main__.py", "__pycache__/"}
    plan = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    first = [row.split("|")[1] for row in plan.split("## The rooms")[1].split("\n## ")[0].splitlines() if row.startswith("| `")]
    listed = {name for cell in first for name in re.findall(r"`([\w./]+)`", cell)}
    assert {name for name in listed if name.count("/") == name.endswith("/")} == there
    drawn = re.findall(r">([a-z_]+(?:/[a-z_.]*)*)<", (ROOT / "docs" / "images" / "rooms.svg").read_text(encoding="utf-8"))
    named = [name for name in (*drawn, *listed) if "/" in name]
    assert {"site/", "wire/", "server/"} <= set(named)
    assert [name for name in named if not (package / name).exists()] == []


def test_pytest_selections_select_something():
    """`pytest FILE -k WORD` in the errata names tests that are there."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    named = re.findall(r"pytest (tests/[\w/.]+\.py) -k (\w+)", text)
    assert named
    for file, word in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert any(word in name for name in re.findall(r"def (test_\w+)", source)), (file, word)


def test_the_readme_is_one_screen_and_a_half():
    """In words outside of its example, and with pictures that stand side by side; the rest is in the documents."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.sub(r"```.*?```|<p>.*?</p>|\]\([^)]*\)", "", text, flags=re.S).split()) < 600
    assert sum(int(width) for width in re.findall(r'<img src="[^"]+" width="(\d+)%"', text)) < 100
    assert "![" not in text


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_outside_the_site_hold(name):
    """Links between the site's own pages are checked by its strict build."""
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if not link.startswith("https://")]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_reference_has_every_public_name_and_command():
    api = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^::: intarsia\.(\w+)$", api, re.M))
    assert set(intarsia.__all__) - {"__version__", "IntarsiaError"} == named - {"errors"}
    made = runpy.run_path(str(ROOT / "docs" / "reference" / "page_of_commands.py"))["page"]()
    heads = re.findall(r"^#+ (intarsia .*)$", made, re.M)
    assert [head for head in heads if head.count(" ") == 1] == [f"intarsia {name}" for name in COMMANDS]
    assert {"intarsia study status", "intarsia site accept", "intarsia lab run"} <= set(heads)
    assert "--monitor" in made


def helps(parser):
    """Every command that can be given, and every argument of it."""
    subs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    yield parser, [action for action in parser._actions if action not in subs]
    for action in subs:
        for sub in action.choices.values():
            yield from helps(sub)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_ends_with_examples_and_says_what_each_argument_is(name):
    commands = next(a for a in build_parser(name)._actions if isinstance(a, argparse._SubParsersAction))
    for parser, arguments in helps(commands.choices[name]):
        assert re.search(rf"^  {parser.prog}( |$)", str(parser.epilog), re.M), f"{parser.prog} --help has no example"
        assert [argument.dest for argument in arguments if not argument.help] == [], parser.prog


def test_public_names():
    assert list(intarsia.__all__) == sorted(intarsia.__all__)
    for name in intarsia.__all__:
        assert getattr(intarsia, name) is not None
    assert len(intarsia.__all__) <= 20
    with pytest.raises(AttributeError):
        intarsia.no_such_name  # noqa: B018


def test_import_is_light():
    """`import intarsia` brings no scientific library."""
    code = "import sys, intarsia; print([m for m in ('numpy', 'xarray', 'sklearn', 'scipy', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_site_builds_strictly(tmp_path):
    for module in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(module, reason=f"{module} is not installed (pip install 'intarsia[docs]')")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    # Not quiet: a quiet build does not count its warnings.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"PATH": "/usr/bin", "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr[-1500:]
    assert (tmp_path / "site" / "index.html").is_file()
    shutil.rmtree(tmp_path / "site")


def test_documents_speak_of_the_product_only():
    """No machine paths or addresses of registries."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(?:home|root|work|opt)/", text), path.name
        assert "@@" not in text or path.name == "lab.md", path.name
