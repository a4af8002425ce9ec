"""The sentences and tables of the documents that say how long an answer takes, and how right it is."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.calibration import RESULT, best
from experiments.quoting import Rows, Sentence, fixed, kept
from experiments.susie import RESULT as SUSIE

FOUND = ("found", "false", "susie_found", "susie_false")
DESIGNS = {
    "weak": "weak effects, N(0, .15²)",
    "moderate": "30 effects N(0, .25²)",
    "clusters": "rows in clusters",
    "heteroscedastic": "heteroscedastic noise",
    "heavy tails": "heavy-tailed features",
    "genotypes": "genotypes in blocks",
    "blocks": "blocks correlated at .9",
    "ar": "AR(1) at .9",
    "one response": "one response",
    "forty responses": "forty responses",
    "acts on one": "effects on one of ten responses",
    "acts on half": "effects on half of six responses",
    "nothing": "nothing at all",
    "imaging": "126 people, 2,346 features, m = 50",
}
CASES = {
    "1000": "1,000 features", "5000": "5,000", "20000": "20,000", "20000-ar1": "20,000, AR(1) at .9",
    "20000-blocks": "20,000, blocks at .9", "100000": "100,000",
}  # fmt: skip


def calibration_rows() -> Iterator[list[str]]:
    rows: list[dict[str, Any]] = [json.loads(line) for line in Path(RESULT).read_text(encoding="utf-8").splitlines()]
    for design, words in DESIGNS.items():
        own = [row for row in rows if row["design"] == design]
        total = {name: sum(row[name] for row in own) for name in own[0] if isinstance(own[0][name], int)}
        sets, false_sets = total["sets 0.05"], total["false sets 0.05"]
        inside = total["covering"] / total["intervals"] if total["intervals"] else None
        yield [
            words, str(len(own)), f"{total['found 0.05']:,} of {total['true']:,}", f"{best(own):,}", str(total["false 0.05"]),
            f"{total['false entries 0.05']:,} of {total['entries 0.05'] + total['false entries 0.05']:,}",
            f"{false_sets} of {sets}" if sets else "–", "–" if inside is None else fixed(inside, 3).lstrip("0"),
        ]  # fmt: skip


def answer_rows() -> Iterator[list[str]]:
    for case, words in CASES.items():
        own = [row for row in kept("answer") if row["case"] == case]
        seconds, draws = ([row[name] for row in own] for name in ("seconds_to_answer", "draws"))
        found = sum(round(row["power"] * row["s"]) for row in own)
        yield [
            words, str(len(own)), f"{min(seconds):g} to {max(seconds):g}", f"{min(draws):,} to {max(draws):,}",
            f"{sum(row['converged'] for row in own)}", f"{found} of {sum(row['s'] for row in own)}",
            str(sum(row["false"] for row in own)),
        ]  # fmt: skip


def whole_way() -> list[str]:
    seconds = [row["seconds"] for row in kept("whole_answer") if row["case"] == "20000"]
    return [fixed(min(seconds), 0), fixed(max(seconds), 0)]


def beside_susie() -> list[str]:
    rows = [json.loads(line) for line in SUSIE.read_text(encoding="utf-8").splitlines()]
    total = {name: str(sum(row[name] for row in rows)) for name in ("susie_sets", "sets_with_ours", *FOUND)}
    middle = fixed(statistics.median(row["correlation"] for row in rows), 2).lstrip("0")
    return [str(len(rows)), middle, total["susie_sets"], total["sets_with_ours"], *(total[name] for name in FOUND)]


ANSWER_QUOTES = [
    Sentence(
        "docs/sampler.md",
        "of {} data sets in four designs the inclusion probabilities of both correlate by {} in the middle. "
        "Of its {} sets {} hold a finding of ours. At an inclusion probability of one half ours are {} true and {} false "
        "features, susieR's {} and {}: it",
        beside_susie,
    ),
    Rows("docs/sampler.md", "calibration", calibration_rows),
    Rows("docs/sampler.md", "answer", answer_rows),
    Sentence(
        "docs/performance.md", "from a joined sketch to `report.html`, 20,000 features on two cores | {} to {} |", whole_way
    ),
]
