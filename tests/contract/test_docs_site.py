"""The documents as a site: formulas without a script, links that can be seen, contents at the side, questions with addresses."""

import colorsys
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
CSS = (ROOT / "docs" / "stylesheets" / "wide.css").read_text(encoding="utf-8")


def luminance(colour: tuple[float, float, float]) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def hexadecimal(text: str) -> tuple[float, float, float]:
    return int(text[1:3], 16) / 255, int(text[3:5], 16) / 255, int(text[5:7], 16) / 255


def test_links_are_underlined_and_their_colours_can_be_read() -> None:
    assert round(contrast((0, 0, 0), (1, 1, 1)), 6) == 21
    found = dict(re.findall(r'scheme="(\w+)"\] \{ --md-typeset-a-color: (#\w{6});', CSS))
    slate = colorsys.hls_to_rgb(232 / 360, 0.14, 0.15)  # the theme's dark page
    assert contrast(hexadecimal(found["default"]), (1, 1, 1)) > 7
    assert contrast(hexadecimal(found["slate"]), slate) > 7
    assert re.search(r"^\.md-typeset a:not\(.*\{ text-decoration: underline", CSS, re.M)


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml", reason="latex2mathml is not installed (pip install 'intarsia[docs]')")
    drawn = runpy.run_path(str(ROOT / "docs" / "reference" / "formulas.py"))["drawn"]
    page = '<p>a</p><div class="arithmatex">\\[\na &lt; \\Sigma_q\n\\]</div><span class="arithmatex">\\(x\\)</span> costs \\(5'
    out = drawn(page)
    assert out.count("<math") == 2
    assert 'display="block"' in out
    assert "&#x003A3;" in out or "Σ" in out
    assert "arithmatex" not in out
    assert out.endswith(" costs \\(5")
    assert "formulas.py" in SETTINGS


def test_the_search_has_a_name() -> None:
    named = runpy.run_path(str(ROOT / "docs" / "reference" / "for_everybody.py"))["named"]
    assert "for_everybody.py" in SETTINGS
    material = pytest.importorskip("material", reason="mkdocs-material is not installed (pip install 'intarsia[docs]')")
    search = (Path(material.__file__).parent / "templates" / "partials" / "search.html").read_text(encoding="utf-8")
    assert named(search).count('role="dialog" aria-label="Search">') == 1


def test_quiet_words_in_code_can_be_read() -> None:
    found = dict(re.findall(r'scheme="(\w+)"\] \{ --quiet-code: (#\w{6});', CSS))
    assert contrast(hexadecimal(found["default"]), hexadecimal("#f5f5f5")) > 5  # the theme's block of code
    assert contrast(hexadecimal(found["slate"]), colorsys.hls_to_rgb(232 / 360, 0.18, 0.15)) > 5


def test_no_script_or_style_comes_from_elsewhere() -> None:
    """A hospital's browser may reach nothing but the page."""
    assert "extra_javascript" not in SETTINGS
    assert "font: false" in SETTINGS
    assert not re.search(r"url\(\s*['\"]?https?:|@import", CSS)


def test_the_theme_shows_where_one_is_and_where_the_source_is() -> None:
    features = re.search(r"features: \[(.*)\]", SETTINGS)[1].split(", ")  # type: ignore[index]
    assert {"navigation.footer", "content.action.edit", "content.code.copy"} <= set(features)
    assert "toc.integrate" not in features  # contents stand at the right
    assert re.search(r"^edit_uri: edit/main/docs/$", SETTINGS, re.M)


def test_every_question_has_an_address() -> None:
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^### ", text, re.M)) >= 25
    assert re.findall(r"^\*\*[^*]+\?\*\* ", text, re.M) == []


def test_home_begins_with_a_line_to_install_and_code() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert text.index("pip install intarsia") < text.index("intarsia.fit(") < text.index("## Where to start")
    compile(re.findall(r"^```py\n(.*?)^```", text, re.M | re.S)[0], "index.md", "exec")
    assert text.count("\n## ") == 2
