"""The sentences of the documents that say how long an answer takes."""

from benchmarks.quoting import Sentence, fixed, kept


def whole_way() -> list[str]:
    seconds = [row["seconds"] for row in kept("whole_answer") if row["case"] == "20000"]
    return [fixed(min(seconds), 0), fixed(max(seconds), 0)]


ANSWER_QUOTES = [
    Sentence(
        "docs/performance.md", "from a joined sketch to `report.html`, 20,000 features on two cores | {} to {} |", whole_way
    ),
]
