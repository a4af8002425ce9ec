"""The how-to pages run from top to bottom, Python and commands, and come to what they say."""

import re
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests import pages
from tests.federation import KEY, RUN

from intarsia.carriers import in_process
from intarsia.cli import study as study_command
from intarsia.site import preflight
from intarsia.wire.study import Study

DOCS = Path(__file__).parents[2] / "docs"
SHORT = {"draws": 150, "warmup": 150, "chains": 2, "thin": 1, "seed": 1}
BRIEF_S = 0.2  # of the gate's attack on the site's own sketch, for each site


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a page in an empty folder. Chains and self-attacks are cut short; what runs in Python has a fixed key and run."""
    monkeypatch.setattr(study_command, "length_line", lambda name, value: f"{name} = {SHORT[name]}")
    template = study_command.TEMPLATE
    assert "seed = 0\n" in template
    monkeypatch.setattr(study_command, "TEMPLATE", template.replace("seed = 0\n", f"seed = {SHORT['seed']}\n"))
    right = in_process.study_for
    fixed = {"fit": SHORT, "run": RUN}
    monkeypatch.setattr(in_process, "study_for", lambda *sites, **options: right(*sites, **options | fixed))
    monkeypatch.setattr(in_process.SketchKey, "new", lambda: KEY)
    attack = preflight.attack_columns
    monkeypatch.setattr(preflight, "attack_columns", lambda *given: attack(*given[:-1], BRIEF_S))
    monkeypatch.delenv("INTARSIA_DATA", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def go(page: str) -> tuple[dict[str, Any], list[pages.Command]]:
        names: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = pages.run(DOCS / page, names, tmp_path)
        return names, done

    return go


def test_epidemiology(run: Any) -> None:
    names, done = run("howto-epidemiology.md")
    printed = "\n".join(command.printed for command in done)
    assert {command.code for command in done} == {0}
    assert "smoking; categories current, former, never; one indicator each" in printed
    # Said by the server when it has compared the lists, and by each of five sites before it sketches.
    assert printed.count("1,140 subjects are at all sites\n  not at all sites, so left out: 60 of 1,200 at air") == 6
    assert re.search(r"1\d\d missing values in 8 columns filled; the card has the count", printed)  # at blood
    assert "complete" in done[-1].printed
    assert Study.load("study.toml").kinds["asthma"]["kind"] == "binary"
    assert Path("exposome.html").stat().st_size > 50_000
    assert "1,140 subjects" in Path("methods.md").read_text(encoding="utf-8")
    # By files and in Python: what is true is found, and no covariate is selected.
    for table in (names["results"], names["table"]):
        selected = set(table.loc[table["selected"].eq(True), "feature"])
        assert {"no2_home", "pfoa"} <= selected
        assert set(table.loc[table["role"] == "covariate", "feature"]) >= {"age", "sex=girl", "centre=2"}
    clinic = pd.read_csv("clinic-results.csv")
    assert set(clinic["role"]) == {"covariate"}
    air = pd.read_csv("air-results.csv").set_index(["feature", "response"])
    lungs = air.loc[("no2_home", "fev1")]
    assert abs(lungs["effect"] + 0.2) < 5 * lungs["sd"]  # litres per unit; the key is another one each time
    assert lungs["unit"] == "units of the response per unit of the feature"


def test_genetics(run: Any) -> None:
    names, _ = run("howto-genetics.md")
    found = {*names["result"].selected, *(label for group in names["result"].groups for label in group)}
    assert {label[:3] for label in found} == {"m02", "m15"}  # the two stretches that act
    assert names["opened"].n == 599
    assert 100 < sum(names["opened"].imputed.values()) < 260
    assert Path("wheat.html").stat().st_size > 50_000


def test_neuroimaging(run: Any) -> None:
    names, _ = run("howto-neuroimaging.md")
    found = set(names["result"].selected)
    assert len(found & names["true"]) >= 4
    assert len(found - names["true"]) <= 1
    text = Path("connectome.html").read_text(encoding="utf-8")
    assert "Connectogram: " in text
    assert "Brain from the left" in text


def test_a_failing_command_fails_the_page(run: Any, tmp_path: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("```bash\nintarsia study check nothing.toml\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"wrong.md, block 0 ended with 4"):
        pages.run(page, {}, tmp_path)
