"""`intarsia study`: write, check, repeat, run and follow a study."""

import argparse
import json
from pathlib import Path
from typing import Any

from intarsia.cli import kind_options, living_study
from intarsia.cli.show import add_json, emit, table
from intarsia.errors import InputError, StudyError
from intarsia.files import json_lines
from intarsia.privacy.policy import Policy
from intarsia.wire.container import write
from intarsia.wire.defaults import CHAINS
from intarsia.wire.kinds import in_words
from intarsia.wire.plain import one_line, some
from intarsia.wire.schema import Checker, check_name
from intarsia.wire.study import Study, new_run, read_study_text
from intarsia.wire.study_parts import MAX_LIST_RATIO, SERVER
from intarsia.wire.words import in_lines, to_words

EPILOG = """examples:
  intarsia study new study.toml --id liver --m 300 --site clinic.toml --site mri.toml --responses clinic=alt,ast
  intarsia study new study.toml --id asthma --m 400 --site clinic.toml --site lab.toml --responses clinic=asthma,months \
      --kind asthma=binary --kind months=time,horizon=24,unit=months --union --share-scales
  intarsia study check study.toml
  intarsia study run study.toml --server server
  intarsia study status server/studies/liver-1a2b3c4d
after it has begun (docs/living-study.md):
  intarsia study leave server/studies/liver-1a2b3c4d mri.leave         # a site left; fitted again without it
  intarsia study join study.toml --site lab.toml --responses lab=hdl -o study-2.toml
  intarsia study again study.toml --reason correction -o study-2.toml
  intarsia study changes server/studies/liver-5e6f7a8b --before server/studies/liver-1a2b3c4d"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    sub = parser.add_subparsers(dest="sub", metavar="ACTION", required=True)

    new = sub.add_parser("new", help="write a commented study.toml")
    new.add_argument("path", type=Path, help="the file to write")
    new.add_argument("--id", required=True, help="the study's short name")
    new.add_argument("--m", type=int, default=200, help="rows of the sketch (default 200; at most a tenth of n is wise)")
    new.add_argument(
        "--site",
        action="append",
        required=True,
        metavar="NAME|FILE",
        help="a site, by name or by the public file that `intarsia site init` writes; once for each",
    )
    new.add_argument("--responses", action="append", default=[], metavar="SITE=A,B", help="responses a site brings")
    new.add_argument(
        "--features", action="append", default=[], metavar="SITE=A,B", help="its features (default: *; SITE= for none)"
    )
    new.add_argument(
        "--covariates",
        action="append",
        default=[],
        metavar="SITE=A,B",
        help="columns to adjust for, never selected; one of categories as 'sex=*'",
    )
    new.add_argument(
        "--gram", action="store_true", help="no sketch: the exact Gram matrix, by three holders of shares (docs/gram.md)"
    )
    new.add_argument(
        "--screened", action="store_true", help="no sketch: look at all features, multiply the few (docs/screened.md)"
    )
    mode = new.add_mutually_exclusive_group()
    mode.add_argument("--intersect", action="store_true", help="align on the subjects that all sites have")
    mode.add_argument("--union", action="store_true", help="subjects may lack some responses (docs/union.md)")
    new.add_argument("--min-group", type=int, metavar="N", help="with --union: leave out groups of fewer subjects (default 100)")
    new.add_argument("--kind", action="append", default=[], metavar="RESPONSE=KIND,…", help=kind_options.HELP)
    new.add_argument(
        "--share-scales",
        action="store_true",
        help="owners publish their responses' sd: all sites read odds ratios and units",
    )
    for name, (what, usual) in LENGTH.items():
        default = "the sampler's own choice" if usual == "…" else usual
        new.add_argument(f"--{name}", type=int, metavar="N", help=f"{what} (default: {default})")
    new.set_defaults(run=run_new)

    check = sub.add_parser("check", help="validate a study file and say what it means")
    check.add_argument("path", type=Path, help="the study file")
    add_json(check)
    check.set_defaults(run=run_check)

    living_study.register(sub)

    status = sub.add_parser("status", help="where a study stands, step by step")
    status.add_argument("folder", type=Path, help="the study folder at the server")
    add_json(status)
    status.set_defaults(run=run_status)

    go = sub.add_parser("run", help="run a study over the network, or go on after an interruption")
    go.add_argument("path", type=Path, help="study.toml")
    go.add_argument("--server", type=Path, required=True, help="the server's folder (`intarsia server init`)")
    go.add_argument("--timeout", type=int, default=600, help="seconds a site may take for one step (default 600)")
    go.add_argument("--wait", type=float, default=60, help="seconds to wait for sites to connect (default 60)")
    go.add_argument("--workers", type=int, default=None, help="processes for the sampler")
    go.add_argument("--until", choices=("collect", "fit", "deliver"), default="deliver", help="stop after this step")
    go.add_argument("--provisional", action="store_true", help="hand coefficients out even if the fit has not converged")
    add_json(go)
    go.set_defaults(run=run_run)


def run_new(args: argparse.Namespace) -> None:
    if args.path.exists():
        raise InputError(f"{args.path} exists already; it is not overwritten.")
    responses, features, covariates = by_site(args.responses), by_site(args.features), by_site(args.covariates)
    if args.min_group is not None and not args.union:
        raise InputError("--min-group belongs to --union.")
    kinds = kind_options.kinds_by_site(args.kind, responses)
    sites = [site_of(text) for text in args.site]
    names = [site["name"] for site in sites]
    for name in (*responses, *features, *covariates):
        if name not in names:
            raise InputError(f"{name!r} is not one of the sites {', '.join(names)}.")
    blocks = [
        site_block(
            site,
            {"features": features.get(name, ["*"]), "responses": responses.get(name, []), "covariates": covariates.get(name, [])},
            kinds.get(name),
        )
        for site, name in zip(sites, names, strict=True)
    ]
    mode = "union" if args.union else "intersect" if args.intersect else "strict"
    least = f"min_group = {args.min_group}" if args.min_group is not None else "# min_group = 100"
    length = "\n".join(length_line(name, getattr(args, name)) for name in LENGTH)
    text = TEMPLATE.format(id=args.id, run=new_run(), m=args.m, mode=mode, least=least, length=length, sites="\n".join(blocks))
    if args.share_scales:
        text = text.replace("share_scales = false", "share_scales = true ")
    if args.gram and args.screened:
        raise InputError("--gram and --screened are two kinds of study: give one of them.")
    if args.gram or args.screened:
        head, rest = text.split("[sketch]\n")
        holders = json.dumps([*names[:3], *([SERVER] if len(names) == 2 else [])], ensure_ascii=False)
        plan = (SCREENED_SKETCH if args.screened else GRAM_SKETCH).format(holders=holders)
        text = f"{head}[sketch]\n{plan}\n[alignment]\n{rest.split('[alignment]')[1].lstrip()}"
    try:
        study = Study.parse(text, str(args.path))
    except StudyError as error:
        hint = "" if responses else " Name the responses: --responses SITE=A,B."
        raise StudyError(f"{error}{hint}") from None
    write(args.path, text.encode())
    print(f"wrote {args.path} (hash {study.hash[:16]}…). Edit it, then send the same file to every site.")


def run_check(args: argparse.Namespace) -> None:
    study = Study.load(args.path)
    emit(args, {"hash": study.hash, **study.to_dict()}, explain(study))


def explain(study: Study, *, hash_words: bool = True) -> list[str]:
    """What a study file says, for a data officer. `accept` asks for the words of its hash instead of showing them."""
    s, f, p = study.sketch, study.fit, study.privacy
    lines = [f"Study {study.id}, run {study.run[:12]}…, hash {study.hash} (every site must see the same hash)"]
    if hash_words:
        lines = [f"{lines[0]}, in words:", *(f"    {line}" for line in in_lines(to_words(bytes.fromhex(study.hash)), 8))]
    if study.replaces is not None:
        because = f" (reason: {study.reason})" if study.reason else ""
        steps = ("The shares are new", "multiplies") if s.shares else ("Φ is new", "sketches")
        lines.append(
            f"It replaces the run with hash {study.replaces[:16]}…{because}. {steps[0]}: every site agrees, aligns and "
            f"{steps[1]} anew, and what the earlier run told stays told."
        )
    lines.append(
        _screened_words(study)
        if s.screened
        else "Gram matrix: no sketch; the sites multiply their columns in shares, the server gets the exact correlations of all "
        "columns."
        if s.gram
        else f"Sketch: {s.m} rows, {s.kind}, values leave as {s.precision}."
    )
    if study.alignment.mode == "strict":
        lines.append("Subjects: all sites must hold exactly the same; only a keyed digest of the ids travels.")
    elif study.alignment.mode == "union":
        lines.append(
            "Subjects: those that all sites with features have, grouped by the responses they have; keyed tokens travel, so the "
            "server sees who has which response, and how many; and each site learns of its own subjects which responses of the "
            "other sites they have."
        )
    else:
        lines.append("Subjects: those that all sites have; keyed tokens travel, so the server sees who overlaps with whom.")
    if study.alignment.mode != "strict":
        most = f"{study.alignment.max_subjects:,}" if study.alignment.max_subjects else f"{MAX_LIST_RATIO} times a site's own"
        lines.append(f"  A site that lists people finds out who of them is at all sites; the longest list allowed is {most}.")
    lines.append(f"Ids are compared after: {', '.join(study.alignment.canonical) or 'nothing'}.")
    for site in study.sites:
        has = f"features {some(site.features, 6)}" if site.features else "no features"
        also = f", responses {some(site.responses, 6)}" if site.responses else ""
        also += f", covariates {some(site.covariates, 6)}" if site.covariates else ""
        keys = "keys pinned" if site.exchange_key else "no keys pinned"
        lines.append(f"Site {site.name}: {has}{also}; {keys}.")
        lines += [f"  Response {one_line(name)}: {in_words(said)}." for name, said in site.kinds.items()]
    if all(site.exchange_key for site in study.sites):
        lines.append("Study key: agreed by the sites through the server, which learns nothing of it.")
    else:
        lines.append("Study key: exchanged by file; whoever has it can undo the sketch. Keep it from the server.")
    rank = "as many as responses" if f.rank is None else str(f.rank)
    prior = "sparse prior" if f.prior == "sparse" else f"{f.law} prior, local scales by {f.local}"
    lines.append(f"Model: rank {rank}, {prior}, {f.noise} noise.")
    budget = "at most " if f.until == "converged" else ""
    warmup = "warm-up" if f.warmup is None else f"{f.warmup:,}"
    thinned = "" if f.thin is None else f", thinned by {f.thin}"
    draws = f"{budget}{f.draws:,} draws" if f.draws is not None else "draws until converged" if budget else "draws"
    lines.append(f"Sampler: {f.chains} chains × ({warmup} + {draws}){thinned}, seed {f.seed}.")
    lines.append(f"Selection: {f.select} at {f.fdr:g}. Sites receive their own rows ({study.deliver.content}).")
    if study.deliver.share_scales:
        more = " Of a yes/no response everybody also learns how much of it is explained." if study.yes_or_no else ""
        lines.append(
            f"Scales: the owner of a response tells everybody its standard deviation, so that effects are in its units.{more}"
        )
    if s.shares:
        from intarsia.privacy.gram_card import in_brief  # with it come libraries that other commands do not need

        if s.folds:
            lines.append(f"Folds: the subjects are split into {s.folds} parts; the server gets the correlations within each.")
        limit = "where membership can be told too well from the sums" if s.screened else "above one column per three subjects"
        limit = f"above m/n = {Policy.of_study(p).max_ratio:g}" if s.by_sketch else limit
        lines.append(f"Privacy: refused {limit}; {in_brief(study)}.")
    elif p.epsilon is None:
        limits = Policy.of_study(p)  # a looser one in the study file counts for nothing
        lines.append(
            f"Privacy: refused above m/n = {limits.max_ratio:g}, warned above {limits.warn_ratio:g}; no formal guarantee."
        )
    else:
        lines.append(f"Privacy: differential privacy against the server, ε = {p.epsilon:g}, δ = {p.delta:g}.")
    return [one_line(line) for line in lines]  # labels and names are somebody else's text


def run_status(args: argparse.Namespace) -> None:
    from intarsia.server.study.folder import StudyFolder
    from intarsia.server.study.status import status

    folder = StudyFolder.open(args.folder)
    rows = status(folder)
    refused = [event for event in _events(folder.path) if event.get("event") == "refused"]
    summary = {"study": folder.study.id, "hash": folder.study.hash, "steps": rows, "refused": refused, "left": list(folder.left)}
    if args.json:
        emit(args, summary)
        return
    table(f"study {folder.study.id}, hash {folder.study.hash[:16]}…", ("step", "done", "present", "missing"), rows)
    if folder.left:
        print(f"left after having sent: {', '.join(folder.left)}")
    for event in refused[-5:]:
        print(one_line(f"refused {event['time']}: {event['why']}"))
    waiting = next((row for row in rows if not row["done"]), None)
    print("complete" if waiting is None else f"next: {waiting['step']}")


def _events(path: Path) -> list[dict[str, Any]]:
    return json_lines(path / "events.jsonl")


def run_run(args: argparse.Namespace) -> None:
    from intarsia.carriers.flare.engine import Patience
    from intarsia.carriers.flare.network_study import run_study
    from intarsia.progress import Bar

    with Bar() as bar:
        result = run_study(
            args.path,
            args.server,
            patience=Patience(args.timeout, args.wait),
            workers=args.workers,
            until="provisional" if args.provisional and args.until == "deliver" else args.until,
            say=(lambda text: None) if args.json else print,
            progress=bar,
        )
    lines = [f"study {result['study']}: {result['folder']}"]
    if "verdict" in result:
        from intarsia.cli.fit import found, how_to_go_on

        lines += found(result)
        if result["held"]:
            lines += ["NOT HANDED OUT", *how_to_go_on(result, f"intarsia fit -o {result['folder']}")]
            lines.append("then, or with --provisional as it is, give this command again")
    emit(args, result, lines)


def by_site(texts: list[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for text in texts:
        name, found, labels = text.partition("=")
        if not found:
            raise InputError(f"Write SITE=LABEL,LABEL; {text!r} has no '='.")
        out[name] = out.get(name, []) + [label.strip() for label in labels.split(",") if label.strip()]
    return out


def site_of(text: str) -> dict[str, str]:
    """A site by name, or by the public file its operator sent."""
    path = Path(text)
    if not path.is_file():
        if not check_name(text):
            raise InputError(f"{text!r} is neither a file nor a site name (letters, digits, '-', '_').")
        return {"name": text}
    import tomllib

    try:
        content = tomllib.loads(read_study_text(path)[1])
        check = Checker(str(path), "")
        found = {"name": check.label(content, (), "name")}
        # Their text goes into study.toml as it is: a key is a key and brings no lines of its own.
        found |= {key: check.key(content, (), key) or "" for key in ("exchange_key", "signing_key")}
        check.known(content, (), tuple(found))
        check.finish()
        if not all(found.values()):
            raise ValueError
    except (ValueError, StudyError):
        raise InputError(f"{path} is not the public file that `intarsia site init` writes.") from None
    return found


def length_line(name: str, value: int | None) -> str:
    """A line of study.toml; a comment where nothing was asked for, so that the sampler chooses."""
    what, usual = LENGTH[name]
    return f"{f'# {name} = {usual}' if value is None else f'{name} = {value}':25} # {what}"


def site_block(site: dict[str, str], roles: dict[str, list[str]], kinds: dict[str, dict[str, Any]] | None = None) -> str:
    lines = ["[[site]]", f'name = "{site["name"]}"']
    lines += [f"{role} = {json.dumps(labels)}" for role, labels in roles.items() if labels or role == "features"]
    if "exchange_key" in site:
        lines += [f'exchange_key = "{site["exchange_key"]}"', f'signing_key = "{site["signing_key"]}"']
    else:
        lines += ["# Lines that `intarsia site init` prints, so that the sites can agree on the key through the server:"]
        lines += ['# exchange_key = "…"', '# signing_key = "…"']
    lines += kind_options.block(kinds or {})
    return "\n".join(lines) + "\n"


def _screened_words(study: Study) -> str:
    kept = f"at most {study.sketch.keep}" if study.sketch.keep else "as many as the sites' gates allow"
    if study.sketch.by_sketch:
        return (
            f"Screened by a sketch: {study.sketch.m} rows, values leave as {study.sketch.precision}. The server names the "
            f"features to keep ({kept}); the sites multiply these in shares, and it gets their exact correlations."
        )
    again = study.sketch.again or 0
    more = f" It looks again {again} time{'' if again == 1 else 's'} at what these leave unexplained." if again else ""
    return (
        "Screened: no sketch; the sites multiply their columns in shares. The server gets the exact sums of products of all "
        f"features with the responses, names those to keep ({kept}), and gets the exact correlations of these.{more}"
    )


# How long chains run: what each number is, and what is taken without it (… where the sampler chooses by the problem's size).
LENGTH = {
    "draws": ("draws kept per chain, at most", "…"),
    "chains": ("number of chains", str(CHAINS)),
    "warmup": ("sweeps per chain before any is kept", "…"),
    "thin": ("sweeps per kept draw", "…"),
}

GRAM_SKETCH = """# No sketch: three holders multiply the columns in shares; the server gets the exact correlations.
kind = "gram"
# Who holds shares: three sites, or two sites and "server". Any two of the three that work together have everybody's columns.
holders = {holders}
# Subjects per message between two sites; smaller takes less memory and more messages.
rows = 16384
"""
SCREENED_SKETCH = """# No sketch: exact sums of all features with the responses, then the exact correlations of a few.
kind = "screened"
# Features kept at most, of all sites together (the sites' gates may allow fewer).
# keep = 70
# A sketch of so many rows may screen in place of the exact sums: then only the kept features are shared. Leave again out with it.
# m = 200
# How often to look again at what the kept ones leave unexplained: 1 finds what they hide. Each tells as many sums once more.
again = 1
# Who holds shares: three sites, or two sites and "server". Any two of the three that work together have everybody's columns.
holders = {holders}
# Subjects per message between two sites; smaller takes less memory and more messages.
rows = 16384
"""
TEMPLATE = """# A study between institutions. All parties work from the same text: each message carries its hash.
schema = 2
id = "{id}"
# One run, one Φ: `intarsia study again` makes a new nonce for a repeat or after a withdrawal.
run = "{run}"
title = ""

