"""The figures in README and docs are those of the kept results; and the comparison can fail."""

import re
from pathlib import Path

import pytest
from experiments import quoted_figures, quoting
from experiments.quoting import Rows, Sentence

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_quoted_figure_is_the_kept_one() -> None:
    assert quoting.differences(quoted_figures.QUOTES) == []


@pytest.mark.parametrize("quote", quoted_figures.QUOTES, ids=lambda quote: f"{quote.page}-{getattr(quote, 'name', quote)}"[:60])
def test_a_changed_figure_is_found(quote: quoting.Quote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every quote, with its last digit on the page changed: the comparison names it, and writing puts it right."""
    text = page(quote.page)
    if isinstance(quote, Rows):
        begin = text.index(f"<!-- figures: {quote.name} -->")
        rows = re.search(r"\n\|[-:| ]+\n((?:\|.*\n)+)", text[begin:])
        assert rows
        start, end = begin + rows.start(1), begin + rows.end(1)
    else:
        start, end = quote.find(text).span(1)
    at = start + re.search(r"\d(?=\D*$)", text[start:end]).start()  # type: ignore[union-attr]
    wrong = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
    monkeypatch.setattr(quoting, "ROOT", tmp_path)
    (tmp_path / quote.page).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / quote.page).write_text(wrong, encoding="utf-8")
    assert len(quoting.differences([quote])) == 1
    assert quoting.write([quote]) == [quote.page]
    assert (tmp_path / quote.page).read_text(encoding="utf-8") == text


def test_a_sentence_that_is_gone_or_stands_twice_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quoting, "ROOT", tmp_path)
    quote = Sentence("p.md", "takes {} ms per sweep", lambda: ["27"])
    for text, wanted in (
        ("takes 27\nms per sweep", []),
        ("took 27 ms", ["0 times"]),
        (2 * "it takes 27 ms per sweep. ", ["2 times"]),
    ):
        (tmp_path / "p.md").write_text(text, encoding="utf-8")
        found = quoting.differences([quote])
        assert len(found) == len(wanted)
        assert all(word in line for word, line in zip(wanted, found))
    missing = Sentence("p.md", "takes {} ms per sweep", lambda: [quoting.kept("no_such_result")["ms"]])
    (tmp_path / "p.md").write_text("takes 27 ms per sweep", encoding="utf-8")
    assert ["no kept result" in line for line in quoting.differences([missing])] == [True]
    with pytest.raises(ValueError, match="2 figures for 1 gaps"):
        Sentence("p.md", "takes {} ms", lambda: ["1", "2"]).written("takes 5 ms")


def measured_rows() -> list[str]:
    """Rows of the performance page's first table that state a number."""
    text = page("docs/performance.md")
    table = text[text.index("## At a glance") : text.index("## How cost grows")]
    return [row for row in re.findall(r"^\| (.*) \|$", table, re.M) if re.search(r"\d", row.split(" | ")[1].split("](")[0])]


def test_every_measurement_at_a_glance_is_quoted() -> None:
    """A row with a figure that no quote reads from a file would go stale unseen."""
    quotes = [q for q in quoted_figures.QUOTES if isinstance(q, Sentence) and q.page == "docs/performance.md"]
    read = "\n".join(quote.find(page("docs/performance.md"))[0] for quote in quotes)
    unread = [row for row in measured_rows() if row.split(" | ")[1][:20] not in read]
    assert len(measured_rows()) > 5
    assert unread == []


@pytest.mark.parametrize("name", ["docs/performance.md"])
def test_every_table_of_measurements_is_quoted(name: str) -> None:
    """All tables of the page but the list of commands are written from kept results."""
    text = page(name)
    heads = re.findall(r"(?:^|\n)(\S.*)?\n\n(\|.*)\n\|[-:| ]+\n", text)
    unread = [
        head
        for before, head in heads
        if not before.startswith("<!-- figures:") and not head.startswith(("| command", "| what | number"))
    ]
    assert len(heads) == 5
    assert unread == []
