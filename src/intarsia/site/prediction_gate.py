"""What a site lets its part of a prediction tell one owner of responses: the rules, and the record of what was told."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import PrivacyError
from intarsia.privacy.subject_ids import canonical_id
from intarsia.site import given_away
from intarsia.site.given_away import Before, People, Told
from intarsia.site.predict_rules import bits
from intarsia.site.prediction import SiteModel
from intarsia.site.rank_normal import FILE as SCORES_FILE
from intarsia.site.rank_normal import Scores
from intarsia.site.site_ledger import open_ledger
from intarsia.wire.plain import some
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.site.site import Site

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Leaving:
    """A part as it would leave: the subjects' columns as the model has them, the rounded part (slice, subject, response), its
    steps, and who the subjects are to this site's ledger (None for a site without a folder, which remembers nothing).

    Where the study asked for normal scores, `columns` are these, `scores` names the run folder that has them, and `plain` are the
    columns in their own units. `column_of` has the table's own name of a column that stands for one of its levels.
    """

    model: SiteModel
    columns: Array = field(repr=False)
    part: Array = field(repr=False)
    steps: Array
    people: NDArray[np.uint64] | None = field(repr=False)
    plain: Array | None = field(default=None, repr=False)
    scores: str = ""
    column_of: Mapping[str, str] = field(default_factory=dict, repr=False)

    def named(self, here: NDArray[np.bool_]) -> str:
        """Some columns by their names in the site's table, for its own operator: no level, because that is a value."""
        labels = [label for label, there in zip(given_away.columns_of(self.model), here, strict=True) if there]
        return some(list(dict.fromkeys(self.column_of.get(label, label) for label in labels)))


def check_number(site: "Site", study: Study, n: int) -> None:
    fewest = max(study.predict.min_subjects, site.predict_rules.min_subjects)
    if n < fewest:
        raise PrivacyError(
            f"A joint prediction for {n} subjects is refused: at least {fewest} are needed, so that no sum is about a few people."
        )


def check_new(site: "Site", study: Study, ids: Iterable[Any]) -> None:
    """A part has no noise: in a private study it is not about people whom ε covers. Who they are the ledger knows, also when they
    are no longer in the site's table."""
    if study.privacy.epsilon is None:
        return
    asked = list(ids)
    known = {canonical_id(one) for one in site.table().ids()}
    covered = np.array([canonical_id(one) in known for one in asked], dtype=bool)
    if site.folder is not None:
        ledger = open_ledger(site.folder)
        covered |= ledger.promised_noise(ledger.token_of_each(asked))
    if covered.any():
        raise PrivacyError(
            f"{covered.sum()} of these subjects are in the study itself or in another that promised them differential privacy. A "
            "prediction has no noise: take them out of the table, at every site."
        )


Judged = tuple[People | None, Told, dict[str, Any]]


def judge(site: "Site", study: Study, leaving: Leaving, party: str, responses: list[int]) -> Judged:
    """About whom the owner of these responses would be told what, and a note of it for the site; refused where it is too much.

    `party` stands for the owner under whatever name (`joint_prediction._party`).
    """
    rules, labels = site.predict_rules, given_away.columns_of(leaving.model)
    steps, values = leaving.steps[:, responses], leaving.columns
    people = None if leaving.people is None else People.of(leaving.people, leaving.part[:, :, responses])
    before = Before() if people is None else _before(site, leaving, people, party, steps)
    room = leaving.part.shape[0] * len(responses) * bits(rules.digits)
    total = room + before.bits
    if total > rules.max_bits:
        raise PrivacyError(
            f"With this prediction one owner of responses would have been told up to {total:.0f} bits about a subject "
            f"({room:.0f} by this one); this site allows {rules.max_bits:g}. Fewer decimals tell less (digits under [predict] of "
            "site.toml); if the site agrees to more, set max_bits there."
        )
    earlier = [(one, _columns(site, leaving, one)) for one in before.told]
    known = np.hstack([np.zeros((len(values), 0)), *(one.sums(then, labels) for one, then in earlier)])
    now = given_away.told_now(leaving.model, values, (responses, steps), room, known, leaving.scores)
    known = np.hstack([now.sums(values, labels), known])
    spreads = [spread for one, then in [(now, values), *earlier] for spread in one.in_spreads(then, labels)]
    known = np.hstack([known, given_away.told_by_spreads(spreads, known, study.predict.max_column_share)])
    of_sizes = _spreads(leaving, responses, [one.sums_of_sizes(then, labels) for one, then in earlier])
    shares = np.maximum(given_away.shares(values, known), given_away.shares(_sizes(leaving), of_sizes))
    share, most = float(np.max(shares, initial=0.0)), study.predict.max_column_share
    if share > most and rules.one_column == "refuse":
        raise PrivacyError(_refusal(leaving, (known, of_sizes), shares > most, most))
    note = {"bits": round(room, 1), "with_earlier_fits": round(total, 1), "of": rules.max_bits}
    return people, now, note | ({"one_column": f"allowed by site.toml, largest share {share:.4f}"} if share > most else {})


def _refusal(leaving: Leaving, told: tuple[Array, Array], near: NDArray[np.bool_], most: float) -> str:
    """For the site's own operator; `near` are the columns that all sums told nearly are."""
    agree = 'If the site agrees to that, set [predict] one_column = "allow" in its site.toml.'
    sums = max(each.shape[1] for each in told)
    if any(given_away.too_few(leaving.columns, each) for each in told):
        return (
            f"{len(leaving.columns)} subjects are too few to tell whether this site's part of the prediction is nearly one of "
            f"the site's own columns: one owner of responses would have been told {sums} sums about them, those of earlier fits "
            f"included, and each needs at least {given_away.SUBJECTS_PER_SUM} subjects. Predict for "
            f"{sums * given_away.SUBJECTS_PER_SUM} or more. {agree}"
        )
    return (
        "What this site's part of the prediction tells one owner of responses, together with what earlier fits told it about the "
        f"same subjects, is nearly one of the site's own columns, so it would hand that column over (R² above {most:g}): "
        f"{leaving.named(near)}. {agree}"
    )


def _columns(site: "Site", leaving: Leaving, told: Told) -> Array:
    """The subjects' columns as an earlier fit had them: in their own units, or as the normal scores of its cohort."""
    if told.scores == leaving.scores:
        return leaving.columns
    plain = leaving.columns if leaving.plain is None else leaving.plain
    if not told.scores:
        return plain
    assert site.folder is not None
    path = site.folder / "studies" / told.scores / SCORES_FILE
    if not path.is_file():
        raise PrivacyError(
            f"{path} is missing: what an earlier fit told about these subjects cannot be judged without it. Restore it from a "
            "backup. No part of a prediction leaves until then."
        )
    return Scores.from_bytes(path.read_bytes()).apply(plain, given_away.columns_of(leaving.model))


def _before(site: "Site", leaving: Leaving, people: People, party: str, steps: Array) -> Before:
    if site.folder is None:
        return Before()
    return given_away.told_before(site.folder, leaving.model.coefficients.fit_digest, people, party, steps)


def _sizes(leaving: Leaving) -> Array:
    """The columns' sizes: their distances from the mean."""
    u = leaving.model.units
    return np.abs(leaving.columns - np.concatenate([u.x_mean, u.z_mean]))


def _spreads(leaving: Leaving, responses: list[int], before: list[Array]) -> Array:
    """The spreads that the owner gets, now and before, in steps: they may tell a column's size."""
    if len(leaving.part) < 2:
        return np.zeros((len(leaving.columns), 0))
    return np.hstack([leaving.part[1][:, responses] / leaving.steps[1, responses], *before])