[sketch]
# Rows of the sketch. More rows: sharper answers, less privacy. A site refuses m/n above its limit.
m = {m}
# "orthonormal" (exact at any m) or "gaussian" (the paper's; needed for differential privacy).
kind = "orthonormal"
# How values leave a site: "float64" or "float32".
precision = "float64"

[alignment]
# "strict": all sites hold the same subjects. "intersect": the common subjects are used; the server sees the overlap.
# "union": subjects that all sites with features know; some may lack some responses (docs/union.md).
mode = "{mode}"
# In a union, groups of fewer subjects who have the same responses are left out:
{least}
# Applied to every id, in this order: strip, collapse (white space), nfc, lower, upper, no-leading-zeros, integer.
canonical = ["strip", "nfc"]
# The longest list of subjects a site may bring to an intersection (whoever lists a population learns who of it is elsewhere):
# max_subjects = 10000

[model]
prior = "sparse"          # each feature is in or out; "horseshoe": the paper's prior
background = true         # beside the sparse effects, a dense background of many small ones where the data show it

[fit]
# rank = 3                # of what features' effects on the responses have in common; default: no limit
# expected_features = 3   # how many features you expect to matter
noise = "correlated"      # between responses, or "independent"
# How long the chains run; what is not said here, the sampler chooses by the size of the problem:
{length}
until = "converged"       # stop as soon as the chains agree (rhat, rhat_folded, ess); "draws": spend the budget in any case
# rhat = 1.01
# rhat_folded = 1.02
# ess = 400
seed = 0
select = "bfdr"           # Bayesian false discovery rate, or "mixture", the paper's
fdr = 0.05

[deliver]
content = "draws"         # each site gets draws of its own rows (needed for the spread of predictions), or "summary"
draws = 1000              # at most; fewer where all sites' would take more than 1 GiB
interval = 0.95
share_scales = false      # true: a response's owner publishes its standard deviation; all sites' effects are in its units

[predict]
min_subjects = 20         # fewest new subjects of a joint prediction
max_column_share = 0.95   # a site refuses parts that explain one of its columns better than this (R²)

[privacy]
# Limits may be tighter than these; a looser one counts for nothing unless a site overrides the rule in its own site.toml.
warn_ratio = 0.1          # Σm/n over a cohort's history
max_ratio = 0.25
max_auc = 0.6             # membership attack
min_level = 10            # subjects a level must have, and in which two columns must differ
max_blind = 1.0           # finding Φ without the key; 1 is where that begins to work
max_epsilon = 10.0        # Σε over a cohort's history
self_attack = true
# Differential privacy against the server (kind = "gaussian" and public constants for every site):
# epsilon = 3.0
# delta = 1e-6
# [privacy.row_bound]
# clinic = 5.0

{sites}"""
