"""Forms that a study fills in: a data-protection impact assessment and the TRIPOD+AI checklist. Facts yes, a person's data no."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reports import made_up

from intarsia.carriers.in_process import fit, study_for
from intarsia.cli import main
from intarsia.report.page import collect
from intarsia.report.tripod import AUTHORS, ITEMS, checklist
from intarsia.site.key import SketchKey
from intarsia.site.site import Site

N, KEY = 400, SketchKey(bytes(range(32)))
KEYS = ("exchange_key", "signing_key")


class Made:
    """A small study with folders and cards; its ids and values are easy to find again."""

    def __init__(self, root: Path) -> None:
        rng = np.random.default_rng(0)
        self.people = [f"CANARY-{i:04d}" for i in range(N)]
        self.genes = {f"gene{j}": np.round(rng.normal(size=N), 6) for j in range(6)}
        self.pain = np.round(0.8 * self.genes["gene1"] + rng.normal(size=N), 6)
        self.rare = (np.arange(N) % 40 == 0).astype(float)
        genes: dict[str, Any] = {"id": self.people, **self.genes, "rare": self.rare}
        genes["gene5"] = np.where(np.arange(N) < 7, np.nan, self.genes["gene5"])
        parties = [
            Site("lab", genes, id="id", missing="mean", key=KEY, folder=root / "lab"),
            Site("clinic", {"id": self.people, "pain": self.pain}, id="id", responses=["pain"], key=KEY, folder=root / "clinic"),
        ]
        self.study_folder = root / "server"
        run = {"draws": 40, "warmup": 40, "chains": 2, "thin": 1, "seed": 1}
        self.result = fit(parties, study_for(parties, m=40, id="pain", fit=run), folder=self.study_folder, progress=False)
        self.cards = sorted(str(path) for name in ("lab", "clinic") for path in (root / name).rglob("card.json"))
        self.toml = next(self.study_folder.glob("study.toml"))

    def nobody_is_in(self, text: str) -> bool:
        """Neither an id nor a value, written in full or rounded to four digits."""
        values = {f"{value:.4f}" for column in (*self.genes.values(), self.pain) for value in column.tolist()}
        return "CANARY" not in text and not values & {f"{float(x):.4f}" for x in re.findall(r"-?\d+\.\d{4,}", text)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    with pytest.warns(match="R̂"):
        return Made(tmp_path_factory.mktemp("forms"))


def test_an_impact_assessment_has_the_facts_and_leaves_the_rest_to_people(made: Made, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "dpia.md"
    assert len(made.cards) == 2
    assert main(["privacy", "dpia", str(made.toml), "--card", *made.cards, "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    told = int(re.search(r"(\d+) places are left", capsys.readouterr().out)[1])  # type: ignore[index]
    assert told == text.count("☐ *to be filled in:*") > 20
    assert f"{told} places marked" in text
    for fact in ("lab, clinic", "400 people are in the analysis", "a sketch of 40 rows", made.result.study.hash, "| pain |",
                 "7 missing values were filled", "m/n at most 0.25", "AUC 0.", "Σm/n up to 0.100"):  # fmt: skip
        assert fact in text, fact
    sections = re.findall(r"^## (.*)$", text, re.M)
    assert [s.split(".")[0] for s in sections[:9]] == [str(k) for k in range(1, 10)]
    assert "Article 36" in text
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.M):  # tables are whole
        assert len({re.sub(r"\\\|", "", row).count("|") for row in lines.splitlines()}) == 1
    assert made.nobody_is_in(text)
    for planted in (f"{made.pain[3]:.6f}", f"mean {made.genes['gene2'][8]:.5f}", made.people[5]):
        assert not made.nobody_is_in(text + planted)


def test_what_a_card_exposes_is_named_by_column(made: Made, tmp_path: Path, capsys: Any) -> None:
    card = json.loads(Path(made.cards[1]).read_text(encoding="utf-8"))
    assert card["card"]["made_by"] == "site lab"
    card["card"]["exposed_columns"] = [{"name": "rare"}]
    card["card"]["overrides"] = [{"rule": "rare-level", "reason": "vote of 3 May", "columns": ["rare"]}]
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card), encoding="utf-8")
    assert main(["privacy", "dpia", str(made.toml), "--card", str(path)]) == 0
    text = capsys.readouterr().out
    assert "columns that could be read whole: rare" in text
    assert "rare-level: vote of 3 May" in text
    del card["card"]["sketch"]
    path.write_text(json.dumps(card), encoding="utf-8")
    assert main(["privacy", "dpia", str(made.toml), "--card", str(path)]) == 3
    card["card"]["study"]["hash"] = "0" * 64
    path.write_text(json.dumps(card), encoding="utf-8")
    assert main(["privacy", "dpia", str(made.toml), "--card", str(path)]) == 3
    assert "not the card of a site of this study" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sketch": {"m": 0, "kind": "gram"}}, "splits its standardised columns into random shares"),
        ({"sketch": {"m": 0, "kind": "screened"}}, "products for the few columns"),
        ({"alignment": {"mode": "union"}}, "grouped by those they have"),
        ({"alignment": {"mode": "intersect"}}, "keyed tokens"),
    ],
)
def test_every_kind_of_study_is_described_without_a_card(made: Made, change: dict[str, Any], words: str) -> None:
    from intarsia.privacy.dpia import assessment
    from intarsia.wire.study import Study

    content = made.result.study.to_dict() | change
    if "sketch" in change:
        keys = [{k: base64.b64encode(bytes([i + j]) * 32).decode() for j, k in enumerate(KEYS)} for i in (1, 3, 5)]
        content["site"] = [
            {"name": "lab", "features": ["gene*"]} | keys[0],
            {"name": "clinic", "responses": ["pain"]} | keys[1],
            {"name": "third", "features": ["x"]} | keys[2],
        ]
    text = assessment(Study.from_dict(content))
    assert words in text
    assert "how many people" in text
    assert ("reads columns" in text) is ("sketch" not in change)


def test_tripod_is_answered_from_the_files_and_says_what_is_the_authors(made: Made, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "tripod.md"
    assert main(["report", str(made.study_folder), "--tripod", str(out), "--cards", *made.cards]) == 0
    text = out.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+[a-g]?) \| .*? \| (.*) \|$", text, re.M))
    assert list(rows) == [number for number, _, _ in ITEMS]
    assert len({int(re.sub(r"\D", "", number)) for number in rows}) == 27
    assert "400 people, whose sketch has 40 rows (m/n = 0.100)" in rows["10"]
    assert rows["11"].startswith("7 missing values filled")
    assert "out-of-sample R² of the combined rows: pain" in rows["23a"]
    assert "THE CHAINS HAD NOT CONVERGED" in rows["26"]
    assert "seed 1" in rows["18f"]
    assert rows["17"] == AUTHORS
    known = sum(not answer.startswith(AUTHORS) for answer in rows.values())
    assert f"{known} of {len(rows)} items are answered" in text
    assert "## Methods" in text
    assert made.nobody_is_in(text)
    assert not (tmp_path / "report.html").exists()
    capsys.readouterr()


def test_tripod_of_a_posterior_alone_says_less() -> None:
    posterior, _joined, _C = made_up()
    text = checklist(collect(posterior))
    assert "| 23a |" in text
    assert "evaluate on new people" in text
