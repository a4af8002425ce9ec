"""`intarsia fit`: the server's step by files, from sketches to a posterior and one coefficients file per site."""

import argparse
from pathlib import Path
from typing import Any

from intarsia.cli.show import add_json, emit
from intarsia.errors import StudyError
from intarsia.wire.plain import plural, probability, some

EPILOG = """examples:
  intarsia fit clinic.sketch mri.sketch --study study.toml -o liver
  intarsia fit *.gram *.product --study study.toml -o liver     # a Gram study: the sites' own blocks and their products
  intarsia fit --study study.toml -o liver              # a screened study: writes letters to the sites
  intarsia fit *.answers -o liver                       # goes on with their answers, until no letter is left
  intarsia fit lab.sketch -o liver                      # a site that came later; the folder knows its study
  intarsia fit -o liver --draws 3000                    # not converged, and no site has its coefficients yet: go on
  intarsia fit *.sketch --study study.toml -o liver --backend jax     # on a GPU: many thousands of features
An interrupted fit goes on where it was when the same command is given again."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("sketches", nargs="*", type=Path, help="one sketch of each site (those already in -o are known)")
    parser.add_argument("--study", type=Path, help="study.toml; needed once, the study folder keeps it")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the study folder")
    add_length(parser)
    parser.add_argument("--workers", type=int, help="processes for the sampler")
    parser.add_argument(
        "--backend", choices=("numpy", "jax"),
        help="jax: make the sweeps on an accelerator (pip install 'intarsia[gpu]'); the study folder keeps it (default: numpy)",
    )  # fmt: skip
    add_json(parser)
    parser.set_defaults(run=run)


def add_length(parser: argparse.ArgumentParser) -> None:
    """How long the chains run is the server's own matter: no site sees it."""
    parser.add_argument("--draws", type=int, metavar="N", help="go on until N draws per chain, in place of study.toml's budget")
    parser.add_argument("--warmup", type=int, metavar="N", help="begin again with N sweeps of warm-up per chain")


def length_of(args: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(args, name) for name in ("draws", "warmup") if getattr(args, name) is not None}


def how_to_go_on(summary: dict[str, Any], command: str) -> list[str]:
    """For a fit that has not converged: what to do before it is handed out. Sites take the coefficients of a run once."""
    if summary["converged"]:
        return []
    draws = summary.get("draws_to_converge")
    longer = "--warmup 2000" if draws is None else f"--draws {draws}"
    return [f"first (a site takes its coefficients once): {command} {longer}"]


def found(summary: dict[str, Any]) -> list[str]:
    """The verdict, then what was found: called provisional unless the fit has converged."""
    state = "converged" if summary["converged"] else "NOT CONVERGED, what follows is provisional"
    lines = [f"{state}: {summary['verdict']}"]
    chosen, sets = summary["selected"], summary.get("sets", [])
    lines.append(f"{len(chosen)} of {summary['features']:,} features selected" + (f": {some(chosen, 12)}" if chosen else ""))
    if sets:
        each = "; ".join(
            "/".join(one["members"][:4])
            + ("/…" if len(one["members"]) > 4 else "")
            + f" (coverage {probability(one['coverage'])})"
            for one in sets[:6]
        )
        lines.append(f"{plural(len(sets), 'set')} of interchangeable features, of each of which one matters (coverage): {each}")
    if rows := summary.get("confirmation"):
        doubted = ["/".join(row["features"][:4]) for row in rows if not row["confirmed"]]
        said = f"{len(rows) - len(doubted)} of {len(rows)} findings stand by what the sketch that screened did not see"
        lines.append(said + (f"; not {some(doubted, 12)}" if doubted else ""))
    if summary.get("left"):
        lines.append(f"without {', '.join(summary['left'])}, which left after having sent")
    if summary.get("left_out"):
        each = ", ".join(f"{count:,} of {name}" for name, count in summary["left_out"].items())
        lines.append(
            f"the fit rests on {summary['subjects']:,} subjects; left out, because not all sites have them: {each} (if too "
            "many: how are the ids written? see [alignment] canonical)"
        )
    if summary.get("not_predicted"):
        lines.append(f"not predicted beyond chance: {some(summary['not_predicted'], 12)}")
    return lines


def _to_send(summary: dict[str, Any], out: Path) -> list[str]:
    return [
        *(f"send {path}" for path in summary["letters"]),
        "each site answers its own: intarsia site answer SITE SITE.letter -o SITE.answers",
        f"then: intarsia fit *.answers -o {out}",
    ]


def _to_deliver(out: Path, by_letters: bool) -> list[str]:
    if by_letters:
        return ["every site has its coefficients and has acknowledged them"]
    return [
        f"send each site its own file of {out / 'coefficients'}",
        f"when their receipts come back: intarsia deliver receipts {out} *.receipt",
    ]


def run(args: argparse.Namespace) -> None:
    from intarsia.carriers.by_letters import fit_by_letters
    from intarsia.carriers.files import fit_files
    from intarsia.progress import Bar
    from intarsia.wire.study import Study

    if (args.out / "site.toml").is_file():
        raise StudyError(f"{args.out} is a site's folder. Give the server a folder of its own with -o.")
    if args.study is None and not (args.out / "study.toml").is_file():
        raise StudyError(f"{args.out} is not a study folder yet: say which study the sketches are of with --study study.toml.")
    with Bar() as bar:
        how = {"workers": args.workers, "backend": args.backend, "progress": bar, "length": length_of(args)}
        if Study.load(args.study or args.out / "study.toml").sketch.screened:
            summary = fit_by_letters(args.sketches, args.study, args.out, **how)
        else:
            summary = fit_files(args.sketches, args.study, args.out, **how)
    if "verdict" not in summary:
        return emit(args, summary, _to_send(summary, args.out))
    lines = [
        *found(summary),
        *how_to_go_on(summary, f"intarsia fit -o {args.out}"),
        f"posterior  {args.out / 'posterior.nc'}",
        *(_to_send(summary, args.out) if summary.get("letters") else _to_deliver(args.out, "letters" in summary)),
        f"look at it: intarsia report {args.out} -o report.html",
    ]
    emit(args, summary, lines)
