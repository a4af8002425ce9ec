"""What a release and an installation rest on: one version, a lock that fits pyproject.toml, the same checks everywhere."""

import ast
import hashlib
import os
import re
import runpy
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import intarsia
from intarsia.site.identity import Identity

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
TESTED_EXTRAS = ("dask", "federation", "lab", "docs", "test")
DEPLOYED_EXTRAS = tuple(re.findall(r"^DEPLOYED := (.*)$", MAKEFILE, re.M)[0].split())


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def locked(name: str) -> dict[str, list[tuple[str, Requirement]]]:
    """Package -> its lines `name==version ; marker` in a lock file."""
    found: dict[str, list[tuple[str, Requirement]]] = {}
    for line in text(f"requirements/{name}.txt").splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            wanted = Requirement(line.rstrip("\\ "))
            found.setdefault(canonicalize_name(wanted.name), []).append((next(iter(wanted.specifier)).version, wanted))
    return found


def direct(name: str) -> list[Requirement]:
    """What pyproject.toml asks for: the product's own packages; for the tested set the extras' too."""
    lines = list(PROJECT["dependencies"])
    extras = {"test": TESTED_EXTRAS, "deploy": DEPLOYED_EXTRAS}.get(name, ())
    if extras:
        lines += [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("name", ["run", "test", "deploy"])
def test_the_lock_holds_every_package_within_its_range(name: str) -> None:
    """A package added to pyproject.toml, or a range that left the lock behind, shows here: `make lock`."""
    kept = locked(name)
    for wanted in direct(name):
        lines = kept.get(canonicalize_name(wanted.name))
        assert lines, f"{wanted.name} is not in requirements/{name}.txt: run `make lock`"
        assert all(found in wanted.specifier for found, _ in lines), (
            f"{wanted} left requirements/{name}.txt behind: run `make lock`"
        )


@pytest.mark.parametrize("python", ["3.11.9", "3.12.9", "3.13.9"])
def test_the_lock_has_one_version_for_each_python(python: str) -> None:
    where = {"python_full_version": python, "python_version": python.rsplit(".", 1)[0], "sys_platform": "linux"}
    for name, lines in locked("test").items():
        taken = [found for found, line in lines if line.marker is None or line.marker.evaluate(where)]
        assert len(taken) <= 1, f"{name}: {taken} on Python {python}"


def test_the_locks_agree() -> None:
    everything, deployed = locked("test"), locked("deploy")
    for name, lines in locked("run").items():
        assert [found for found, _ in everything[name]] == [found for found, _ in lines] == [f for f, _ in deployed[name]], name


@pytest.mark.parametrize("name", ["run", "test", "deploy"])
def test_every_locked_package_has_hashes_and_no_address(name: str) -> None:
    content = text(f"requirements/{name}.txt")
    assert not re.search(r"https?://|file:|--(?:extra-)?index-url|--find-links", content)
    for block in re.split(r"\n(?=\S)", content.strip()):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version", "readme"]
    assert "version" not in PROJECT
    assert re.findall(r'__version__ = "', text("src/intarsia/__init__.py")) == ['__version__ = "']
    Version(intarsia.__version__)


def test_changelog_and_citation_follow_the_version() -> None:
    """Sections newest first, each dated or unreleased; the first is of this version; the citation names the newest release."""
    heads = re.findall(r"^## \[?(\d+\.\d+\.\d+)\]? – (unreleased|\d{4}-\d\d-\d\d)$", CHANGES, re.M)
    assert len(heads) == len(re.findall(r"^## ", CHANGES, re.M)) >= 2
    assert [Version(v) for v, _ in heads] == sorted((Version(v) for v, _ in heads), reverse=True)
    assert heads[0][0] == Version(intarsia.__version__).base_version
    assert (heads[0][1] == "unreleased") == Version(intarsia.__version__).is_devrelease
    assert all(date != "unreleased" for _, date in heads[1:])
    newest = next(v for v, date in heads if date != "unreleased")
    assert f"\nversion: {newest}\n" in text("CITATION.cff")


def test_make_test_installs_no_system_packages() -> None:
    """Only `make system-packages` calls apt-get; CI calls it first, and nothing that `make test` needs does."""
    rules = dict(re.findall(r"^([\w$()./-]+):[^=\n]*\n((?:\t.*\n|[ ]+.*\n)+)", MAKEFILE, re.M))
    assert [name for name, recipe in rules.items() if "apt-get" in recipe] == ["system-packages"]
    assert not re.search(r"^(?!\.PHONY)\S.*:.*\bsystem-packages\b", MAKEFILE.replace("system-packages:  ##", ""), re.M)
    calls = re.findall(r"^make ([\w-]+)", text(".ci/run"), re.M)
    assert calls == ["system-packages", "test"]


def test_formatting_is_enforced_everywhere() -> None:
    lint = MAKEFILE[MAKEFILE.index("\nlint:") : MAKEFILE.index("\nformat:")]
    assert "ruff check" in lint
    assert "ruff format --check" in lint
    assert "ruff format" in text(".pre-commit-config.yaml")


def matrix_of(job: dict[str, Any]) -> list[dict[str, str]]:
    """The combinations that the forge makes of a matrix whose `include` adds whole ones."""
    given = dict(job["strategy"]["matrix"])
    more = given.pop("include", [])
    return [dict(zip(given, values)) for values in product(*given.values())] + more


def test_the_workflow_tests_every_python_and_the_oldest_and_newest_packages() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with intarsia[docs]")
    jobs = yaml.safe_load(text(".github/workflows/tests.yml"))["jobs"]
    combinations = matrix_of(jobs["tests"])
    locked = [f"3.{minor}" for minor in (11, 12, 13)]
    assert [c["python"] for c in combinations if c["packages"] == "locked"] == locked
    assert [c["packages"] for c in combinations if c["packages"] != "locked"] == ["oldest", "newest"]
    assert [f"Programming Language :: Python :: {version}" in PROJECT["classifiers"] for version in locked] == [True] * 3
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
    for one in combinations:
        steps = [s for s in jobs["tests"]["steps"] if "run" in s]
        runs = [
            s["run"] for s in steps if s.get("if", f"matrix.packages == '{one['packages']}'").endswith(f"'{one['packages']}'")
        ]
        wanted = {"locked": "make test", "newest": "make LOCKED=no test", "oldest": "make oldest"}[one["packages"]]
        assert runs == ["make system-packages", wanted]
    for name in ("tests", "slow"):
        for job in yaml.safe_load(text(f".github/workflows/{name}.yml"))["jobs"].values():
            called = [step["run"].split()[-1] for step in job["steps"] if "run" in step]
            assert called
            assert set(called) <= targets
            for action in (step["uses"] for step in job["steps"] if "uses" in step):
                assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), f"{action} is not pinned to a commit"


