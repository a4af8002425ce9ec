"""`intarsia key`: make a sketch key, and name one without showing it."""

import argparse
import json

EXAMPLE = """example:
  intarsia key new -o study.key       # once, at one site; bring the file to the other sites by a safe way
  intarsia key show study.key         # every site reads the same fingerprint aloud
The server must never get this file. Sites that cannot carry a file agree on a key through the federation."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="make a key of 32 bytes from the operating system")
    new.add_argument("-o", "--out", default="study.key", help="file to write, readable by its owner only (study.key)")
    new.add_argument("--overwrite", action="store_true", help="replace an existing file; the old key is lost")
    new.set_defaults(run=run_new)
    show = actions.add_parser("show", help="print a key file's fingerprint")
    show.add_argument("file", help="the key file")
    show.set_defaults(run=run_show)
    for action in (new, show):
        action.add_argument("--json", action="store_true", help="print JSON")


def run_new(args: argparse.Namespace) -> None:
    from intarsia.site.key import SketchKey

    key = SketchKey.new()
    key.save(args.out, overwrite=args.overwrite)
    if args.json:
        print(json.dumps({"file": args.out, "fingerprint": key.fingerprint}))
    else:
        print(f"wrote {args.out} (fingerprint {key.fingerprint})")
        print("Keep it secret: the sites share it, the server never gets it.")


def run_show(args: argparse.Namespace) -> None:
    from intarsia.site.key import SketchKey

    fingerprint = SketchKey.load(args.file).fingerprint
    print(json.dumps({"file": args.file, "fingerprint": fingerprint}) if args.json else fingerprint)
