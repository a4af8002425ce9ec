"""`intarsia site accept`: what a study file means for this site, who its peers are, and a person's confirmation."""

import argparse
import sys
from pathlib import Path
from typing import Any

from intarsia.cli.confirm import add_fingerprints, confirm
from intarsia.cli.show import add_json, emit
from intarsia.errors import IntarsiaError
from intarsia.privacy.policy import Policy
from intarsia.wire.plain import one_line, printable, some
from intarsia.wire.study_parts import MAX_LIST_RATIO

_COLUMNS_SHOWN = 8


def add_accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, help="study.toml, as you have read it")
    add_fingerprints(parser)
    add_json(parser)
    parser.set_defaults(run=run_accept)


def run_accept(args: argparse.Namespace) -> None:
    from intarsia.cli.study import explain
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(args.dir)
    review = site_folder.review(args.study)
    looser = _looser(site_folder, review.study)
    # To the standard error: the standard output holds the answer, which a program may read.
    said = [
        *explain(review.study, hash_words=args.fingerprints is not None),
        *_earlier(site_folder, review.study),
        *_leaving(site_folder, review.study),
        *looser,
    ]
    for line in said:
        print(printable(line), file=sys.stderr)
    if not review.peers:
        print("No peer's key is pinned: the study key comes from a file the sites exchanged.", file=sys.stderr)
    confirm(review.to_compare, args.fingerprints)
    study = site_folder.accept(review)
    replaced = _replaced(site_folder.folder, study)
    data = {"study": study.id, "hash": study.hash, "hash_words": review.hash_words, "peers": review.peers, "looser": looser}
    lines = [f"it replaces the text {name} of the same run, of which this site has sketched nothing" for name in replaced]
    emit(args, data | {"replaced": replaced}, [f"accepted {study.id}, hash {study.hash}", *lines])


def _replaced(folder: Path, study: Any) -> list[str]:
    """Earlier texts of the same run are put aside: every command would ask which is meant, and only this one can go on. A text
    under which a sketch has left stays: its results may still come.
    """
    from intarsia.wire.study import Study

    out = []
    for path in sorted((folder / "accepted").glob("*.toml")):
        old = Study.load(path)
        same = (old.id, old.run) == (study.id, study.run) and old.hash != study.hash
        if same and not (folder / "studies" / old.folder_name / "sketch").exists():
            path.rename(path.with_name(f"{path.name}.replaced"))
            out.append(f"{old.id}-{old.hash[:8]}")
    return out


def _earlier(site_folder: Any, study: Any) -> list[str]:
    """What this site knows of the run that the study says it replaces, and what its ledger has counted so far."""
    if study.replaces is None:
        return []
    lines = []
    try:
        old = site_folder.accepted(study.replaces)
    except IntarsiaError:
        lines.append("This site has not accepted the run that this one says it replaces: nothing can be compared with it here.")
    else:
        found = old.differences(study)
        lines.append(f"Compared with the run it replaces, which this site accepted: {len(found) or 'no'} entries differ.")
        lines += [f"    {one_line(line)}" for line in found]
    if study.sketch.shares or not (site_folder.folder / "ledger" / "ledger.jsonl").exists():
        return lines
    from intarsia.site.site_ledger import open_ledger

    try:
        ids = site_folder.site().table().id_column
    except IntarsiaError:
        return lines
    ledger = open_ledger(site_folder.folder)
    told = ledger.history(ledger.tokens(ids))
    then = told + study.sketch.m
    lines.append(
        f"This site's ledger: up to {told:,} sketch rows have left about the same subject; with this run {then:,}, for "
        f"{len(ids):,} subjects here (Σm/n = {then / len(ids):.3f}; refused above {Policy.of_study(study.privacy).max_ratio:g})."
    )
    return lines


def _looser(site_folder: Any, study: Any) -> list[str]:
    """Every limit that the study sets looser than the defaults."""
    from intarsia.privacy.policy import loosened

    found = [one_line(str(item)) for item in loosened(study, site_folder.settings["policy"])]
    return [f"LOOSER THAN THE DEFAULTS: {text}" for text in [*found, *_long_lists(site_folder, study)]]


def _long_lists(site_folder: Any, study: Any) -> list[str]:
    """A cap on the lists of subjects that lets more through than a site allows by itself."""
    most = study.alignment.max_subjects
    if study.alignment.mode == "strict" or most is None:
        return []
    try:
        n = site_folder.site().table().n
    except IntarsiaError:
        return []
    if most <= MAX_LIST_RATIO * n:
        return []
    return [
        f"max_subjects = {most:,} lets a site list more people than {MAX_LIST_RATIO} times the {n:,} of this site, the default. "
        "Whoever lists a population finds out who of it is here."
    ]


def _leaving(site_folder: Any, study: Any) -> list[str]:
    """How many subjects this site's table has, and which columns would leave in a sketch or a Gram matrix."""
    from intarsia.site.predict_rules import foreseen
    from intarsia.site.response_kinds import kinds_of, leaving

    try:
        site = site_folder.site()
        table = site.table()
        responses = leaving(table, kinds_of(study, site.name, site.kinds))
    except IntarsiaError as error:
        return [f"This site's table cannot be read yet, so what would leave is not known: {one_line(str(error))}"]
    how = "Multiplied with the other sites' columns, and not as values," if study.sketch.shares else "Mixed into the sketch,"
    if study.sketch.by_sketch:
        how = "Mixed into the sketch, and those that the server names multiplied with the other sites' columns,"
    lines = [f"This site's table has {table.n:,} subjects. {how} these columns would leave:"]
    for what in ("features", "responses", "covariates"):
        labels = responses if what == "responses" else list(getattr(table, what))
        if labels:
            lines.append(f"  {len(labels):,} {what}: {some([one_line(label) for label in labels], _COLUMNS_SHOWN)}")
    try:
        site.claimed(study, table)
    except IntarsiaError as error:
        lines.append(f"ATTENTION: as both are now, this site would send nothing: {one_line(str(error))}")
    return lines + foreseen(study, site.name, len(table.features) + len(table.covariates), site.predict_rules)
