"""Headless Chromium, driven through WebDriver: what the tests that look at pages share."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WIDTHS = {"desktop": (1280, 900), "phone": (390, 840)}


def opened() -> Iterator[Any]:
    """A browser, closed at the end; the body of a fixture."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("Chromium is not installed (make system-packages)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install 'intarsia[test]')")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


def look(browser: Any, address: str, size: str = "desktop", scheme: str = "light") -> None:
    """Open a page at a size and in a light."""
    width, height = WIDTHS[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    # Smooth scrolling would move the buttons away under the driver's hand.
    features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(address)


def axe_script() -> str:
    """axe-core, the library that looks for what keeps people out of a page."""
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed (pip install 'intarsia[test]')")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def barriers(browser: Any, script: str) -> list[str]:
    """What axe calls serious or critical in the open page: the rule, and where it first is broken."""
    browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})  # the page's own policy lets no other script in
    browser.refresh()
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": script})
    run = "axe.run(document, {resultTypes: ['violations']})"
    ask = {"expression": run, "awaitPromise": True, "returnByValue": True}
    found = browser.execute_cdp_cmd("Runtime.evaluate", ask)["result"]["value"]["violations"]
    return [
        f"{one['impact']} {one['id']} ({len(one['nodes'])}): {one['nodes'][0]['html'][:160]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
