"""`intarsia site deal` and `multiply`: a Gram study by files, after `site sketch` has made the site's own block."""

import argparse
from collections.abc import Callable
from pathlib import Path

from intarsia.cli.message_files import from_sites, one, write_file
from intarsia.errors import InputError


def register(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`add(name, help, run)` makes a subcommand of `intarsia site` that writes a file."""
    deal = add("deal", "a Gram study: shares of this site's columns, sealed to the holders", run_deal)
    deal.add_argument("files", nargs="+", type=Path, help="the own blocks of all sites, as `site sketch` wrote them")
    multiply = add("multiply", "a Gram study: this site's shares of the products", run_multiply)
    multiply.add_argument(
        "files", nargs="+", type=Path, help="what all sites dealt; a site that holds no shares gives its own block"
    )


def run_deal(args: argparse.Namespace) -> None:
    from intarsia.cli.site import both
    from intarsia.site.answer import answer
    from intarsia.wire.gram_messages import BLOCK, GramBlock

    site, study = both(args)
    blocks = from_sites(args.files, GramBlock.from_bytes, "Gram block", step="deal")
    number = len(GramBlock.from_bytes(next(iter(blocks.values()))).commitments) - 1
    for block in range(number):
        message = answer(site, study, "deal", {BLOCK: str(block).encode()} | (blocks if block == 0 else {}))
        write_file(numbered(args.out, block, number), message)
    others = " and ".join(name for name in study.holders if name != site.name)
    print(f"next: send {'them' if number > 1 else 'it'} to {others}")


def run_multiply(args: argparse.Namespace) -> None:
    from intarsia.cli.site import both
    from intarsia.site.answer import answer
    from intarsia.wire.gram_messages import BLOCK, GramBlock, GramDeal, GramProduct

    site, study = both(args)
    holds = site.name in study.holders
    number = (
        len(GramBlock.from_bytes(site.run_store(study).need("sketch", "Make the site's own Gram block first.")).commitments) - 1
    )
    dealt: dict[int, dict[str, bytes]] = {}
    for path in args.files if holds else ():
        found = one(path, GramDeal.from_bytes, "dealt shares", step="multiply")[1]
        dealt.setdefault(found.block, {})[found.site] = found.only(study.holders.index(site.name)).to_bytes()
    late = [name for name in study.names if name != site.name and name not in dealt.get(0, {})]
    if holds and late:
        raise InputError(
            f"What {', '.join(late)} dealt to site {site.name!r} is missing. Ask for the files and give all together."
        )
    for block in range(number) if holds else (number - 1,):
        message = answer(site, study, "multiply", {BLOCK: str(block).encode(), **dealt.get(block, {})})
        write_file(numbered(args.out, block, number) if holds else args.out, message)
        assert GramProduct.from_bytes(message).final == (block == number - 1)
    print(f"next: send {'them' if holds and number > 1 else 'it'} to the server")


def numbered(path: Path, block: int, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.stem}-{block}{path.suffix}")