def test_the_quick_tests_exist() -> None:
    """`make quick` names its files: one that was renamed would stop it."""
    lines = MAKEFILE[MAKEFILE.index("QUICK :=") : MAKEFILE.index("\nquick:")]
    named = [
        (folder, name) for folder, names in re.findall(r"addprefix tests/(\w+)/test_,([^)]*)\)", lines) for name in names.split()
    ]
    assert len(named) > 10
    assert [f"{folder}/test_{name}" for folder, name in named if not (ROOT / "tests" / folder / f"test_{name}").is_file()] == []


@pytest.mark.skipif(os.environ.get("INTARSIA_EXPLORE") == "1", reason="INTARSIA_EXPLORE: keys are new in every run")
def test_a_test_draws_the_same_keys_in_every_run(request: pytest.FixtureRequest) -> None:
    """So that none fails now and then without a bug; within a test no two are the same."""
    wanted = hashlib.shake_256(f"{request.node.nodeid} 1".encode()).digest(32)
    assert intarsia.SketchKey.new() == intarsia.SketchKey(wanted)
    assert intarsia.SketchKey.new() != intarsia.SketchKey(wanted)
    assert Identity.new("a").words != Identity.new("a").words


@pytest.mark.parametrize(
    ("reason", "allowed"),
    [
        ("Skipped: Chromium is not installed (make system-packages)", True),
        ("Skipped: needs intarsia[another]", True),
        ("Skipped: the networked carrier needs intarsia[federation]", False),
        ("Skipped: could not import 'jax': No module named 'jax'", False),
    ],
)
def test_what_a_test_may_be_skipped_for(reason: str, allowed: bool) -> None:
    assert runpy.run_path(str(ROOT / "tests" / "conftest.py"))["may_be_missing"](reason) is allowed


