"""What a reader of the report, the card and the paper is told: once, in words, on a phone, and never more than is known."""

import html
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.federation import frames, sites, study
from tests.reports import card, made_up

import intarsia
from intarsia.cli import main
from intarsia.privacy.card_page import WORDS
from intarsia.privacy.card_page import page as card_page
from intarsia.privacy.precision import findable, power
from intarsia.report.evidence import verdict_words
from intarsia.report.gather import Material, from_folder
from intarsia.report.html import number, percent
from intarsia.report.methods_paragraph import methods
from intarsia.report.page import collect, render
from intarsia.report.results import _named
from intarsia.wire.cohort_groups import Group
from intarsia.wire.plain import two_places

FIT = {"draws": 80, "warmup": 60, "chains": 2, "thin": 1, "seed": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small study whose lists of subjects differ, at the server."""
    where, tables = tmp_path_factory.mktemp("server") / "liver", frames()
    tables["mri"] = tables["mri"].iloc[:380]
    tables["lab"] = tables["lab"].assign(id=[f"X{text}" if text > "S0390" else text for text in tables["lab"]["id"]])
    parties = sites(tables)
    with warnings.catch_warnings(action="ignore"):
        intarsia.fit(parties, study(parties, fit=FIT, alignment={"mode": "intersect"}, title="Livers"), folder=where)
    return where


@pytest.fixture(scope="module")
def material(folder: Path) -> Material:
    return from_folder(folder)


def section(page: str, key: str) -> str:
    found = re.search(rf'<section id="{key}">(.*?)</section>', page, re.S)
    assert found is not None, key
    return found[1]


def test_power_falls_and_rises_as_it_must() -> None:
    found = findable(200, 60)
    chances = [chance for _, chance in found.power]
    assert chances == sorted(chances)
    assert power(200, found.smallest, 60, found.nonzero) == pytest.approx(0.8, abs=1e-3)
    assert findable(400, 60).smallest < found.smallest < findable(200, 6000).smallest
    assert f"an effect of {found.smallest:.2f} sd" in found.text
    assert "no effect of any size" in findable(20, 5000).text
    assert findable(20, 5000).power[-1][1] == 0


def test_the_power_a_study_had_is_in_report_methods_and_plan(material: Material, capsys: pytest.CaptureFixture[str]) -> None:
    told = section(render(material), "power")
    expected = findable(60, 18)
    assert f"an effect of {expected.smallest:.2f} sd of the response" in told
    assert len(re.findall(r"<tr>", told)) == 1 + 7
    assert f"effect of {expected.smallest:.2f} standard deviations" in methods(material)
    assert main(["privacy", "plan", "--n", "2000", "--features", "60", "--responses", "2"]) == 0
    assert "sd of the response per sd of the feature" in capsys.readouterr().out


def test_who_was_left_out_is_a_flow(material: Material) -> None:
    told = section(render(material), "people")
    listed = {name: len(table) for name, table in (("clinic", range(400)), ("mri", range(380)), ("lab", range(400)))}
    assert material.listed == listed
    assert "clinic 400, mri 380, lab 400" in told
    assert f"{400 - material.n} of clinic, {380 - material.n} of mri" in told
    assert "Left out" in told
    assert told.index("Listed by the sites") < told.index("Left out") < told.index("In the analysis")
    grouped = replace(material, groups=(Group(300, 40, ("alt",)), Group(60, 20, ("alt", "hdl"))), dropped=9)
    words = section(render(grouped), "people")
    assert "9 subjects: too few had the same responses" in words
    assert "300 with alt; 60 with alt, hdl" in words


def test_the_verdict_and_its_advice_stand_there_once(material: Material) -> None:
    assert not material.diagnosis.converged
    page = html.unescape(render(material).partition('<section id="again">')[0])  # where the server's log repeats it
    advice = str(material.diagnosis.verdict).rstrip(".")
    assert page.count(advice) == 1
    assert page.count("more draws") == advice.count("more draws")
    assert page.index('class="top"') < page.index(advice) < page.index('id="asked"')
    assert verdict_words(material).startswith(("Not converged", "Almost"))


def test_no_bound_is_nought_and_nothing_unresolved_is_one(material: Material) -> None:
    assert material.posterior.draws.sparse
    page = render(material)
    table = section(page, "selected")
    assert "up to" in table or "down to" in table
    for start, end in re.findall(r">([−\d.]+) to ([−\d.]+)<", table):
        assert {float(text.replace("−", "-")) for text in (start, end)}.isdisjoint({0.0})
    probabilities = re.findall(r'data-label="(?:PIP|sign rate)">([^<]*)<', table)
    assert probabilities
    assert not {"1.000", "0.000", "1", "0"} & set(probabilities)
    assert [percent(x).replace("&nbsp;", " ") for x in (0.999, 1.0, 0.001, 0.0, 0.5)] == [
        "&gt; 99 %", "100 %", "&lt; 1 %", "0 %", "50 %",
    ]  # fmt: skip
    assert number(7.26e-6) == "7.26 × 10⁻⁶"
    assert [two_places(x) for x in (0.001, 0.0, 0.3)] == ["less than 0.01", "0.00", "0.30"]


def test_tables_are_cards_on_a_phone_and_reached_by_keyboard(material: Material) -> None:
    page = render(material)
    for table in re.findall(r'<table class="plain cards">.*?</table>', page, re.S):
        named = [re.sub("<.*?>", "", head) for head in re.findall(r"<thead>.*?</thead>", table, re.S)[0].split("</th>")[:-1]]
        for row in re.findall(r"<tr>(.*?)</tr>", table.split("<tbody>")[1], re.S):
            labels = re.findall(r'<td(?: data-label="([^"]*)")?>', row)
            assert labels == named[1 : 1 + len(labels)]
    wrappers = re.findall(r'<div class="scroll[^"]*"[^>]*>|<div [^>]*class="scroll[^"]*"[^>]*>', page)
    assert wrappers
    assert [one for one in wrappers if 'tabindex="0"' not in one or "aria-label" not in one] == []


def test_long_names_keep_both_ends() -> None:
    name = "connectivity_of_the_left_hippocampus_with_the_right_amygdala_at_rest"
    shown = str(_named(name))
    assert f'title="{name}"' in shown
    assert re.search(r">connectivity_of[^<]*…[^<]*at_rest<", shown)
    assert "…" not in str(_named(name[:40]))
    posterior, joined, _ = made_up(P=3, active=1, features=[name, "a", "b"])
    assert name in render(collect(posterior, joined=joined))  # a pointer and a search find all of it


def test_session_and_citation(material: Material) -> None:
    told = section(render(material), "again")
    assert f"intarsia {intarsia.__version__}" in told
    assert f"numpy {np.__version__}" in told
    assert "BLAS" in told
    assert "Halverson B, Guha S, Bernard J, Guhaniyogi R." in told
    assert "<h1><bdi>Livers</bdi></h1>" in render(material)


def test_methods_of_the_default_prior_are_its_own(material: Material) -> None:
    """A spike and slab is not called a horseshoe, nor its inverse Wishart prior another one."""
    text = methods(material)
    assert "spike and slab (Mitchell & Beauchamp, 1988)" in text
    assert "inverse Wishart" in text
    assert "horseshoe" not in text
    assert "Huang" not in text
    assert "half of the prior mass is at no background" not in text  # 18 features are too few for one
    with_one = replace(material, attrs=material.attrs | {"background": True})
    assert "Y = X (B + D) + E" in methods(with_one)
    assert "Texas A&M University" in text


@pytest.mark.parametrize(
    ("level", "said"),
    [("ok", "The gate let it pass."), ("warn", "with warnings"), ("refuse", "refused"), ("overridden", "by an exception")],
)
def test_the_card_says_pass_or_warn_in_words(level: str, said: str) -> None:
    """Officers print it, often in black and white: no verdict is a colour alone."""
    page = card_page(card(level))
    assert f"<b class=word>{WORDS[level]}</b> ratio" in page
    assert "<b class=word>PASS</b> x: fine" in page
    assert said in page
    assert "less than 0.01 of where it begins to work" in page
    assert "0.584 (0.5 is a guess" in page
    assert "width=device-width,initial-scale=1" in page
