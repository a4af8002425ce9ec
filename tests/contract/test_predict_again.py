"""A joint prediction of which an answer is lost: the same command completes it, with the numbers of an undisturbed one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.federation import RESPONSES, frames, sites, study

from intarsia.carriers.in_process import carrier, fit
from intarsia.errors import FederationError
from intarsia.server.study import protocol
from intarsia.server.study.folder import StudyFolder

pytestmark = pytest.mark.filterwarnings("ignore")
NEW = {name: frame.drop(columns=RESPONSES[name]) for name, frame in frames(60, seed=5).items()}


def predicted(where: Path, lost: tuple[str, str] | None) -> dict[str, list[dict[str, Any]]]:
    """Both owners' predictions; `lost`: at the first try the answer of this site to this step does not arrive."""
    parties, plan = sites(frames()), study()
    fit(parties, plan, folder=where / "fit", workers=1, progress=False)
    folder, honest = StudyFolder.open(where / "fit"), carrier(parties, plan, lambda name: NEW[name])

    def loses(step: str, payloads: Mapping[str, protocol.Payload]) -> dict[str, protocol.Reply]:
        replies = dict(honest(step, payloads))
        if lost is not None and step == lost[0]:
            del replies[lost[1]]
        return replies

    if lost is not None:
        with pytest.raises(FederationError, match=rf"(lacks the part of|is not finished at) {lost[1]}"):
            protocol.predict(folder, "june", loses)
    protocol.predict(folder, "june", honest)
    return {site.name: site.predictions[plan.hash, "june"].rows() for site in parties if (plan.hash, "june") in site.predictions}


def test_a_prediction_whose_answers_were_lost_is_completed_by_the_same_command(tmp_path: Path) -> None:
    whole = predicted(tmp_path / "whole", None)
    assert set(whole) == {"clinic", "lab"}
    for lost in (("predict", "mri"), ("predict", "lab"), ("finish", "clinic")):
        assert predicted(tmp_path / "-".join(lost), lost) == whole
