"""`intarsia site`: everything an institution does at its own end. Nothing leaves it but the files it names."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.cli import living_site, site_check, site_gram, site_letters
from intarsia.cli.accepted import HELP, accepted, the_one
from intarsia.cli.message_files import from_sites, one, write_file, write_signed
from intarsia.cli.show import Passes, add_json, emit
from intarsia.cli.site_accept import add_accept
from intarsia.errors import InputError
from intarsia.files import replace
from intarsia.wire.plain import one_line, plural, probability, some

if TYPE_CHECKING:
    from intarsia.site.redcap import Described

_MEMBERS_SHOWN = 8  # of a set of interchangeable features
EPILOG = """examples (a study by files; DIR is the site's own folder):
  intarsia site init clinic --name clinic --table visits.parquet --id patient --responses alt,ast
  intarsia site init clinic --name clinic --table records.sqlite --query visits --id patient --ignore note
  intarsia site init clinic --name clinic --table export.csv --redcap dictionary.csv --responses phq9_total
  intarsia site show clinic                             # its fingerprint again, to read out
  intarsia site accept clinic study.toml
  intarsia site check clinic                            # what would leave, and as what; sends nothing
  intarsia site offer clinic -o clinic.offer            # send to all sites (the server may relay)
  intarsia site share clinic *.offer -o clinic.share    # send to all sites
  intarsia site combine clinic *.share -o clinic.confirmation
  intarsia site seal clinic *.confirmation              # the study key is agreed
  intarsia site announce clinic -o clinic.announcement  # subjects are compared before a sketch leaves: send to all sites
  intarsia site align clinic *.announcement -o clinic.alignment  # and this to the server, whose answer is the cohort
  intarsia site sketch clinic -o clinic.sketch          # send to the server; --cohort FILE where subjects were compared
  intarsia site deal clinic *.gram -o clinic.deal       # a Gram study only: after `site sketch clinic -o clinic.gram`
  intarsia site multiply clinic *.deal -o clinic.product
  intarsia site answer clinic clinic.letter -o clinic.answers   # a screened study: until no letter comes any more
  intarsia site receive clinic clinic.coefficients -o coefficients.csv
  intarsia site table clinic -o coefficients.xlsx       # the same later, and after a study over the network
after it has begun (docs/living-study.md):
  intarsia site leave clinic -o clinic.leave            # leave a study after having sent; send the notice to the server
  intarsia site withdraw clinic --subjects ids.txt -o study-2.toml
  intarsia site correct clinic -o study-2.toml          # after a value in the table was corrected
  intarsia site changes clinic                          # this fit beside the earlier one, in this site's units
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
    init.add_argument("--id", help="the column that identifies a subject (id, or the first of a REDCap dictionary)")
    init.add_argument("--responses", default="", help="columns this site brings as responses, separated by commas")
    init.add_argument("--covariates", default="", help="columns that are adjusted for (age, sex), separated by commas")
    init.add_argument("--ignore", default="", help="columns that stay here, separated by commas")
    init.add_argument(
        "--redcap", type=Path, help="the data dictionary (CSV) of the REDCap project that the table was exported from"
    )
    init.add_argument("--query", help="where the table is a database: one SELECT, or the name of a table")
    add_json(init)
    site_check.register(_add(sub, "check", "what would leave this site and as what; a dry run, nothing is sent", site_check.run))
    add_json(_add(sub, "show", "the site's public keys and fingerprint", run_show))
    add_accept(_add(sub, "accept", "take part in a study: its file is read, checked, confirmed by you and kept", None))
    _add(sub, "offer", "key agreement 1: this site's public key for this run", run_offer, out=True)
    share = _add(sub, "share", "key agreement 2: this site's share, sealed to the others' keys", run_share, out=True)
    share.add_argument("files", nargs="+", type=Path, help="the offers of all sites")
    combine = _add(sub, "combine", "key agreement 3: open the shares, prove the key", run_combine, out=True)
    combine.add_argument("files", nargs="+", type=Path, help="the shares of all sites")
    seal = _add(sub, "seal", "key agreement 4: check that all sites have the same key", run_seal)
    seal.add_argument("files", nargs="+", type=Path, help="the confirmations of all sites")
    _add(sub, "announce", "how many subjects and columns this site brings, for the other sites", run_announce, out=True)
    align = _add(
        sub,
        "align",
        "this site's subjects as keyed tokens (in a strict study one keyed digest), to compare them",
        run_align,
        out=True,
    )
    align.add_argument("announcements", nargs="+", type=Path, help="the announcements of all sites")
    sketch = _add(sub, "sketch", "check, then sketch: the one file made of the site's data", run_sketch, out=True)
    sketch.add_argument("--cohort", type=Path, help="the server's answer to `align`")
    sketch.add_argument("--announcements", nargs="+", type=Path, help="the announcements of all sites, for the privacy check")
    site_check.add_yes(sketch)
    site_gram.register(lambda name, text, run: _add(sub, name, text, run, out=True))
    site_letters.register(lambda name, text, run: _add(sub, name, text, run, out=True))
    receive = _add(sub, "receive", "read this site's coefficients, in its own units", run_receive, out=True)
    receive.add_argument("file", type=Path, help="the coefficients file from the server")
    receive.add_argument("--left", nargs="+", type=Path, default=[], help="notices of sites that left, from the server")
    receive.add_argument("--receipt", type=Path, help="where the receipt for the server goes (SITE.receipt beside the table)")
    add_json(receive)
    again = _add(sub, "table", "write the received coefficients as a table (again): .csv, .xlsx, .tex, .md", run_table, out=True)
    again.add_argument("--selected", action="store_true", help="rows of selected features alone, as for a paper")
    add_json(again)
    living_site.register(lambda name, text, run: _add(sub, name, text, run))
    join = _add(sub, "join", "join a server's network: request, then use the approval", run_join)
    join.add_argument("--approved", type=Path, help="the signed file the server's operator returned")
    join.add_argument("--fingerprint", help="the authority's fingerprint, as the operator told you in person: words or SHA256:…")
    serve = _add(sub, "serve", "connect to the server and answer its steps", run_serve)
    site_check.add_yes(serve)
    serve.add_argument("--patience", type=float, default=0, help="give up if not connected after so many seconds")


def _add(sub: argparse._SubParsersAction, name: str, text: str, run: object, out: bool = False) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    parser: argparse.ArgumentParser = sub.add_parser(name, help=text, description=text)
    parser.add_argument("dir", type=Path, help="the site's folder")
    if name not in ("init", "show", "accept", "check", "join", "serve"):
        parser.add_argument("--study", help=f"{HELP} (needed when there are several)")
    if out:
        parser.add_argument("-o", "--out", type=Path, required=True, help="the file to write")
    parser.set_defaults(run=run)
    return parser


def run_init(args: argparse.Namespace) -> None:
    from intarsia.site.site_folder import SiteFolder

    roles = {
        role: [one.strip() for one in getattr(args, role).split(",") if one.strip()]
        for role in ("responses", "covariates", "ignore")
    }
    table = args.table if Path(args.table).is_absolute() or not Path(args.table).exists() else str(Path(args.table).resolve())
    described = None if args.redcap is None else _described(args, table, roles)
    id = args.id or ("id" if described is None else described.id)
    site_folder = SiteFolder.create(args.dir, args.name, table, id, query=args.query, described=described, **roles)
    identity = site_folder.identity()
    public = args.dir / f"{args.name}.toml"
    replace(public, identity.toml().encode())
    data = {"name": args.name, "fingerprint": identity.fingerprint, "words": identity.words, "public": str(public)}
    lines = [
        f"site {args.name} made in {args.dir}; the private keys are in identity.key (owner only)",
        f"fingerprint  {args.name} {identity.words}",
        "             (read these words out to the other sites; their `site accept` shows the same)",
        f"public file  {public}   (send it to whoever writes study.toml)",
        *([] if described is None else described.summary()),
        *_opened(site_folder),
        f"next: look into {args.dir / 'site.toml'}, then: intarsia site check {args.dir}",
    ]
    emit(args, data, lines)


def _described(args: argparse.Namespace, table: str, roles: Mapping[str, list[str]]) -> "Described":
    """What the REDCap dictionary says of the export, column by column."""
    from intarsia.site.data.open import open_source
    from intarsia.site.data.reading import Reading
    from intarsia.site.redcap import describe, read_dictionary
    from intarsia.site.table_settings import resolve

    columns = open_source(resolve(args.dir, table), reading=Reading.of({"query": args.query})).names
    out = describe(read_dictionary(args.redcap), columns, roles["responses"], roles["covariates"])
    if args.id is not None and args.id != out.id:
        out.ignore[out.id] = "the record id"
        out.ignore.pop(args.id, None)
        out.id = args.id
    out.ignore |= dict.fromkeys(roles["ignore"], "")
    return out


def _opened(site_folder: Any) -> list[str]:
    """The new site's table as it stands now: a wrong path or column is better found here than in the middle of a study."""
    try:
        table = site_folder.site().table()
        n = len(table.ids()) if table.has_id else table.n
    except InputError as error:
        return [f"table        cannot be used yet: {one_line(str(error))}"]
    adjusted = f", {plural(len(table.covariates), 'covariate')}" if table.covariates else ""
    roles = f"{plural(len(table.features), 'feature')}, {plural(len(table.responses), 'response')}{adjusted}"
    return [f"table        {plural(n, 'subject')}, {roles} as it is now"]


def run_show(args: argparse.Namespace) -> None:
    from intarsia.site.site_folder import SiteFolder

    identity = SiteFolder.load(args.dir).identity()
    keys = {"exchange_key": identity.exchange_key, "signing_key": identity.signing_key}
    lines = [identity.toml().rstrip(), f"# fingerprint {identity.name} {identity.words}"]
    emit(args, {"name": identity.name, "fingerprint": identity.fingerprint, "words": identity.words, **keys}, lines)


def run_offer(args: argparse.Namespace) -> None:
    _step(args, "offer", {})


def run_share(args: argparse.Namespace) -> None:
    from intarsia.wire.signed import KeyOffer

    _step(args, "share", from_sites(args.files, KeyOffer.from_bytes, "offer", step="share"))


def run_combine(args: argparse.Namespace) -> None:
    from intarsia.wire.signed import ShareBundle

    _step(args, "combine", from_sites(args.files, ShareBundle.from_bytes, "share", step="combine"))


def run_seal(args: argparse.Namespace) -> None:
    from intarsia.wire.signed import Confirmation

    # Not through site/answer.py: nothing is sent, so there is no message to answer with and no refusal to word for others. Over
    # the network the same call is the first half of the answer to `announce`.
    site, study = both(args)
    site.seal(study, from_sites(args.files, Confirmation.from_bytes, "confirmation", step="announce"))
    print(f"all sites hold the same study key, fingerprint {site.key(study).study_fingerprint(study.hash)}")


def run_announce(args: argparse.Namespace) -> None:
    _step(args, "announce", {})


def run_align(args: argparse.Namespace) -> None:
    from intarsia.wire.announcement import Announcement

    site, study = both(args)
    _step(args, "align", from_sites(args.announcements, Announcement.from_bytes, "announcement", step="align"), signed=True)
    for name, counts in site.heard(study).items():
        print(f"{name}: {counts['subjects']:,} subjects listed, {counts['columns']:,} columns")


def run_sketch(args: argparse.Namespace) -> None:
    from intarsia.wire.announcement import Announcement

    site, study = both(args)
    if args.announcements:
        # A strict study by files has no step `align`, which hears them over the network. Nothing is sent; the gate of the step
        # `sketch` below, which is that of site/answer.py, reads what was heard.
        site.hear(study, from_sites(args.announcements, Announcement.from_bytes, "announcement", step="align"))
    given = {} if args.cohort is None else {"cohort": _cohort(args.cohort, study)}
    for line in [*_common(site, study, given), *_not_compared(site, study, given)]:
        print(line)
    site_check.ask(args.dir, [study], args.yes)
    _step(args, "sketch", given, signed=True)
    store = site.run_store(study)
    print("\n".join([*site_check.filled_in(store.get("card.json")), *site_check.found_before(store.get("preflight.json"))]))
    print(f"in full: {store.path('preflight.json')}; the card: {store.path('card.html')}")


def _cohort(path: Path, study: Any) -> bytes:
    """The server's answer to `align`, looked at before it is used."""
    from intarsia.wire.alignment import Cohort
    from intarsia.wire.cohort_groups import UnionCohort

    return one(path, (UnionCohort if study.alignment.mode == "union" else Cohort).from_bytes, "cohort", step="sketch")[0]


def _common(site: Any, study: Any, given: Mapping[str, bytes]) -> list[str]:
    """Whom an intersection leaves out, while nothing has been sketched yet: the server's answer beside what sites announced."""
    from intarsia.wire.alignment import Cohort, who_is_common

    heard = site.heard(study)
    if study.alignment.mode != "intersect" or "cohort" not in given or not heard:
        return []
    return who_is_common(Cohort.from_bytes(given["cohort"]).n, {name: counts["subjects"] for name, counts in heard.items()})


def _not_compared(site: Any, study: Any, given: Mapping[str, bytes]) -> list[str]:
    """A strict study by files may be sketched at once; that the sites hold other subjects shows when all sketches have left."""
    if study.alignment.mode != "strict" or "cohort" in given or len(study.names) < 2 or site.run_store(study).get("sketch"):
        return []
    return [
        "not compared yet: whether all sites hold the same subjects. If they do not, the fit refuses, and this sketch has left "
        "and counts all the same.",
        "  To compare first (a keyed digest travels): intarsia site announce, site align, server align; then sketch --cohort.",
    ]


def run_receive(args: argparse.Namespace) -> None:
    from intarsia.site.answer import answer
    from intarsia.wire.coefficients import Coefficients
    from intarsia.wire.leave import ENTRY, Leave

    site, study = both(args)
    left = from_sites(args.left, Leave.from_bytes, "notice of leaving", step="align")
    coefficients, _ = one(args.file, Coefficients.from_bytes, "coefficients", step="receive")
    notices = {ENTRY + name: raw for name, raw in left.items()}
    receipt = answer(site, study, "receive", {"coefficients": coefficients} | notices)
    told, lines = _write_results(args.out, site.model(study))
    lines += living_site.what_changed(site, study)
    back = args.receipt or args.out.with_name(f"{site.name}.receipt")
    replace(back, receipt)
    emit(args, told | {"receipt": str(back)}, [*lines, f"return {back} to the server"])


def run_table(args: argparse.Namespace) -> None:
    site, study = both(args)
    emit(args, *_write_results(args.out, site.model(study), args.selected))


def _write_results(out: Path, model: Any, selected: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The site's coefficients and, where it has responses, a table of these: neither is ever an empty file."""
    from intarsia.wire.table_files import write_table

    rows, responses = model.rows(), model.response_rows()
    verdict, converged = model.coefficients.verdict, model.coefficients.converged
    state = "" if converged else "NOT CONVERGED, what follows is provisional: "
    lines = [state + one_line(verdict)]
    picked = [row for row in rows if row["selected"]]
    written = picked if selected else rows
    told: dict[str, Any] = {"verdict": verdict, "converged": converged, "rows": len(written)}
    if rows:
        write_table(out, written, list(rows[0]))
        told["file"] = str(out)
        of = f"; {len(picked)} of selected features" if model.units.features else ", of covariates: this site brings no features"
        lines.append(f"{plural(len(written), 'coefficient')} in {out}{of}")
    if responses:
        beside = out.with_name(f"{out.stem}-responses{out.suffix}") if rows else out
        write_table(beside, responses)
        told["responses"] = str(beside)
        lines.append(f"{len(responses)} responses in {beside}: variance explained, residual sd, number of features selected")
    if not rows:
        lines.append("this site brings no features: their effects are at the sites that hold them and in the study's own table")
    for own in model.coefficients.sets:
        elsewhere = f" or {own.elsewhere} at other sites" if own.elsewhere else ""
        sure = f"(coverage {probability(own.coverage)}, purity {own.purity:.2f})"
        lines.append(
            f"one of a set matters, which one the data do not say {sure}: {some(own.members, _MEMBERS_SHOWN)}{elsewhere}"
        )
    lines += [f"mind: {one_line(text)}" for text in model.cautions()]
    return told, lines


def run_join(args: argparse.Namespace) -> None:
    from intarsia.carriers.flare import certificates as kit
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(args.dir)
    if args.approved is None:
        request = kit.join_request(args.dir, site_folder.name)
        print(f"send {request} to the server's operator (it holds no private key), and read out its words:")
        print(f"    {site_folder.name} {kit.read_request(request).words}")
        print(f'then: intarsia site join {args.dir} --approved FILE --fingerprint "the authority\'s words, or SHA256:…"')
        return
    if not args.fingerprint:
        raise InputError("Give --fingerprint: the one the server's operator told you in person, not by the same mail.")
    kit.join_finish(args.dir, args.approved, args.fingerprint)
    print(f"joined; start with: intarsia site serve {args.dir}")


def run_serve(args: argparse.Namespace) -> int:
    from intarsia.carriers.flare.engine import site_command, supervise
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(args.dir)
    site_check.ask(args.dir, accepted(args.dir), args.yes)
    command, env = site_command(args.dir, site_folder.name)
    log = args.dir / "network" / "serve.log"

    def say(text: str) -> None:
        print(f"site {site_folder.name} {text}", flush=True)

    return supervise(command, env, log, say, site=True, patience=args.patience)


def both(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    """The site and the accepted study the command is about."""
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(args.dir)
    return site_folder.site(), the_one(args.dir, args.study)


def _step(args: argparse.Namespace, step: str, payload: Mapping[str, bytes], signed: bool = False) -> None:
    """One step of the protocol, its message in a file."""
    from intarsia.site.answer import answer

    site, study = both(args)
    if step == "sketch":
        site.table().heard = Passes()
    raw = answer(site, study, step, payload, operator=True)
    if signed:
        write_signed(args.out, site, study, raw)
    else:
        write_file(args.out, raw)
