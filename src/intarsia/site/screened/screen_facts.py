"""What a site's gate must know of a screened study: how many sums leave, of how many columns, and whose rows are the longest."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from intarsia.privacy.facts import Screen
from intarsia.site.data.moments import Moments, pilot_of
from intarsia.site.data.row_blocks import block_rows
from intarsia.site.data.table import Table
from intarsia.wire.study import Study


def screen_of(
    study: Study, site: str, table: Table, announced: Mapping[str, Mapping[str, int]], order: Any
) -> Screen | None:  # fmt: skip
    """The counts of all sites, as announced or as study.toml lists them by name; None where neither says them."""
    responses = {name: len(study.site(name).responses) for name in study.names}
    counts: dict[str, tuple[int, int]] = {site: (len(table.labels), len(table.covariates))}
    for name in study.names:
        told, entry = announced.get(name), study.site(name)
        if name != site and told is not None:
            counts[name] = (told["columns"], told["covariates"])
        elif name != site and not any("*" in label for label in entry.labels):  # a dry run: nobody has announced anything yet
            counts[name] = (len(entry.labels), len(entry.covariates))
    if set(counts) != set(study.names):
        return None
    features = sum(columns - covariates - responses[name] for name, (columns, covariates) in counts.items())
    Q = sum(responses.values())
    return Screen(
        features=max(1, features), responses=Q, covariates=sum(c for _, c in counts.values()), looks=study.sketch.looks,
        keep=study.sketch.keep, largest=max((columns for name, (columns, _) in counts.items() if name != site), default=0),
        exposure=None if study.sketch.by_sketch else exposure(table, order, features, Q),
    )  # fmt: skip


def exposure(table: Table, order: Any, features: int, responses: int) -> float:
    """The largest ‖x‖²‖y‖² of a person of this table beside the average; of the other sites' columns an average person's."""
    P, Q = len(table.features), len(table.responses)
    chosen = np.ones(table.n, dtype=bool)
    if order is not None:
        chosen = np.isin(np.arange(table.n), order)
    moments: Moments | None = None
    for Z, here in _blocks(table, chosen):
        moments = moments or Moments.empty(pilot_of(Z))
        moments.add(Z[here], slice(None))
        moments.rows += int(here.sum())
    if moments is None:
        return 1.0
    sd = np.where(moments.sd > 0, moments.sd, np.inf)
    worst = 1.0
    for Z, here in _blocks(table, chosen):
        values = np.square(np.nan_to_num((Z[here] - moments.mean) / sd, nan=0.0))
        x = (values[:, :P].sum(axis=1) + (features - P)) / max(1, features)
        y = (values[:, P : P + Q].sum(axis=1) + (responses - Q)) / max(1, responses)
        worst = max(worst, float((x * y).max(initial=0.0)))
    return worst


def _blocks(table: Table, chosen: Any) -> Any:
    at = 0
    for Z in table.raw_blocks(block_rows(len(table.labels))):
        here = chosen[at : at + len(Z)]
        at += len(Z)
        if here.any():
            yield np.asarray(Z, dtype=np.float64), here
