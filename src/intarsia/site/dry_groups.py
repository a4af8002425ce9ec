"""The dry run of a study whose subjects may lack responses: the site's own groups stand for those of the study.

Which groups there will be is known once all sites have said whom they know. A site can try the groups that its own responses
make: the study's are these or parts of them, with the same m_g / n_g.
"""

from dataclasses import replace

import numpy as np

from intarsia.site.data.columns import Profile, profile
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.part_table import PartTable
from intarsia.site.preflight import Preflight, SiteRules, preflight, shared_scales
from intarsia.site.union import Has, group_runs
from intarsia.wire.cohort_groups import LEAST_ROWS, least_subjects, rows_of
from intarsia.wire.study import Study


def profile_of_complete(table: Table) -> Profile | None:
    """The columns over the subjects who have every response; None where nobody has."""
    complete = np.flatnonzero(Has.of(table).rows.all(axis=1))
    return profile(PartTable.of(table, table.responses, complete), complete) if len(complete) else None


def judge_groups(site: str, table: Table, study: Study, own: SiteRules) -> tuple[dict[str, Preflight], list[str]]:
    """The gate's verdict on every group of this site's own, and what else there is to say."""
    has, entry = Has.of(table), study.site(site)
    patterns, which, sizes = np.unique(has.rows, axis=0, return_inverse=True, return_counts=True)
    part = [bool(entry.features or entry.covariates or pattern.any()) for pattern in patterns]
    kept = [k for k in np.argsort(-sizes) if part[k] and sizes[k] >= least_subjects(study)]
    rows = dict(zip(kept, rows_of([int(sizes[k]) for k in kept], study.sketch.m), strict=True))
    kept = [k for k in kept if rows[k] >= LEAST_ROWS]
    orders = [np.flatnonzero(which.ravel() == k) for k in kept]
    named = [[label for label, there in zip(has.labels, patterns[k], strict=True) if there] for k in kept]
    parts = [PartTable.of(table, labels, order) for labels, order in zip(named, orders, strict=True)]
    if own.ledger is not None and study.deliver.share_scales:
        # A shared scale is one number over all groups that have the response; what this run itself shared is no earlier run's.
        scales = shared_scales(own.ledger, list(zip(parts, orders, strict=True)))
        own = replace(own, scales=scales, same_run=group_runs(study, own.ledger))
    checks = {}
    for k, labels, order, group in zip(kept, named, orders, parts, strict=True):
        as_group = replace(study, sketch=replace(study.sketch, m=rows[k]))
        name = f"{len(order):,} subjects with {', '.join(labels) or 'no response of this site'}"
        checks[name] = preflight(group, SketchKey.new(), as_group, site=site, order=order, own=own)
    left_out = int(sum(sizes)) - sum(int(sizes[k]) for k in kept)
    notes = ["the study's groups are these or parts of them: other sites' responses divide them further"]
    if left_out:
        notes.append(f"{left_out:,} subjects would be left out: too few have the same responses, or they have none")
    return checks, notes
