"""`intarsia site`: everything an institution does at its own end. Nothing leaves it but the files it names."""

import argparse
from pathlib import Path

from intarsia.cli import site_check
from intarsia.cli.show import add_json, emit
from intarsia.errors import InputError

EPILOG = """examples (a study by files; DIR is the site's own folder):
  intarsia site init clinic --name clinic --table visits.parquet --id patient --responses alt,ast
  intarsia site accept clinic study.toml
  intarsia site check clinic                            # what would leave, and as what; sends nothing
  intarsia site offer clinic -o clinic.share            # send to all sites (the server may relay)
  intarsia site combine clinic *.share -o clinic.confirmation
  intarsia site seal clinic *.confirmation              # the study key is agreed
  intarsia site sketch clinic -o clinic.sketch          # send to the server
  intarsia site receive clinic clinic.coefficients -o coefficients.csv
over the network:
  intarsia site join clinic                             # writes a request for the server's operator
  intarsia site join clinic --approved clinic.signed.zip --fingerprint SHA256:…
  intarsia site serve clinic"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    sub = parser.add_subparsers(dest="sub", metavar="ACTION", required=True)

    init = _add(sub, "init", "make a site: identity keys and site.toml", run_init)
    init.add_argument("--name", required=True, help="the site's name on the roster")
    init.add_argument("--table", default="data.csv", help="the table, relative to the site's folder or absolute")
    init.add_argument("--id", default="id", help="the column that identifies a subject")
    init.add_argument("--responses", default="", help="columns this site brings as responses, separated by commas")
    add_json(init)
    site_check.register(_add(sub, "check", "what would leave this site and as what; a dry run, nothing is sent", site_check.run))
    add_json(_add(sub, "show", "the site's public keys and fingerprint", run_show))
    accept = _add(sub, "accept", "take part in a study: its file is read, checked and kept", run_accept)
    accept.add_argument("study", type=Path, help="study.toml, as you have read it")
    add_json(accept)
    _add(sub, "offer", "key agreement 1: this site's sealed share", run_offer, out=True)
    combine = _add(sub, "combine", "key agreement 2: open the shares, prove the key", run_combine, out=True)
    combine.add_argument("files", nargs="+", type=Path, help="the shares of all sites")
    seal = _add(sub, "seal", "key agreement 3: check that all sites have the same key", run_seal)
    seal.add_argument("files", nargs="+", type=Path, help="the confirmations of all sites")
    align = _add(sub, "align", "this site's keyed tokens (only for studies that intersect)", run_align, out=True)
    align.set_defaults(needs="alignment")
    sketch = _add(sub, "sketch", "check, then sketch: the one file that carries data's shadow", run_sketch, out=True)
    sketch.add_argument("--cohort", type=Path, help="the server's answer to `align`")
    receive = _add(sub, "receive", "read this site's coefficients, in its own units", run_receive, out=True)
    receive.add_argument("file", type=Path, help="the coefficients file from the server")
    add_json(receive)
    join = _add(sub, "join", "join a server's network: request, then use the approval", run_join)
    join.add_argument("--approved", type=Path, help="the signed file the server's operator returned")
    join.add_argument("--fingerprint", help="the authority's fingerprint, as the operator told you in person")
    serve = _add(sub, "serve", "connect to the server and answer its steps", run_serve)
    serve.add_argument("--patience", type=float, default=0, help="give up if not connected after so many seconds")


def _add(sub: argparse._SubParsersAction, name: str, text: str, run: object, out: bool = False) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    parser: argparse.ArgumentParser = sub.add_parser(name, help=text, description=text)
    parser.add_argument("dir", type=Path, help="the site's folder")
    if name not in ("init", "show", "accept", "check", "join", "serve"):
        parser.add_argument("--study", help="which accepted study, by id (needed when there are several)")
    if out:
        parser.add_argument("-o", "--out", type=Path, required=True, help="the file to write")
    parser.set_defaults(run=run)
    return parser


def run_init(args: argparse.Namespace) -> None:
    from intarsia.site.site_folder import SiteFolder

    responses = [label.strip() for label in args.responses.split(",") if label.strip()]
    table = args.table if Path(args.table).is_absolute() or not Path(args.table).exists() else str(Path(args.table).resolve())
    site_folder = SiteFolder.create(args.dir, args.name, table, args.id, responses)
    identity = site_folder.identity()
    public = args.dir / f"{args.name}.toml"
    public.write_text(identity.toml(), encoding="utf-8")
    data = {"name": args.name, "fingerprint": identity.fingerprint, "public": str(public)}
    lines = [
        f"site {args.name} made in {args.dir}; the private keys are in identity.key (owner only)",
        f"fingerprint  {identity.fingerprint}   (read it out to the other sites)",
        f"public file  {public}   (send it to whoever writes study.toml)",
        f"next: look into {args.dir / 'site.toml'}",
    ]
    emit(args, data, lines)


def run_show(args: argparse.Namespace) -> None:
    from intarsia.site.site_folder import SiteFolder

    identity = SiteFolder.load(args.dir).identity()
    keys = {"exchange_key": identity.exchange_key, "signing_key": identity.signing_key}
    lines = [identity.toml().rstrip(), f"# fingerprint {identity.fingerprint}"]
    emit(args, {"name": identity.name, "fingerprint": identity.fingerprint, **keys}, lines)


def run_accept(args: argparse.Namespace) -> None:
    from intarsia.cli.study import explain
    from intarsia.site.site_folder import SiteFolder

    study = SiteFolder.load(args.dir).accept(args.study)
    emit(args, {"study": study.id, "hash": study.hash}, [*explain(study), "accepted"])


def run_offer(args: argparse.Namespace) -> None:
    site, study = _both(args)
    _write(args.out, site.offer(study))


def run_combine(args: argparse.Namespace) -> None:
    from intarsia.wire.signed import ShareBundle

    site, study = _both(args)
    raw = [path.read_bytes() for path in args.files]
    _write(args.out, site.combine(study, {ShareBundle.from_bytes(r).site: r for r in raw}))


def run_seal(args: argparse.Namespace) -> None:
    from intarsia.wire.signed import Confirmation

    site, study = _both(args)
    raw = [path.read_bytes() for path in args.files]
    site.seal(study, {Confirmation.from_bytes(r).site: r for r in raw})
    print(f"all sites hold the same study key, fingerprint {site.key(study).fingerprint}")


def run_align(args: argparse.Namespace) -> None:
    site, study = _both(args)
    _write(args.out, site.align(study))


def run_sketch(args: argparse.Namespace) -> None:
    site, study = _both(args)
    cohort = None if args.cohort is None else args.cohort.read_bytes()
    raw = site.sketch(study, cohort)
    _write(args.out, raw)
    signature = site.signature(study, raw)
    if signature is not None:
        _write(args.out.with_name(args.out.name + ".sig"), signature)
    preflight = site.run_store(study).path("preflight.json")
    print(f"what the privacy check found is in {preflight}")


def run_receive(args: argparse.Namespace) -> None:
    from intarsia.cli.deliver import write_rows

    site, study = _both(args)
    model = site.receive(study, args.file.read_bytes())
    rows = model.rows()
    write_rows(args.out, rows)
    picked = [row for row in rows if row["selected"]]
    lines = [f"{len(rows)} coefficients in {args.out}; {len(picked)} of selected features", model.coefficients.verdict]
    emit(args, {"rows": len(rows), "file": str(args.out), "verdict": model.coefficients.verdict}, lines)


def run_join(args: argparse.Namespace) -> None:
    from intarsia.carriers.flare import certificates as kit
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(args.dir)
    if args.approved is None:
        request = kit.join_request(args.dir, site_folder.name)
        print(f"send {request} to the server's operator (it holds no private key);")
        print("then: intarsia site join DIR --approved FILE --fingerprint SHA256:…")
        return
    if not args.fingerprint:
        raise InputError("Give --fingerprint: the one the server's operator told you in person, not by the same mail.")
    kit.join_finish(args.dir, args.approved, args.fingerprint)
    print(f"joined; start with: intarsia site serve {args.dir}")


def run_serve(args: argparse.Namespace) -> int:
    from intarsia.carriers.flare.engine import site_command, supervise
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(args.dir)
    command, env = site_command(args.dir, site_folder.name)
    log = args.dir / "network" / "serve.log"

    def say(text: str) -> None:
        print(f"site {site_folder.name} {text}", flush=True)

    return supervise(command, env, log, say, site=True, patience=args.patience)


def _both(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    """The site and the accepted study the command is about."""
    from intarsia.site.site_folder import SiteFolder
    from intarsia.wire.study import Study

    site_folder = SiteFolder.load(args.dir)
    studies = [Study.load(path) for path in sorted((args.dir / "accepted").glob("*.toml"))]
    wanted = [s for s in studies if args.study is None or args.study in (s.id, s.hash[: len(args.study)])]
    if len(wanted) != 1:
        have = ", ".join(f"{s.id} ({s.hash[:8]})" for s in studies) or "none; run `intarsia site accept`"
        raise InputError(f"Say which study with --study: {len(wanted)} fit. Accepted here: {have}.")
    return site_folder.site(), wanted[0]


def _write(path: Path, raw: bytes) -> None:
    from intarsia.wire.container import write

    write(path, raw)
    print(f"wrote {path} ({len(raw):,} bytes)")
