"""Which figure of which document comes from which kept result.

python -m experiments.quoted_figures            # what differs; exit code 1 where anything does
python -m experiments.quoted_figures --write    # `make figures`: write the kept figures into the documents
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from experiments.quoted_answer import ANSWER_QUOTES
from experiments.quoted_compare import COMPARE_QUOTES
from experiments.quoted_lab import LAB_QUOTES
from experiments.quoted_prediction import PREDICTION_QUOTES
from experiments.quoting import Quote, Rows, Sentence, bare, differences, fixed, kept, short, write

README, PERFORMANCE, SKETCH = "README.md", "docs/performance.md", "docs/sketch.md"
STARTED, TRUST = "docs/getting-started.md", "docs/why-trust.md"
CURVES = {"sketch": "sketching", "sample": "sampling"}


def storage(what: str, **wanted: Any) -> dict[str, Any]:
    rows = (row for row in kept("storage")["rows"] if row["what"] == what)
    return next(row for row in rows if all(row.get(key) == value for key, value in wanted.items()))


def findings_rows() -> Iterator[list[str]]:
    for row in kept("findings"):
        if row["case"] != "confounded":
            yield [row["case"], *(str(row[key]) for key in ("data_sets", "found", "alone", "findings", "false"))]


def choosing_m_rows(design: str) -> Iterator[list[str]]:
    for row in (row for row in kept("choosing_m") if row["design"] == design):
        power = [f"{row[f'power_{e}']:.0%} / {row[f'expected_{e}']:.0%}" for e in ("0.15", "0.25", "0.35")]
        width = f"{fixed(row['width'], 2)} / {fixed(row['width_expected'], 2)}"
        yield [str(row["m"]), width, *power, f"{row['false']} of {row['findings']}"]


def outcome_rows() -> Iterator[list[str]]:
    found = kept("outcomes")
    for name, row in [*found["binary"].items(), *found["time"].items()]:
        wide, sparse = row["unshrunk"], row["sparse"]
        numbers = (wide["coverage"], sparse["coverage"], wide["coverage_selected"], sparse["coverage_selected"])
        slopes = (fixed(wide["slope"], 2), fixed(sparse["slope"], 2))
        yield [name, *(point(value) for value in numbers), *slopes, point(row["fdr"]), point(row["power"], 2)]


def predicted_rows() -> Iterator[list[str]]:
    for name, row in kept("outcomes")["predicted"].items():
        auc, brier = row["auc"], row["brier"]
        yield [
            name, str(row["sets"]), fixed(row["slope_median"], 2),
            point(auc["came"], 2), fixed(auc["off"], 2), point(auc["covered"], 2),
            point(brier["came"]), fixed(brier["off"], 3), point(brier["covered"], 2),
        ]  # fmt: skip


def point(value: float, digits: int = 3) -> str:
    """A share without the nought before its point."""
    return fixed(value, digits).removeprefix("0")


def missing() -> list[str]:
    """Union mode: coverage of the responses that some lack and of the others, widths against theory, false discoveries."""
    (row,) = kept("outcomes")["union"].values()
    names = ("coverage_missing", "coverage_whole", "width_missing", "width_missing_theory", "width_whole", "width_whole_theory")
    return [*(point(row[name]) for name in names), point(row["fdr"], 2)]


def gram_simulation_rows() -> Iterator[list[str]]:
    rows = kept("gram_simulation")["rows"]
    for cell in dict.fromkeys(row["cell"] for row in rows):
        here = [row for row in rows if row["cell"] == cell]

        def mean(way: str, what: str, here: list[dict[str, Any]] = here) -> float:
            return statistics.fmean(row[way][what] for row in here)

        errors = [f"{mean(way, 'mse_nz'):.6f}" for way in ("gram", "pooled")]
        covered = [fixed(mean(way, "coverage_nz"), 4) for way in ("gram", "pooled")]
        yield [cell, str(len(here)), *errors, *covered, f"{max(row['draws_apart'] for row in here):.0e}"]


def gram_privacy_rows() -> Iterator[list[str]]:
    rows = kept("gram_privacy")["rows"]
    for columns, epsilon in dict.fromkeys((row["columns"], row["epsilon"]) for row in rows):
        here = [row for row in rows if (row["columns"], row["epsilon"]) == (columns, epsilon)]
        told = [f"{fixed(row['gram'], 2)} / {fixed(row['sketch'], 2)} / {fixed(row['pooled'], 2)}" for row in here]
        yield [str(columns), f"{epsilon:g}", *told]


def curious_site_rows() -> Iterator[list[str]]:
    for row in kept("curious_site")["rows"]:
        counts = [fixed(row[name], 1) for name in ("found", "wrong", "likeliest", "guessed", "guessed_wrong")]
        yield [str(row["columns"]), *counts, "refuses" if row["refused"] else "lets it pass"]


def gram_noise_rows() -> Iterator[list[str]]:
    rows = kept("gram_noise")["rows"]
    for columns, epsilon in dict.fromkeys((row["columns"], row["epsilon"]) for row in rows):
        here = [row for row in rows if (row["columns"], row["epsilon"]) == (columns, epsilon)]
        told = [f"{fixed(row['drawn']['coverage'], 2)} / {fixed(row['taken']['coverage'], 2)}" for row in here]
        yield [str(columns), f"{epsilon:g}", *told]


def gram_rows() -> Iterator[list[str]]:
    for row in kept("gram")["rows"]:
        steps = [max(site[step] for site in row["site_seconds"].values()) for step in ("sketch", "deal", "multiply")]
        kb = row["bytes_per_subject_and_site"] / 1000
        yield [fixed(row["n"]), short(row["most_site_seconds"]), *map(short, steps), short(row["server_seconds"]), fixed(kb, 1),
               f"{row['error']:.0e}"]  # fmt: skip


def confounded() -> dict[str, Any]:
    return next(row for row in kept("findings") if row["case"] == "confounded")


def growth_rows() -> Iterator[list[str]]:
    for curve in kept("growth")["curves"]:
        first, last = curve["points"][0], curve["points"][-1]
        key, unit = ("seconds", "s") if curve["what"] == "sketch" else ("ms_per_sweep", "ms")
        others = sorted(curve["fixed"].items(), key=lambda pair: "nPmQ".index(pair[0]))
        against = curve["against"]
        span = f"{first[against]:,} – {last[against]:,}"
        cost = f"{short(first[key])} – {short(last[key])} {unit}"
        sizes = ", ".join(f"{name} = {value:,}" for name, value in others)
        exponents = [exponent(curve["time"]), curve["theory"], exponent(curve["memory"])]
        yield [CURVES[curve["what"]], against, sizes, span, cost, *exponents, f"{last['mb']:.0f} MB"]


def exponent(fit: dict[str, float] | None) -> str:
    return "levels off" if fit is None else f"{fit['k']:.2f} ± {fit['se']:.2f}"


def parquet_rows() -> Iterator[list[str]]:
    for row in kept("storage")["rows"]:
        if row["what"].startswith("parquet: "):
            over = f"{row['over_reading']:.2f}" if "over_reading" in row else ""
            speed = row["gib_per_s"]
            yield [row["what"].removeprefix("parquet: "), str(row["m"] or ""), fixed(row["seconds"], 1), f"{speed:.2f}", over]


def dask_rows() -> Iterator[list[str]]:
    for kind in ("array", "dataframe"):
        one, two = (storage(f"dask {kind}", workers=count) for count in (1, 2))
        yield [kind, f"{one['seconds']:.1f} s", f"{two['seconds']:.1f} s", f"{two['speed_up']:.2f}"]


def sketch_rows() -> Iterator[list[str]]:
    found = kept("sketch")
    rounds = found["time_over_gemm_rounds"]
    error = max(found["orthonormality_error"], found["phi_one"])
    digits, power = f"{error:.1e}".split("e")
    label = "time over a plain product with Φ in memory, median of"
    yield [f"{label} {len(rounds)} rounds ({min(rounds):.2f} to {max(rounds):.2f})", f"{found['time_over_gemm']:.2f}"]
    yield ["the same in processor seconds, one thread each", f"{found['cpu_over_gemm']:.2f}"]
    yield ["largest entry of ΦΦᵀ − I and of Φ1", f"{digits}·10{raised(int(power))}"]
    sizes = (
        f"the imports of {found['imports_mb']:.0f} MB (the table has {found['table_mb']:,} MB, Φ would have {found['phi_mb']} MB)"
    )
    yield [f"memory above {sizes}", f"{found['peak_mb']:.0f} MB"]


def default_run_rows() -> Iterator[list[str]]:
    rows = kept("sim2_default")
    for rho, s in sorted({(row["rho"], row["s"]) for row in rows}):
        cell = [row for row in rows if (row["rho"], row["s"]) == (rho, s)]
        means = {key: statistics.fmean(row[key] for row in cell) for key in ("mse_nz", "coverage_nz", "fdr", "power")}
        seconds = [row["seconds"] for row in cell]
        yield [
            f"{rho:g}", str(s), str(len(cell)), fixed(means["mse_nz"], 4), fixed(means["coverage_nz"], 3), fixed(means["fdr"], 3),
            fixed(means["power"], 3), str(sum(row["converged"] for row in cell)),
            f"{fixed(min(seconds), 1)} to {fixed(max(seconds), 1)}",
        ]  # fmt: skip


def raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def simulation2() -> list[str]:
    """The default fit: data sets per cell, most false discoveries, fewest signals found, coverage from and to."""
    cells: dict[tuple[float, int], list[dict[str, Any]]] = {}
    for row in kept("sim2_default"):
        cells.setdefault((row["rho"], row["s"]), []).append(row)

    def means(key: str) -> list[float]:
        return [statistics.fmean(float(row[key]) for row in cell) for cell in cells.values()]

    found = [bare(math.ceil(1000 * max(means("fdr"))) / 10, 1), fixed(math.floor(1000 * min(means("power"))) / 10, 1)]
    sets = str(min(len(cell) for cell in cells.values()))
    return [sets, *found, bare(min(means("coverage_nz")), 3), bare(max(means("coverage_nz")), 3)]


def calibrated() -> list[str]:
    """Over all simulated kinds but the smallest: kinds, data sets, false of what is named, intervals that cover from and to."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in kept("calibration"):
        kinds.setdefault(row["design"], []).append(row)

    def total(rows: list[dict[str, Any]], key: str) -> int:
        return sum(row[key] for row in rows)

    every = [row for rows in kinds.values() for row in rows]
    false = total(every, "false 0.05")
    covered = [total(rows, "covering") / total(rows, "intervals") for rows in kinds.values() if total(rows, "intervals")]
    named = fixed(total(every, "found 0.05") + false)
    return [str(len(every)), str(len(kinds)), str(false), named, bare(min(covered), 3), bare(max(covered), 3)]


