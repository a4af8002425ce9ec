"""The part of docs/lab.md that compares methods: a table for each question, written from the rows that are kept."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from experiments.compare import DESIGNS, RESULT, WORDS, table
from experiments.gram_susie import RESULT as GRAM
from experiments.kept import read_rows
from experiments.quoting import Between, Quote, bare, fixed

METHODS = ("intarsia", "susieR", "block MCP", "stability", "knockoffs", "paper's prior")
ESTIMATES = ("intarsia", "susieR", "block MCP", "stability", "paper's prior")
WAYS = {"pooled": "all", "sketch": "sketch"}
COMMAND = "`python -m experiments.compare --sets 20`"
NOTHING = f"No rows are kept yet: {COMMAND} makes them, and `make figures` writes the tables here."
QUESTIONS = {
    "Does it find what is there?": """\
The share of the true features that is found at the threshold at which 5 % of all found are really false, whatever threshold a
method would have taken. So no method gains by naming more.""",
    "Does the stated rate hold?": """\
False ones of all that each method names by its own rule: intarsia at a stated 5 %, susieR at an inclusion probability of one
half, block MCP by extended BIC, stability selection with one false feature expected, knockoffs at 5 %.""",
    "Are sets right, and small?": """\
Sets without a true member, of all sets; members of the middle set that has several; its purity. susieR makes a set of every
effect it is sure of, also of one feature.""",
    "How wrong are the effects?": """\
The share of what the features explain in 1,000 new rows. The last column is the share of our 95 % intervals that hold the true
effect, of features that were found and are true.""",
    "How long does it take?": "Processor seconds per data set, the middle one.",
}
SAID = """\
{command}: {number} data sets or more of each kind, 400 rows, 100 features and three responses unless the name says otherwise; all
rows in one place, and a sketch of 150 of them. A dash: not run, or the method says no such thing."""
GRAM_SAID = """\
`python -m experiments.gram_susie`, {sets} data sets with one response. The inclusion probabilities of a Gram study and of
`susie_suff_stat` on the same matrices correlate by {middle} in the middle. At one half we name {found} true and {false} false
features, susieR {susie_found} and {susie_false}. susieR on the matrices and on the pooled rows differs by at most {apart}. What
is left between the two is the model: ours counts models, susieR approximates them."""

Line = dict[str, Any]


@cache
def found() -> dict[tuple[str, str, str], Line]:
    return table(read_rows(RESULT))


def rows(one: Callable[[Line], str | None], methods: tuple[str, ...] = METHODS) -> Iterator[list[str]]:
    """A row for each design and kind of rows; a dash where a method has no such thing or was not run."""
    for name in DESIGNS:
        for way, words in WAYS.items():
            here = [found().get((name, way, method)) for method in methods]
            told = [None if line is None else one(line) for line in here]
            if any(text is not None for text in told):
                yield [WORDS[name], words, *("–" if text is None else text for text in told)]


def power(line: Line) -> str | None:
    return None if line["at_realised"] is None else fixed(line["at_realised"], 2)


def rule(line: Line) -> str | None:
    return f"{line['false']} of {line['named']}"


def sets(line: Line) -> str | None:
    if not line["sets"]:
        return None
    size = "–" if line["members"] is None else fixed(line["members"])
    return f"{line['false_sets']} of {line['sets']}; {size}; {'–' if line['purity'] is None else bare(line['purity'], 2)}"


def explained(line: Line) -> str | None:
    return None if line["r2"] is None else fixed(line["r2"], 2)


def seconds(line: Line) -> str | None:
    return fixed(line["seconds"], 2)


def errors() -> Iterator[list[str]]:
    """With the coverage of our intervals at the end."""
    ours = {(WORDS[name], WAYS[way]): line for (name, way, method), line in found().items() if method == METHODS[0]}
    for row in rows(explained, ESTIMATES):
        share = ours[row[0], row[1]]["coverage"]
        yield [*row, "–" if share is None else bare(share, 2)]


def markdown(columns: tuple[str, ...], body: Iterator[list[str]]) -> str:
    head = ["data", "rows", *columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))


def beside_gram() -> str:
    """Inclusion probabilities of a Gram study and of susieR on the same matrices."""
    kept = read_rows(GRAM)
    middle = sorted(row["correlation"] for row in kept)[len(kept) // 2]
    total = {name: sum(row[name] for row in kept) for name in ("found", "false", "susie_found", "susie_false")}
    apart = max(row["susie_apart"] for row in kept)
    return GRAM_SAID.format(sets=len(kept), middle=bare(middle, 2), apart=f"{apart:.0e}", **total)


def content() -> str:
    """Every question with its table."""
    if not found():
        return NOTHING
    number = min(line["data_sets"] for line in found().values())
    parts = [SAID.format(command=COMMAND, number=number), "![Power and realised rates](images/compare.svg)"]
    with_coverage = (*ESTIMATES, "our intervals cover")
    bodies = {
        METHODS: rows(power), (*METHODS, ""): rows(rule), ("intarsia", "susieR"): rows(sets, ("intarsia", "susieR")),
        with_coverage: errors(), (*METHODS, "", ""): rows(seconds),
    }  # fmt: skip
    for (question, words), (columns, body) in zip(QUESTIONS.items(), bodies.items(), strict=True):
        parts += [f"### {question}", words, markdown(tuple(name for name in columns if name), body)]
    if GRAM.exists():
        parts += ["### A Gram study and susieR on the same matrices", beside_gram()]
    return "\n\n".join(parts)


COMPARE_QUOTES: list[Quote] = [Between("docs/lab.md", "compare", content)]
