"""`intarsia precompile`: the loops of sampler and diagnostics compiled now, so that the first fit does not wait for it."""

import argparse

EPILOG = """example:
  intarsia precompile                            # a minute or so, once for each version; nothing where it is done"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.set_defaults(run=run)


def run(_args: argparse.Namespace) -> None:
    from intarsia.server.sampler.precompile import precompile

    print(f"the loops of sampler and diagnostics are compiled ({precompile():.0f} s)")
