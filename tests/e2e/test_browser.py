"""The report and the monitor in a real browser: headless Chromium, driven through WebDriver."""

import json
import shutil
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.browser import WIDTHS, axe_script, barriers, look
from tests.federation import frames, sites, study
from tests.reports import card, made_up

from intarsia import report
from intarsia.privacy.card_page import page as card_page
from intarsia.report.monitor import Monitor

pytestmark = pytest.mark.browser
NASTY = "<img src=x onerror=\"document.title='owned'\"> & 🧠"


def errors(browser) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if "favicon" not in entry["message"]]


def fetched(browser) -> list[str]:
    """Addresses the page asked for, other than itself and data in the page."""
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    found = [e["params"]["request"]["url"] for e in sent if e["method"] == "Network.requestWillBeSent"]
    return [a for a in found[1:] if not a.startswith("data:")]


def rows(browser) -> list[list[str]]:
    """The visible rows of the table of features."""
    script = """return [...document.querySelectorAll('#features tbody tr')].filter(r => !r.hidden)
        .map(r => [...r.cells].map(c => c.innerText.trim()))"""
    return browser.execute_script(script)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    posterior, joined, C = made_up(features=[NASTY, *(f"f{i:03d}" for i in range(59))])
    out = report.write(posterior, tmp_path_factory.mktemp("report") / "report.html", joined=joined, truth=C, title=NASTY)
    return out.as_uri()


@pytest.mark.parametrize("size", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_opens_clean(browser, page, size, scheme):
    """No console error, nothing fetched, nothing wider than the screen, and a page of its own colour."""
    look(browser, page, size, scheme)
    assert errors(browser) == []
    assert fetched(browser) == []
    assert browser.title != "owned"
    assert browser.execute_script("return document.documentElement.scrollWidth") <= WIDTHS[size][0]
    shade = browser.execute_script("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(shade) < 200) == (scheme == "dark")


def test_tables_fit_half_a_desktop(browser, page):
    """At 500 px no table needs to be pushed sideways, and none at 1280."""
    for width in (500, 1280):
        look(browser, page)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        script = """return [...document.querySelectorAll('table')]
            .filter(t => t.offsetParent && t.scrollWidth > t.parentElement.clientWidth + 1)
            .map(t => t.closest('section')?.querySelector('h2')?.textContent + ' ' + t.className + ' ' + t.scrollWidth)"""
        assert browser.execute_script(script) == []


def test_on_a_phone_rows_are_cards_and_what_scrolls_is_reached_by_keyboard(browser, page):
    """At 390 px no table is wider than its place, every cell of a card says what it is, and every region has a stop."""
    look(browser, page, "phone")
    script = """return [...document.querySelectorAll('table.cards')].filter(t => t.offsetParent)
        .filter(t => t.scrollWidth > t.parentElement.clientWidth + 1 || getComputedStyle(t.rows[1]).display !== 'block'
          || ![...t.querySelectorAll('td[data-label]')].every(c => getComputedStyle(c, '::before').content.length > 4))
        .map(t => t.closest('section')?.id + ' ' + t.scrollWidth)"""
    assert browser.execute_script(script) == []
    assert browser.execute_script("return document.querySelectorAll('table.cards').length") > 3
    script = """return [...document.querySelectorAll('main *')]
        .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX.match(/auto|scroll/))
        .filter(e => e.tabIndex < 0).map(e => e.outerHTML.slice(0, 80))"""
    assert browser.execute_script(script) == []


def test_text_has_contrast(browser, page):
    """Every piece of plain text has at least 4.5 : 1 against what is behind it, in both lights."""
    script = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
    for scheme in ("light", "dark"):
        look(browser, page, "desktop", scheme)
        poor = browser.execute_script(script)
        assert poor == [], (scheme, poor[:5])


def test_a_figure_is_saved_by_a_click(browser, page, tmp_path):
    """As SVG and as PNG, standing alone: drawn in the colours of paper also from a dark page, whole, and with its name."""
    look(browser, page, scheme="dark")
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    figures = browser.execute_script("return document.querySelectorAll('main svg.chart').length")
    buttons = browser.find_elements("css selector", "#forest .save button, #map .save button")
    assert len(browser.find_elements("css selector", ".save button")) == 2 * figures
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    for button in buttons[:4]:  # the map, which holds a picture, and the close-up
        browser.execute_script("arguments[0].click()", button)
    until(lambda: len([*tmp_path.glob("*.svg"), *tmp_path.glob("*.png")]) == 4)
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == before
    drawn = sorted(tmp_path.glob("*.svg"))
    for path in drawn:
        text = path.read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
        assert "var(" not in text
        assert "class=" not in text
        assert root[0].tag.endswith("title")
        assert root[0].text
        inks = {piece.get("fill") for piece in root.iter("{http://www.w3.org/2000/svg}text")}
        assert "rgb(31, 35, 41)" in inks  # --ink of the light page
        raw = path.with_suffix(".png").read_bytes()
        wide, high = (int.from_bytes(raw[at : at + 4], "big") for at in (16, 20))
        scale = min(3, 16000 / max(float(root.get("width")), float(root.get("height"))))
        assert (wide, high) == pytest.approx((scale * float(root.get("width")), scale * float(root.get("height"))), abs=1)
    assert any("<image" in path.read_text(encoding="utf-8") for path in drawn)
    assert errors(browser) == []


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "dark"), ("phone", "light")])
def test_axe_finds_no_barrier(browser, page, size, scheme, tmp_path):
    """In report, privacy card and monitor; and axe itself finds one that is planted."""
    script = axe_script()
    monitor = Monitor(tmp_path, port=0)
    monitor.start()
    signed = tmp_path / "card.html"
    signed.write_text(card_page(card("warn"), "clinic"), encoding="utf-8")
    try:
        for address in (page, signed.as_uri(), monitor.address):
            look(browser, address, size, scheme)
            assert barriers(browser, script) == [], address
    finally:
        monitor.close()
    planted = tmp_path / "planted.html"
    planted.write_text('<html lang="en"><title>x</title><main><h1>x</h1><input type="text"></main></html>', encoding="utf-8")
    look(browser, planted.as_uri(), size)
    assert [line.split()[1] for line in barriers(browser, script)] == ["label"]