def normals(threads: int) -> float:
    row = storage("stream", device=f"cpu: {threads} threads")
    return float(row["million_normals_per_s"])


def numpy_normals() -> float:
    row = storage("stream", device="cpu: 1 threads")
    return float(row["numpy_million_per_s_one_thread"])


def demos() -> list[str]:
    """Runs; true features found in the run that found fewest, of how many; false ones in the run with most."""
    runs = kept("demo")["runs"]
    there = runs[0]["right"] + runs[0]["missed"]
    return [str(len(runs)), str(min(run["right"] for run in runs)), str(there), str(max(run["wrong"] for run in runs))]


def demo_seconds() -> str:
    return fixed(5 * round(statistics.median(run["cpu_s"] for run in kept("demo")["runs"]) / 5))


def federation_rows() -> Iterator[list[str]]:
    found = kept("federation")["study"]
    sites = ("clinic", "mri", "lab")
    yield ["bytes of numbers, 8·m·(P_k + Q_k)", "", *(fixed(found["bytes_of_numbers"][site]) for site in sites)]
    yield ["bytes sent in messages", "", *(fixed(found["bytes_sent"][site]) for site in sites)]
    yield ["ratio", "", *(fixed(found["ratio"][site], 3) for site in sites)]
    for label, key in (("peak memory, all processes", "peak_memory_mb"), ("idle memory", "idle_memory_mb")):
        yield [label, *(f"{found[key][party]:,} MB" for party in ("server", *sites))]


