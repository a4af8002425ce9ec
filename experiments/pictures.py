"""The documents' pictures of reports: a demo's first screen and selected connections, or one section of any report.

make demo && python -m experiments.pictures demo-study/report.html      # needs Chromium (make system-packages)
python -m experiments.pictures connectome.html brain howto-neuroimaging # its section `brain`
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from selenium import webdriver

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SCREEN = {"width": 1240, "height": 800, "deviceScaleFactor": 1, "mobile": False}


def take(report: Path, section: str = "brain", name: str | None = None) -> dict[str, bytes]:
    """PNG of a section under its name; without a name of the first screen too."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SCREEN)
        browser.get(report.resolve().as_uri())
        drawn = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        browser.execute_async_script(drawn)
        first = browser.get_screenshot_as_png()
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SCREEN | {"height": 1400})
        part = browser.find_element("id", section).screenshot_as_png
        return {"report": first, section: part} if name is None else {name: part}
    finally:
        browser.quit()


def main() -> None:
    for name, raw in take(Path(sys.argv[1]), *sys.argv[2:]).items():
        picture = Image.open(io.BytesIO(raw)).convert("RGB").quantize(128)  # flat colours: a third of the bytes
        picture.save(IMAGES / f"{name}.png", optimize=True)
        print(f"written: {IMAGES / name}.png, {picture.size[0]} × {picture.size[1]}")


if __name__ == "__main__":
    main()
