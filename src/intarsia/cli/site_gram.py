"""`intarsia site deal` and `multiply`: a Gram study by files, after `site sketch` has made the site's own block."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intarsia.errors import InputError


def register(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`add(name, help, run)` makes a subcommand of `intarsia site` that writes a file."""
    deal = add("deal", "a Gram study: this site's masked columns, sealed to another site", run_deal)
    deal.add_argument("files", nargs="+", type=Path, help="the own blocks of all sites, as `site sketch` wrote them")
    multiply = add("multiply", "a Gram study: this site's shares of the products", run_multiply)
    multiply.add_argument(
        "files", nargs="+", type=Path, help="the masked columns of the other sites; those for this one are used"
    )


def run_deal(args: argparse.Namespace) -> None:
    from intarsia.cli.site import both, write_file
    from intarsia.site.answer import answer
    from intarsia.wire.gram_messages import BLOCK, GramBlock

    site, study = both(args)
    raw = [path.read_bytes() for path in args.files]
    blocks = {GramBlock.from_bytes(r).site: r for r in raw}
    number = len(GramBlock.from_bytes(raw[0]).commitments)
    for block in range(number):
        message = answer(site, study, "deal", {BLOCK: str(block).encode()} | (blocks if block == 0 else {}))
        write_file(_numbered(args.out, block, number), message)
    print(f"send {'them' if number > 1 else 'it'} to {_receiver(site, study)}")


def run_multiply(args: argparse.Namespace) -> None:
    from intarsia.cli.site import both, write_file
    from intarsia.site.answer import answer
    from intarsia.wire.gram_messages import BLOCK, GramDeal, GramProduct

    site, study = both(args)
    mine: dict[int, Path] = {}
    for path in args.files:
        dealt = GramDeal.from_bytes(path.read_bytes())
        if dealt.to == site.name:
            mine[dealt.block] = path
    if not mine:
        raise InputError(
            f"None of the files given is for site {site.name!r}. Ask the next site of the roster for its masked columns."
        )
    message = b""
    for block in sorted(mine):
        raw = mine[block].read_bytes()
        message = answer(site, study, "multiply", {BLOCK: str(block).encode(), GramDeal.from_bytes(raw).site: raw})
    if not GramProduct.from_bytes(message).final:
        raise InputError(f"Blocks up to {max(mine)} are multiplied; give the files of the following blocks too.")
    write_file(args.out, message)
    print("send it to the server")


def _receiver(site: Any, study: Any) -> str:
    return str(study.names[(study.names.index(site.name) + 2) % 3])


def _numbered(path: Path, block: int, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.stem}-{block}{path.suffix}")