def federation_seconds() -> Iterator[list[str]]:
    found = kept("federation")["study"]
    collect, deliver = found["seconds_in_controller"]["collect"], found["seconds_in_controller"]["deliver"]
    yield ["certificates: authority, server, operator, three sites", short(found["provision_seconds"])]
    yield ["start until all are connected", short(found["start_seconds"])]
    yield ["the study outside sampling", short(found["seconds_outside_sampling"])]
    yield ["– of which alignment, privacy check, sketch and transfer", short(collect)]
    yield ["– of which delivery", short(deliver)]
    yield ["– the rest: the engine starting and ending two jobs", short(found["seconds_outside_sampling"] - collect - deliver)]


QUOTES: list[Quote] = [
    Sentence(PERFORMANCE, "(a new key each time; the worst of {} runs) | {} of {}, {} |", demos),
    Sentence(PERFORMANCE, "sampler and report | about {} s |", lambda: [demo_seconds()]),
    Sentence(
        README, "people and m = 160, with an AUC of {}.",
        lambda: [bare(max(run["membership_auc"] for run in kept("demo")["runs"]), 2)],
    ),
    Sentence(
        PERFORMANCE, "bytes of its sketch's numbers | {} |",
        lambda: [fixed(max(kept("federation")["study"]["ratio"].values()), 3)],
    ),
    Sentence(
        PERFORMANCE, "processor time, size | {} s, {} MB |",
        lambda: [fixed(kept("demo")["report"]["cpu_s"]), fixed(kept("demo")["report"]["bytes"] / 1e6, 1)],
    ),
    Sentence(PERFORMANCE, "with Φ in memory | {} × its time", lambda: [fixed(kept("sketch")["time_over_gemm"], 1)]),
    Sentence(
        PERFORMANCE, "Simulation 2, {} data sets in each of nine cells: false discoveries, signals found, coverage | "
        "at most {} %, {} % and more, {}–{} (",
        simulation2,
    ),
    Rows("docs/privacy.md", "curious-site", curious_site_rows),
    Rows("docs/gram.md", "gram", gram_rows),
    Rows("docs/gram.md", "gram-simulation", gram_simulation_rows),
    Rows("docs/gram.md", "gram-privacy", gram_privacy_rows),
    Rows("docs/gram.md", "gram-noise", gram_noise_rows),
    Rows("docs/outcomes.md", "outcomes", outcome_rows),
    Rows("docs/outcomes.md", "predicted", predicted_rows),
    Sentence(
        "docs/union.md",
        "intervals covered {} of the true effects on the responses that some lacked and {} of those on the others, were {} times "
        "as wide as those of `intersect` on the first (in theory {}) and {} times on the others ({}), and the share of false "
        "selections was {} (at most .05 was asked for)",
        missing,
    ),
    Sentence(
        STARTED,
        "`import intarsia` takes {} s, because it loads nothing until it is used; the first use of the estimator takes {} s",
        lambda: [fixed(kept("first_use")["import_s"], 2), fixed(kept("first_use")["estimator_s"], 1)],
    ),
    Sentence(
        STARTED, "after which a first small fit takes {} s",
        lambda: [fixed(kept("first_use")["fit_compiled_s"], 1)],
    ),
    Sentence(
        STARTED, "the first fit compiles them: {} s in place of {} s",
        lambda: [fixed(kept("first_use")["fit_not_compiled_s"]), fixed(kept("first_use")["fit_compiled_s"], 1)],
    ),
    Sentence(
        TRUST,
        "of the paper, {} data sets in each of nine cells, sketched to a fifth of the rows: at most {} % of what is selected "
        "is false at a stated 5 %, {} % and more of the signals are found, and 95 % intervals of true effects cover {}–{} (",
        simulation2,
    ),
    Sentence(
        TRUST,
        "{} data sets of {} kinds, whose responses' noise correlates by .6: {} of {} features named at a stated 5 % are false, "
        "and 95 % intervals of those that are true cover {}–{} by kind",
        calibrated,
    ),
    Sentence(
        TRUST, "is selected in {} of {} data sets without adjusting for it, and in {} of {} with",
        lambda: [str(confounded()[key]) for key in ("found_without_adjusting", "data_sets", "found_adjusted", "data_sets")],
    ),
    Rows("docs/federation.md", "federation", federation_rows),
    Rows("docs/federation.md", "federation seconds", federation_seconds),
    *ANSWER_QUOTES, *COMPARE_QUOTES, *LAB_QUOTES, *PREDICTION_QUOTES,
    Rows("docs/sampler.md", "default run", default_run_rows),
    Rows(PERFORMANCE, "growth", growth_rows),
    Rows(PERFORMANCE, "parquet", parquet_rows),
    Rows(PERFORMANCE, "dask", dask_rows),
    Sentence(
        PERFORMANCE,
        "makes {} million normals per second with one thread and {} million with two (NumPy's generator, one thread: {} million)",
        lambda: [fixed(normals(1)), fixed(normals(2)), fixed(numpy_normals())],
    ),
    Sentence(PERFORMANCE, "sketching takes {} times as long ([details]", lambda: [fixed(kept("sketch")["time_over_gemm"], 1)]),
    Rows("docs/selection.md", "findings", findings_rows),
    Rows("docs/choosing-m.md", "choosing-m", lambda: choosing_m_rows("independent")),
    Rows("docs/choosing-m.md", "choosing-m correlated", lambda: choosing_m_rows("correlated")),
    Sentence(
        "docs/covariates.md", "is found in {} of {} data sets without adjusting and in {} of {} adjusted.",
        lambda: [str(confounded()[key]) for key in ("found_without_adjusting", "data_sets", "found_adjusted", "data_sets")],
    ),
    Rows(SKETCH, "sketch", sketch_rows),
    Sentence(
        SKETCH, "result: {} of 2 for the product, {} for the sketch",
        lambda: [fixed(kept("sketch")["cores_got"]["gemm"], 2), fixed(kept("sketch")["cores_got"]["orthonormal"], 2)],
    ),
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the kept figures into the documents")
    if parser.parse_args().write:
        print(f"changed: {', '.join(write(QUOTES)) or 'nothing'}")
        return 0
    found = differences(QUOTES)
    print("\n".join(found) if found else "every quoted figure is the kept one")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
