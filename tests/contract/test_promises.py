"""docs/promises.md: every promise stands on its page in these words, and the tests that hold it exist."""

import re
from pathlib import Path

from intarsia.carriers.flare import guard
from intarsia.privacy.membership import membership_auc

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def plain(text: str) -> str:
    """Without emphasis, links and line breaks: words only."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(text.replace("*", "").replace("`", "").split())


def promises() -> dict[str, list[tuple[str, str]]]:
    """By page: what it says, and the cell that names the tests."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.M)
    rows = {page: re.findall(r"^\| (?!it says|---)(.+?) \| (.+) \|$", text, re.M) for page, text in zip(parts[1::2], parts[2::2])}
    assert set(rows) == {"SECURITY.md", "README.md", "docs/privacy.md", "docs/federation.md", "docs/protocol.md"}
    return rows


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(PAGE)
    assert len(named) > 100
    for file, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), f"{file}::{test}"
    assert all(TEST.search(held) for rows in promises().values() for _, held in rows)


def test_every_promise_stands_on_its_page() -> None:
    for page, rows in promises().items():
        text = plain((ROOT / page).read_text(encoding="utf-8"))
        assert [says for says, _ in rows if plain(says) not in text] == [], page


def lacking(page: str, pieces: dict[str, str]) -> list[str]:
    """Pieces of a page that no line of promises.md quotes."""
    said = [plain(says) for says, _ in promises()[page]]
    return [name for name, piece in pieces.items() if not any(words in plain(piece) for words in said)]


def test_no_promise_is_without_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promised = text.split("## What is promised")[1].split("## What is not promised")[0]
    assert lacking("SECURITY.md", {p[:40]: p for p in re.split(r"^- ", promised, flags=re.M)[1:]}) == []
    for page, heading, without in (
        ("docs/privacy.md", "## ", {"Choosing m"}),  # what a command prints
        ("docs/federation.md", "## ", set()),
        ("docs/protocol.md", "### ", {"`part` (site → server)"}),
    ):
        parts = re.split(rf"^{heading}(.+)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.M)
        sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        assert set(lacking(page, sections)) <= without, page


def test_figures_in_words() -> None:
    """Seven requests and one job, says SECURITY.md; 278 columns, 2,000 people and m = 160 make an AUC of .79, says README.md."""
    assert len(guard.REQUESTS) == 7
    assert f"{membership_auc(2000, 160, 278, 'orthonormal'):.2f}" == "0.79"
