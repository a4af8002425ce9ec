"""The tables of the documents that say how long an answer takes, and what a sweep would over several cards."""

from collections.abc import Iterator

from benchmarks.quoting import Rows, Sentence, fixed, kept

DESIGNS = {"independent": "", "ar1": ", neighbours correlated at .9", "blocks": ", blocks of ten at .9"}


def answer_rows() -> Iterator[list[str]]:
    for row in sorted(kept("answer"), key=lambda row: (row["device"] != "cpu", row["P"], row["case"], row["seed"])):
        start = ", wrong start" if "wrong" in row["case"] else ""
        over = row["rhat_over"] + row["folded_over"]
        yield [
            f"{row['P']:,} × {row['m']:,} × {row['Q']}, {row['s']}{DESIGNS[row['design']]}{start}",
            "two cores" if row["device"] == "cpu" else "H200",
            fixed(row["seconds_to_answer"], 0),
            f"{row['draws']:,}",
            fixed(row["rhat_max"], 3) + (f" ({over:,} over)" if over else ""),
            str(row["ess_min"]),
            *(fixed(row[name], 2).lstrip("0") or "0" for name in ("power", "fdr", "coverage_nz")),
            fixed(row["peak_host_gb"], 1),
            fixed(row["lasso_seconds"], 1) if "lasso_seconds" in row else "",
        ]


CARDS, TEN_MILLION = 8, 10_000_000
GB_PER_SECOND, MESSAGE_MS = 450.0, 0.02  # between cards; for a message of a few thousand numbers
# What of a sweep is measured, in words, and how it grows with the features: over the cards, with each card doing all of it, not.
PARTS = (
    ("product", "X diag(λ²) Xᵀ", "m²P / cards"),
    ("passes", "XV and XᵀW", "mPQ / cards"),
    ("scales", "all scales, block by block", "mPQ / cards"),
    ("eigenvalues", "eigenvalues of that product", "m³"),
    ("random", "random numbers", "PQ"),
)


def part_rows() -> Iterator[list[str]]:
    small, large = kept("gpu_parts")
    grown = TEN_MILLION / large["P"]
    sums = [0.0, 0.0, 0.0]
    for key, words, growth in PARTS:
        factor = {"m²P / cards": grown / CARDS, "mPQ / cards": grown / CARDS, "PQ": grown, "m³": 1.0}[growth]
        each = [small["ms"][key], large["ms"][key], factor * large["ms"][key]]
        sums = [total + value for total, value in zip(sums, each, strict=True)]
        yield [words, growth, *(fixed(value, 0) for value in each)]
    rest = [small["ms"]["whole"] - sums[0], large["ms"]["whole"] - sums[1]]
    yield ["steps of A, Σ and borderline features, and the rest", "–", *(fixed(value, 0) for value in (*rest, rest[1]))]
    numbers = 4 * 8 * large["chains"] * TEN_MILLION * large["Q"]  # four times PQ numbers of every chain
    sent, told = 1e3 * numbers / GB_PER_SECOND / 1e9, 2 * grown * large["blocks"] * MESSAGE_MS
    yield ["PQ numbers from card to card, four times", "PQ", "–", "–", fixed(sent, 0)]
    yield ["two messages per block of features", "P / m", "–", "–", fixed(told, 0)]
    whole = small["ms"]["whole"], large["ms"]["whole"], sums[2] + rest[1] + sent + told
    yield ["whole sweep", "", *(fixed(value, 0) for value in whole)]


def million() -> list[str]:
    row = kept("million_report")
    names = "judge_seconds", "report_seconds", "report_mb", "netcdf_seconds", "netcdf_gb", "extra_host_gb"
    return [f"{row[name]:g}" for name in names]


def million_fit() -> list[str]:
    row = kept("million_fit")
    names = "seconds_taken_in", "seconds_after_draws", "host_gb_beyond_x", "netcdf_gb", "coefficients_gb"
    return [str(row["whole_draws"]), *(f"{row[name]:g}" for name in names)]


def whole_way() -> list[str]:
    seconds = [row["seconds"] for row in kept("whole_answer") if row["case"] == "20000"]
    return [fixed(min(seconds), 0), fixed(max(seconds), 0)]


def seconds_to_answer() -> Iterator[str]:
    """From – to, over the data sets."""
    for case in ("20000", "100000-gpu", "1000000-gpu"):
        seconds = [row["seconds_to_answer"] for row in kept("answer") if row["case"] == case]
        yield from (fixed(min(seconds), 0), fixed(max(seconds), 0))


ANSWER_QUOTES = [
    Sentence("docs/performance.md", "100,000 and a million on one H200 | {} to {}; {} to {}; {} to {} ([how]", seconds_to_answer),
    Rows("docs/performance.md", "parts", part_rows),
    Rows("docs/mixing.md", "answer", answer_rows),
    Sentence(
        "docs/performance.md",
        "leave-one-out, effects without shrinkage) takes {} s on two cores. The report takes {} s and has {} MB; `posterior.nc` "
        "takes {} s and has {} GB with 32 whole draws. Together they need {} GB beyond X and the draws",
        million,
    ),
    Sentence(
        "docs/performance.md",
        "8 GB, and made-up draws, {} of them whole): {} s until the sketches are checked, kept and joined, {} s from the last "
        "sweep to each site's coefficients, and {} GB of host memory beyond X. `posterior.nc` has {} GB "
        "and the coefficients {} GB.",
        million_fit,
    ),
    Sentence(
        "docs/performance.md", "from a joined sketch to `report.html`, 20,000 features on two cores | {} to {} |", whole_way
    ),
]