def test_a_skipped_test_of_the_default_path_fails_the_run(tmp_path: Path) -> None:
    """A run of one skipped test under the suite's own conftest, as `make test` runs it."""
    (tmp_path / "conftest.py").write_text(text("tests/conftest.py"), encoding="utf-8")
    (tmp_path / "test_it.py").write_text("import pytest\n\npytest.importorskip('no_such_module')\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, env=os.environ | {"INTARSIA_ALL_EXTRAS": "1"}, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "skipped although everything they need should be installed" in done.stdout
    assert "INTARSIA_ALL_EXTRAS=1 $(BIN)/python -m pytest -n $(JOBS)" in MAKEFILE


def test_every_extra_installs_something_that_the_package_alone_does_not() -> None:
    """An extra that repeats a package everybody gets promises what it does not do; JAX without its plugin runs on no card."""
    own = {Requirement(line).name for line in PROJECT["dependencies"]}
    extras = {name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()}
    assert {name for name, lines in extras.items() if not {line.name for line in lines} - own} == set()
    assert [line.extras for line in extras["gpu"]] == [{"cuda12"}]


def test_what_is_imported_is_declared() -> None:
    """h5py came with ArviZ for a while: what the package imports itself, or needs for its files, it asks for itself."""
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    declared |= {
        canonicalize_name(Requirement(line).name) for lines in PROJECT["optional-dependencies"].values() for line in lines
    }
    nodes = (node for path in (ROOT / "src").rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).split(".")[0])
    own = {"intarsia", "experiments"}  # the latter where there is a checkout (`intarsia.cli.lab`)
    other = {canonicalize_name(name) for name in found - set(sys.stdlib_module_names) - own}
    assert len(other) > 15
    called = {"sklearn": "scikit-learn"}
    assert {called.get(name, name) for name in other} - declared == set()
    assert {"h5py", "h5netcdf"} <= {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}


def test_the_project_has_one_address() -> None:
    """Links of the package index, the documents' theme and its edit links name the same repository."""
    home, repository = PROJECT["urls"]["Homepage"], PROJECT["urls"]["Repository"]
    assert all(url.startswith((home, repository)) for url in PROJECT["urls"].values())
    settings = text("mkdocs.yml")
    assert f"\nsite_url: {home}\n" in settings
    assert f"\nrepo_url: {repository}\n" in settings


def test_the_page_of_the_package_index_has_no_dead_link() -> None:
    """What hatchling puts into a distribution: links of README.md made absolute, each to a file that is there."""
    assert 'path = "hatch_readme.py"' in text("pyproject.toml")
    repository = PROJECT["urls"]["Repository"]
    page = runpy.run_path(str(ROOT / "hatch_readme.py"))["absolute"](text("README.md"), repository)
    links = re.findall(r"\]\(([^)\s]+)\)", page) + re.findall(r'src="([^"]+)"', page)
    assert len(links) > 20
    for link in links:
        assert link.startswith(("https://", "#")), link
        where = re.sub(rf"^{repository}/(?:blob|raw)/main/", "", link.split("#")[0])
        assert where.startswith("https://") or (ROOT / where).exists(), link
    planted = "[a](docs/x.md#y) [b](https://c) [d](#e) [m](mailto:f)"
    made = runpy.run_path(str(ROOT / "hatch_readme.py"))["absolute"](planted, "https://r")
    assert made == "[a](https://r/blob/main/docs/x.md#y) [b](https://c) [d](#e) [m](mailto:f)"