def test_table_sorts_and_searches(browser, page):
    look(browser, page)
    all_rows = rows(browser)
    assert len(all_rows) == 25
    button = browser.find_element("css selector", "#features th:nth-child(4) button")
    button.click()
    values = [float(row[3].replace("−", "-")) for row in rows(browser)]
    assert values == sorted(values)
    button.click()
    values = [float(row[3].replace("−", "-")) for row in rows(browser)]
    assert values == sorted(values, reverse=True)
    assert browser.find_element("css selector", "#features th:nth-child(4)").get_attribute("aria-sort") == "descending"
    search = browser.find_element("id", "q")
    name = all_rows[2][0].lstrip("✓").strip()
    search.send_keys(name)
    assert [name in row[0] for row in rows(browser)] == [True]
    assert browser.find_element("id", "count").text == "1 of 25 listed"
    search.clear()
    search.send_keys("no such feature")
    assert rows(browser) == []


def test_selected_only_and_theme(browser, page):
    look(browser, page)
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("id", "k")).select_by_value("sel")
    assert len(rows(browser)) == 4
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    browser.find_element("id", "theme").click()
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != before


def test_keyboard_reaches_the_controls(browser, page):
    """The first stop of the tab key is the way past the navigation; header cells are buttons."""
    from selenium.webdriver.common.keys import Keys

    look(browser, page)
    browser.find_element("tag name", "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"
    button = browser.find_element("css selector", "#features th:nth-child(1) button")
    browser.execute_script("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    assert browser.find_element("css selector", "#features th:nth-child(1)").get_attribute("aria-sort") == "ascending"


def test_reads_without_script(browser, page):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        look(browser, page)
        body = browser.find_element("tag name", "main")
        assert "Selected features" in body.text
        assert not browser.find_element("id", "q").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize(("P", "Q", "active"), [(60, 3, 0), (60, 1, 4), (70, 60, 6)])
def test_odd_studies(browser, tmp_path, P, Q, active):
    posterior, joined, _ = made_up(P=P, Q=Q, active=active, draws=60)
    look(browser, report.write(posterior, tmp_path / "r.html", joined=joined).as_uri(), "phone")
    assert errors(browser) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= WIDTHS["phone"][0]
    text = browser.find_element("id", "selected").text
    assert ("No feature is selected" in text) == (active == 0)


def test_many_features_open_at_once(browser, tmp_path):
    """P = 10⁵: a bounded number of elements, so that opening does not depend on P."""
    posterior, _, _ = made_up(P=100_000, Q=2, active=30, chains=2, draws=10)
    look(browser, report.write(posterior, tmp_path / "r.html").as_uri())
    assert errors(browser) == []
    assert browser.execute_script("return document.querySelectorAll('*').length") < 8000


def test_prints(browser, page):
    look(browser, page, scheme="dark")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 50_000
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not browser.find_element("tag name", "nav").is_displayed()
        shade = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert shade == "rgb(255, 255, 255)"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_monitor_follows_a_study(browser, tmp_path):
    """From waiting, through chains that move and a restarted monitor, to the report."""
    import intarsia
    from intarsia.server.study.folder import StudyFolder

    parties = sites(frames())
    plan = study(parties, fit={"draws": 60, "warmup": 40, "chains": 2, "thin": 1, "seed": 1})
    where = tmp_path / "studies" / "liver"
    StudyFolder.create(where, plan)
    monitor = Monitor(tmp_path, port=0)
    port = monitor.server.server_address[1]
    monitor.start()
    look(browser, monitor.address)
    live = browser.find_element("id", "live")
    assert "waiting for clinic, mri, lab" in live.text
    (where / "checkpoint").mkdir()
    progress = {"sweeps": 50, "total": 100, "warmup": 40, "kept": 12, "seconds": 30.0}
    for k in range(2):
        moments = {"mean": [0.1 * k], "square": [11.0]}
        (where / "checkpoint" / f"progress-{k}.json").write_text(
            json.dumps({"chain": k, **progress, **moments}), encoding="utf-8"
        )
    until(lambda: "next look in 30 s" in live.text and "R̂ so far" in live.text)
    meters = browser.execute_script("return [...document.querySelectorAll('progress')].map(p => p.value)")
    assert meters == pytest.approx([0.5, 0.5])
    monitor.close()
    until(lambda: "trying again" in browser.find_element("id", "link").text)
    monitor = Monitor(tmp_path, port=port)
    monitor.start()
    try:
        until(lambda: browser.find_element("id", "link").text == "live")
        shutil.rmtree(where / "checkpoint")
        intarsia.fit(parties, plan, folder=where)
        until(lambda: "Open the report" in live.text)
        browser.refresh()
        lines = [line for line in browser.find_element("id", "live").text.splitlines() if line.startswith("mri")]
        assert [line.count("✓") for line in lines] == [3]  # alignment, sketch, coefficients
        browser.get_log("browser")
        browser.find_element("id", "report").click()
        assert "Selected features" in browser.find_element("tag name", "body").text
        assert errors(browser) == []
    finally:
        monitor.close()


def until(true, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)
