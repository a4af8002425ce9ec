"""The report as a person reads it: units, each coefficient's own evidence, names on the map, the card in plain words."""

import re
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from tests.reports import made_up

from intarsia.privacy.card import in_one_sentence, level, study_card
from intarsia.privacy.card_page import page
from intarsia.report.charts import Map, heat, overview
from intarsia.report.gather import Beside, gather
from intarsia.report.html import size, small
from intarsia.report.language import Language
from intarsia.report.page import render
from intarsia.wire.kinds import Back
from intarsia.wire.study import Study

STUDY = {
    "id": "s", "run": "ab" * 8, "sketch": {"m": 40},
    "site": [
        {"name": "imaging", "features": ["*"]}, {"name": "laboratory", "features": ["*"]}, {"name": "clinic", "responses": ["*"]},
    ],
}  # fmt: skip


def material(scales: list[float] | None = None, **card):
    posterior, joined, _C = made_up()
    if scales:
        posterior.attrs["response_scales"] = scales
    study = Study.from_dict(STUDY)
    made = study_card(study, n=900, columns=63, key_fingerprint="cd" * 16, **card)
    return gather(posterior, Beside(study=study, joined=joined, card=made))


def test_effects_are_in_units_where_scales_are_shared() -> None:
    plain, scaled = material(), material([10.0, 200.0, 0.5])
    p = int(plain.chosen[0])
    q = plain.strongest(p)
    mean = plain.mean[p, q]
    assert f">{mean:.3f}<".replace("-", "−") in render(plain)
    text = render(scaled)
    assert "units of the response (their owners share the scales)" in text
    assert "Only the sites know the units" not in text
    value = mean * (10.0, 200.0, 0.5)[q]
    assert f">{value:.3g}<".replace("-", "−") in text


def test_small_tables_are_told_in_kilobytes() -> None:
    """A sketch of 60 rows is not 0.00 MB."""
    assert [size(count) for count in (2592, 999_940, 1_250_000)] == ["2.6 kB", "999.9 kB", "1.25 MB"]
    assert "0.00 MB" not in render(replace(material(), site_bytes={"clinic": 2592}))
    assert "2.6 kB" in render(replace(material(), site_bytes={"clinic": 2592}))


def test_an_effect_and_its_interval_have_the_same_decimals() -> None:
    """As many as the interval's width is worth: 0.722 (0.543 to 0.89) is three ways of writing one precision."""
    litres = Language(Back("continuous"), scale=2.0, noise=0.5)
    assert litres.ends(0.361, 0.2715, 0.445) == ["0.72", "0.54", "0.89"]
    assert litres.ends(-0.1, -0.1225, -0.079) == ["−0.200", "−0.245", "−0.158"]
    assert litres.ends(500.0, 450.0, 551.0) == ["1000", "900", "1102"]
    assert Language(Back("continuous"), None, 0.5).ends(0.1234, -0.5, 0.7) == ["0.123", "−0.500", "0.700"]


def test_every_coefficient_of_a_selected_feature_has_its_own_evidence() -> None:
    found = material()
    text = render(found)
    details = text[text.index("These coefficients with interval") :]
    p = int(found.chosen[0])
    for q in range(found.Q):
        assert f">{escape(small(float(found.findings.local_fdr_by_response[p, q])))}<" in details
    assert details.count("not selected here") + details.count(">selected<") == found.count * found.Q


def test_the_map_tells_names_and_the_close_up_numbers() -> None:
    found = material()
    text = render(found)
    for p in (0, found.P - 1):
        assert f"<title>{found.features[p]} ({found.feature_sites[p]})" in text
    values = np.array([[0.5, -0.25], [0.0, 0.125]])
    picture = heat(values, ["a", "b"], ["u", "v"], name="x", marked=values > 0.4, look="numbers")
    assert re.findall(r'class="value( bold)?"[^>]*>([^<]+)<', picture) == [
        (" bold", "0.50"),
        ("", "−0.25"),
        ("", "0.00"),
        ("", "0.12"),
    ]
    assert picture.count("framed") == 1


def test_a_large_map_stays_small() -> None:
    rng = np.random.default_rng(0)
    P = 20_000
    names = [f"snp{i}" for i in range(P)]
    large = Map(rng.standard_normal((P, 3)), names, ["lab"] * P, ["lab"], ["u", "v", "w"], np.zeros(P, dtype=bool))
    picture = overview(large, "map")
    assert picture.count("<title>snp") == 300
    assert len(picture) < 120_000


def test_the_card_is_led_by_a_sentence_with_its_colour() -> None:
    card = material().card
    text = render(material())
    section = text[text.index('id="privacy"') :]
    assert f'class="verdict {level(card)}"' in section
    assert section.index(in_one_sentence(card)[:40]) < section.index("The server receives")
    assert section.index("In bits, and if attackers") < section.index("Mutual information")
    assert "stands on the sites' own cards" in in_one_sentence(card).replace("&#x27;", "'")


@pytest.mark.parametrize(
    ("m", "n", "columns", "colour"), [(20, 100_000, 10, "good"), (900, 5000, 100, "close"), (400, 1000, 300, "bad")]
)
def test_the_colour_follows_the_numbers(m: int, n: int, columns: int, colour: str) -> None:
    study = Study.from_dict(STUDY | {"sketch": {"m": m}})
    card = study_card(study, n=n, columns=columns, key_fingerprint="cd" * 16)
    assert level(card) == colour
    assert f"lead {colour}" in page(card)


def test_what_sites_filled_in_is_in_the_report() -> None:
    site = {"made_by": "site imaging", "imputed": {"f001": 60}, "exposed_columns": [{"name": "sex"}]}
    text = render(material(site_cards=[site]))
    assert "60 missing values in 1 column filled (f001 60)" in text
    assert "a leaked key would expose sex" in text


def test_commands_to_do_it_again_are_lines(tmp_path: Path) -> None:
    text = render(material(), command="intarsia fit -o s\nintarsia report s -o r.html")
    assert "intarsia fit -o s\nintarsia report s -o r.html" in text
    assert "\ufffd" not in text


def test_five_sites_are_named_below_the_monitors_step() -> None:
    from intarsia.report.monitor_page import _steps

    names = [f"institution-number-{i}" for i in range(5)]
    rows = [{"step": "sketch", "done": False, "present": [], "missing": names}]
    html = _steps({"steps": rows, "aligned": None, "left_out": {}, "m": 10})
    assert ">now</span>" in html
    assert f"waiting for {', '.join(names)}" in html
