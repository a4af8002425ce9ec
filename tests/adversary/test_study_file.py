"""Whoever writes study.toml asks for more than a site brings."""

from pathlib import Path

import numpy as np
import pytest
from tests.federation import KEY, fingerprints, frames
from tests.federation import study as study_of_three

from intarsia.cli import main
from intarsia.errors import InputError
from intarsia.server.study.folder import dump
from intarsia.site.dry_run import check_site
from intarsia.site.site import Site
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study

ROSTER = [{"name": "clinic", "features": ["x*"], "responses": ["months"]}]


def table(n: int = 400) -> dict[str, object]:
    rng = np.random.default_rng(0)
    columns = {f"x{j}": rng.standard_normal(n) for j in range(4)}
    return {"id": [f"S{i}" for i in range(n)], "months": rng.exponential(10, n), "hiv": rng.integers(0, 2, n), **columns}


def plan(**event: str) -> Study:
    kinds = {"months": {"kind": "time", "method": "martingale", **event}}
    return Study.from_dict({"id": "snatch", "run": "ab" * 16, "sketch": {"m": 40}, "site": [ROSTER[0] | {"kinds": kinds}]})


def test_a_study_file_makes_no_event_of_a_column_that_the_site_keeps_back(tmp_path: Path) -> None:
    """Events minus those expected is the column `hiv` but for what the times say; the site has it under `ignore`."""
    site = Site("clinic", table(), id="id", responses=["months"], ignore=["hiv"], key=KEY)
    for step in (site.offer, site.announce, site.sketch):
        with pytest.raises(InputError, match="takes column 'hiv' of this site for the event"):
            step(plan(event="hiv"))
    assert site.run_store(plan(event="hiv")).log == []
    # The site's own word makes it so, with or without the study's.
    own = {"months": {"kind": "time", "method": "martingale", "event": "hiv"}}
    for study in (plan(event="hiv"), plan()):
        agreed = Site("clinic", table(), id="id", responses=["months"], ignore=["hiv"], kinds=own, key=KEY)
        assert agreed.sketch(study)


@pytest.mark.parametrize(("most", "said"), [(4000, False), (4001, True), (10**9, True)])
def test_a_cap_that_caps_nothing_and_limits_that_do_not_count_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int, said: bool
) -> None:
    """Ten times a site's own list is the default; and a looser m/n is not shown as the one that holds."""
    tables = frames()
    tables["clinic"].to_csv(tmp_path / "visits.csv", index=False)
    where = tmp_path / "clinic"
    main(["site", "init", str(where), "--name", "clinic", "--table", str(tmp_path / "visits.csv"), "--responses", "alt,ast"])
    loose = study_of_three(alignment={"mode": "intersect", "max_subjects": most}, privacy={"max_ratio": 0.9, "warn_ratio": 0.8})
    (tmp_path / "study.toml").write_text(dump(loose))
    words = fingerprints(where, tmp_path / "study.toml")
    capsys.readouterr()
    assert main(["site", "accept", str(where), str(tmp_path / "study.toml"), "--fingerprints", str(words)]) == 0
    shown = capsys.readouterr().err
    assert ("LOOSER THAN THE DEFAULTS: max_subjects" in shown) == said
    assert "refused above m/n = 0.25, warned above 0.1" in shown


def test_it_is_said_before_the_study_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas as pd

    pd.DataFrame(table()).to_csv(tmp_path / "visits.csv", index=False)
    where = tmp_path / "clinic"
    main(["site", "init", str(where), "--name", "clinic", "--table", str(tmp_path / "visits.csv"), "--responses", "months"])
    toml = where / "site.toml"
    toml.write_text(toml.read_text().replace("ignore = []", 'ignore = ["hiv"]'))
    study = plan(event="hiv")
    (tmp_path / "study.toml").write_text(dump(study))
    folder = SiteFolder.load(where)
    review = folder.review(tmp_path / "study.toml")
    (tmp_path / "words.txt").write_text("".join(f"{k} {v}\n" for k, v in review.to_compare.items()))
    main(["site", "accept", str(where), str(tmp_path / "study.toml"), "--fingerprints", str(tmp_path / "words.txt")])
    assert "takes column 'hiv' of this site for the event of 'months'" in capsys.readouterr().err
    found = check_site(SiteFolder.load(where).site(), [study])
    assert any("takes column 'hiv'" in problem for problem in found.problems)
