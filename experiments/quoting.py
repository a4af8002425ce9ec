"""Figures of kept results in the documents: found, compared, written.

Three ways to quote. A sentence with gaps: `Sentence("README.md", "takes {} ms per sweep", values)` finds the sentence on the page
(any white space fits any other) and compares what stands in its gaps with the values. The rows of a table:
`Rows("docs/performance.md", "cpu", rows)` is the body of the table after `<!-- figures: cpu -->`; its head is the page's own.
`Between` is a whole part of a page.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from experiments.kept import read

ROOT = Path(__file__).parents[1]
kept = cache(read)


@dataclass(frozen=True)
class Sentence:
    """A sentence with gaps `{}` and the figures that belong in them, as they are printed."""

    page: str
    text: str
    values: Callable[[], Iterable[str]]

    def find(self, page: str) -> re.Match[str]:
        """Where it stands, each gap a group; ValueError where it is not there exactly once."""
        parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in self.text.split("{}")]
        found = list(re.finditer(r"([^\s|;]+?)".join(parts), page))
        if len(found) != 1:
            raise ValueError(f"{self.page}: {len(found)} times in place of once: “{self.text}”")
        return found[0]

    def written(self, page: str) -> str:
        """The page with the figures in their gaps."""
        found, values = self.find(page), list(self.values())
        if len(values) != len(found.groups()):
            raise ValueError(f"{self.page}: {len(values)} figures for {len(found.groups())} gaps: “{self.text}”")
        for group in range(len(values), 0, -1):  # from the end, so that earlier places stay where they are
            start, end = found.span(group)
            page = page[:start] + values[group - 1] + page[end:]
        return page


@dataclass(frozen=True)
class Rows:
    """The rows of the table after `<!-- figures: NAME -->`, each a list of cells."""

    page: str
    name: str
    rows: Callable[[], Iterable[Iterable[str]]]

    def written(self, page: str) -> str:
        pattern = rf"(<!-- figures: {re.escape(self.name)} -->\n\n\|[^\n]*\n\|[-:| ]+\n)((?:\|[^\n]*\n)*)"
        if len(re.findall(pattern, page)) != 1:
            raise ValueError(f"{self.page}: no table follows “<!-- figures: {self.name} -->”, or several do")
        body = "".join(f"| {' | '.join(cells)} |\n" for cells in self.rows())
        return re.sub(pattern, lambda found: found[1] + body, page)


@dataclass(frozen=True)
class Between:
    """Everything between `<!-- figures: TEXT -->` and `<!-- end -->`."""

    page: str
    text: str
    content: Callable[[], str]

    def find(self, page: str) -> re.Match[str]:
        found = list(re.finditer(rf"<!-- figures: {re.escape(self.text)} -->\n\n(.*?)\n\n<!-- end -->", page, re.S))
        if len(found) != 1:
            raise ValueError(
                f"{self.page}: {len(found)} times in place of once: “<!-- figures: {self.text} -->” to “<!-- end -->”"
            )
        return found[0]

    def written(self, page: str) -> str:
        start, end = self.find(page).span(1)
        return page[:start] + self.content() + page[end:]


Quote = Sentence | Rows | Between


def differences(quotes: Iterable[Quote]) -> list[str]:
    """A line for every quote that differs from its file or is not on its page."""
    out = []
    for quote in quotes:
        page = (ROOT / quote.page).read_text(encoding="utf-8")
        try:
            made = quote.written(page)
        except ValueError as error:
            out.append(str(error))
            continue
        except (KeyError, StopIteration, OSError) as error:
            out.append(f"{quote.page}: no kept result for “{quote.name if isinstance(quote, Rows) else quote.text}” ({error!r})")
            continue
        if made != page:
            pairs = [(a, b) for a, b in zip(page.splitlines(), made.splitlines()) if a != b]
            told = f"“{pairs[0][0].strip()}”, kept: “{pairs[0][1].strip()}”" if pairs else "another number of rows is kept"
            out.append(f"{quote.page}: {told} (make figures writes it)")
    return out


def write(quotes: Iterable[Quote]) -> list[str]:
    """Write every figure into its page; the pages that changed."""
    changed = []
    for quote in quotes:
        path = ROOT / quote.page
        page = path.read_text(encoding="utf-8")
        made = quote.written(page)
        if made != page:
            path.write_text(made, encoding="utf-8")
            changed.append(quote.page)
    return sorted(set(changed))


def fixed(value: float, digits: int = 0) -> str:
    """12,345 or 0.70."""
    return f"{value:,.{digits}f}"


def bare(value: float, digits: int) -> str:
    """A share without its leading zero, as statisticians print it: .95."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("0") if text.startswith("0.") else text


def short(value: float) -> str:
    """Two figures that tell: 0.05, 1.3, 34, 301."""
    return fixed(value, 2 if value < 1 else 1 if value < 10 else 0)
