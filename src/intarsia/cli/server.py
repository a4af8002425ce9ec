"""`intarsia server`: the party that sees sketches only. By files it needs no more than `intarsia fit`."""

import argparse
import sys
from pathlib import Path

from intarsia.cli.confirm import add_fingerprints, confirm
from intarsia.cli.show import add_json, emit
from intarsia.wire.words import in_lines

EPILOG = """examples:
  intarsia server init server --host study.example.org
  intarsia server approve server clinic.request.zip     # shows the key's words: compare them by telephone
  intarsia server approve server clinic.request.zip --fingerprints words.txt
  intarsia server start server --monitor                # and a page about its studies on localhost
  intarsia server --monitor server                      # the page alone (or of one study folder)
  intarsia server align *.alignment --study study.toml -o liver     # by files: intersect what sites wrote with `site align`
  intarsia study run study.toml --server server"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--monitor", dest="watch", type=Path, metavar="DIR", help="serve the monitor page of a server's or study's folder"
    )
    _monitor_options(parser)
    parser.set_defaults(run=run_monitor)
    sub = parser.add_subparsers(dest="sub", metavar="ACTION")
    init = sub.add_parser("init", help="make a federation: authority, server and operator certificates")
    init.add_argument("dir", type=Path, help="the server's folder, to be made")
    init.add_argument("--host", default="localhost", help="the name under which sites reach this machine")
    init.add_argument("--port", type=int, default=8002, help="at which sites reach it (default %(default)s)")
    init.add_argument("--admin-port", type=int, default=8003, help="for the operator's own commands (default %(default)s)")
    add_json(init)
    init.set_defaults(run=run_init)
    approve = sub.add_parser("approve", help="sign a site's certificate request")
    approve.add_argument("dir", type=Path, help="the server's folder")
    approve.add_argument("request", type=Path, help="NAME.request.zip, as the site sent it; NAME is its name on the roster")
    approve.add_argument("--study", type=Path, help="study.toml: refuse a name that is not on its roster")
    add_fingerprints(approve)
    add_json(approve)
    approve.set_defaults(run=run_approve)
    start = sub.add_parser("start", help="run the server")
    start.add_argument("dir", type=Path, help="the server's folder")
    start.add_argument("--monitor", action="store_true", help="also serve the monitor page")
    _monitor_options(start)
    start.set_defaults(run=run_start)
    align = sub.add_parser("align", help="studies by files: the common subjects, or groups by responses, from the sites' tokens")
    align.add_argument("files", nargs="+", type=Path, help="the alignment files of all sites")
    align.add_argument("--study", type=Path, required=True, help="study.toml")
    align.add_argument("-o", "--out", type=Path, required=True, help="the study folder; one answer per site is put there")
    add_json(align)
    align.set_defaults(run=run_align)


def _monitor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--monitor-host", default="127.0.0.1", help="where the page listens; not loopback: a token is needed")
    parser.add_argument("--monitor-port", type=int, default=8600, help="the page's port (default %(default)s)")
    parser.add_argument("--monitor-token", help="the token (default: one is made and printed when it is needed)")


def _monitor(args: argparse.Namespace, folder: Path):  # type: ignore[no-untyped-def]
    from intarsia.report.monitor import Monitor

    monitor = Monitor(folder, host=args.monitor_host, port=args.monitor_port, token=args.monitor_token)
    print(f"monitor  {monitor.address}", flush=True)
    return monitor


def run_monitor(args: argparse.Namespace) -> None:
    from intarsia.errors import InputError

    if args.watch is None:
        raise InputError("Say what to do: init, approve, start, align, or --monitor DIR. `intarsia server --help` shows all.")
    _monitor(args, args.watch).serve()


def run_init(args: argparse.Namespace) -> None:
    from intarsia.carriers.flare.certificates import authority_words, server_init

    extra = ("127.0.0.1",) if args.host == "localhost" else ()
    digest = server_init(args.dir, args.host, args.port, args.admin_port, extra)
    words = authority_words(digest)
    lines = [
        f"server made in {args.dir}; keep {args.dir / 'ca'} to yourself",
        f"authority's fingerprint (tell it to every site in person): {digest}",
        "the same in words:",
        *(f"    {line}" for line in in_lines(words)),
    ]
    emit(args, {"dir": str(args.dir), "fingerprint": digest, "words": words}, lines)


def run_approve(args: argparse.Namespace) -> None:
    from intarsia.carriers.flare.certificates import approve, authority_words, read_request
    from intarsia.wire.study import Study

    request = read_request(args.request)
    if args.study is not None:
        Study.load(args.study).check_sender(request.name)
    print(f"A request for the certificate of the client {request.name}, and of nobody else; its key's words:", file=sys.stderr)
    confirm({request.name: request.words}, args.fingerprints)
    signed, digest = approve(args.dir, request)
    words = authority_words(digest)
    data = {"name": request.name, "words": request.words, "signed": str(signed), "fingerprint": digest, "authority_words": words}
    emit(args, data, [f"return {signed}", f"fingerprint {digest}", "in words:", *(f"    {line}" for line in in_lines(words))])


def run_start(args: argparse.Namespace) -> int:
    from intarsia.carriers.flare.engine import server_command, supervise

    command, env = server_command(args.dir)
    if args.monitor:
        _monitor(args, args.dir).start()
    return supervise(command, env, args.dir / "server" / "start.log", lambda text: print(f"server {text}"))


def run_align(args: argparse.Namespace) -> None:
    from intarsia.carriers.files import carrier
    from intarsia.server.study.folder import StudyFolder
    from intarsia.server.study.protocol import align
    from intarsia.wire.alignment import who_is_common
    from intarsia.wire.container import write
    from intarsia.wire.plain import one_line

    folder = StudyFolder.create(args.out, args.study)
    with folder.locked():
        cohorts = align(folder, carrier(folder.study, args.files))
    for name, raw in cohorts.items():
        write(args.out / f"{name}.cohort", raw)
    n = next(iter(folder.cohorts().values())).n
    groups, dropped = folder.groups()
    listed = folder.listed()
    told = {"n": n, "folder": str(args.out), "listed": listed}
    if not groups:
        emit(args, told, [*who_is_common(n, listed), f"next: send each site its .cohort file of {args.out}"])
        return
    lines = [f"{n:,} subjects are at all sites with features and have a response, in {len(groups)} groups:"]
    lines += [f"  {group.n:,} subjects, {group.m:,} sketch rows: {one_line(', '.join(group.responses))}" for group in groups]
    lines += [f"  {dropped:,} more are left out: too few have the same responses, or they have none"] if dropped else []
    found = [{"n": group.n, "m": group.m, "responses": list(group.responses)} for group in groups]
    emit(args, told | {"groups": found, "left_out": dropped}, [*lines, f"next: send each site its .cohort file of {args.out}"])
