"""A study that a sketch screens, by letters, through pipes and in one process: each time what the sites' tables and their key
make of it, to the last bit, and results at every site. A site or the server that is killed goes on where it was.

The key is agreed anew in every run, so two runs have two sketches. What is compared is a run with what its own key makes.
"""

import numpy as np
import pytest
from tests.e2e.test_gram_carriers import in_folders, run, through_pipes
from tests.e2e.test_screened_carriers import by_letters, killed_again_and_again
from tests.federation import FIT, gram_parties, pooled_columns, screened_study_of

from intarsia.carriers.in_process import carrier, fit
from intarsia.carriers.pipes import Hospital
from intarsia.server.study import fit as fitting
from intarsia.server.study import gram, protocol, screened, screened_by_sketch
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.round_folder import RoundFolder
from intarsia.site.align import settle
from intarsia.site.site_folder import SiteFolder
from intarsia.site.sketch.sketch import SketchTerms, factor, sketch
from intarsia.wire.messages import Sketch, join
from intarsia.wire.study import Study

pytestmark = pytest.mark.filterwarnings("ignore")

N, M = 2000, 100
SHORT = {**FIT, "until": "draws"}


def planned(number: int = 3, **plan) -> Study:  # type: ignore[no-untyped-def]
    parties, _ = gram_parties(number, n=N)
    holders = ["site0", "site1", "server"] if number == 2 else ["site0", "site1", "site2"]
    content = screened_study_of(parties, holders, rows=800, m=M, **plan).to_dict()
    return Study.from_dict(content | {"fit": SHORT})


def as_determined(folder: StudyFolder, sites) -> None:  # type: ignore[no-untyped-def]
    """The server holds the sketches that the sites' key makes of their tables, kept what a fit to these says, and has the exact
    products of that alone."""
    study, blocks = folder.study, screened.stated(folder)
    sketches = []
    for site in sites:
        block, key = blocks[site.name], site.key(study)
        agreed = next(cohort for name, cohort in folder.cohorts().items() if name == site.name)
        order, mac = settle(site.name, study, site.tokens(study), agreed)
        terms = SketchTerms.of(study, site.name, mac)
        factor(terms.design(key, len(order)))  # as at the sites: from key and n alone
        alone = sketch(site.table(), key, terms, order=order).message
        assert alone.to_bytes() == block.sketch
        sketches.append(Sketch.load(block.sketch))
    found = screened_by_sketch.scored(join(sketches), 4, study.fit.seed)
    best = screened_by_sketch.best(found, 4)
    labels = [label for block in blocks.values() for label in block.features]
    assert screened.kept(screened.round_path(folder, 1)).features == tuple(labels[j] for j in best)
    number = len(sites)
    W = pooled_columns(*gram_parties(number, n=N))
    names = [label for b in gram.own_blocks(RoundFolder(folder, 1)).values() for label in (*b.features, *b.responses)]
    assert len(names) == 4 + 2
    pooled = W[names].to_numpy()
    assert np.abs(gram.joint(RoundFolder(folder, 1)) - pooled.T @ pooled).max() < 1e-5
    assert screened.joined(folder).looked_at == len(labels)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The study in one process, of sites that keep nothing on disk."""
    parties, _ = gram_parties(3, n=N)
    folder = StudyFolder.create(tmp_path_factory.mktemp("here"), planned())
    protocol.collect(folder, carrier(parties, folder.study))
    return parties, folder


def test_in_one_process_it_is_what_tables_and_key_make_of_it(here):
    parties, folder = here
    as_determined(folder, parties)
    rows = screened.table(folder)
    assert [row["feature"] for row in rows if row["kept"]] == list(folder.joined().features)
    assert {row["feature"] for row in rows if row["pip"] > 0.99} == {"site0_1", "site2_0"}  # those that matter


def test_two_sites_and_the_server_do_it_too(tmp_path):
    parties, _ = gram_parties(2, n=N)
    folder = StudyFolder.create(tmp_path, planned(2))
    protocol.collect(folder, carrier(parties, folder.study))
    as_determined(folder, parties)


def test_the_part_that_the_sketch_has_not_seen_is_that_of_further_rows(here):
    """G less the sketch's products: whatever Φ is, those of an orthonormal basis of the rest, n − 1 − m of them."""
    parties, folder = here
    joined = screened_by_sketch.unseen(folder)
    assert joined.m == N - 1 - M
    site = parties[0]
    agreed = folder.cohorts()[site.name]
    order, mac = settle(site.name, folder.study, site.tokens(folder.study), agreed)
    ids = np.array(list(site.table().ids()))[order]
    W = pooled_columns(*gram_parties(3, n=N)).loc[ids, [*joined.features, *joined.responses]].to_numpy()
    Z = screened.sketched(folder)
    columns = dict(zip((*Z.features, *Z.responses), np.hstack([Z.X, Z.Y]).T, strict=True))
    S = np.column_stack([columns[label] for label in (*joined.features, *joined.responses)])
    V = np.hstack([joined.X, joined.Y])
    assert np.abs(V.T @ V + S.T @ S - W.T @ W).max() < 1e-5
    assert mac == screened.stated(folder)[site.name].order_mac


def test_a_finding_is_held_against_what_the_sketch_has_not_seen(here):
    """A feature that matters is confirmed; one whose products are only in the sketch is not."""
    _, folder = here
    study = Study.from_dict(folder.study.to_dict() | {"fit": {**SHORT, "draws": 150}})
    settings = fitting.settings_of(study)
    posterior, assessment = fitting.sample(study, folder.joined(), settings)
    rows = screened_by_sketch.confirmation(folder, posterior, assessment, settings)
    assert {tuple(row["features"]): row["confirmed"] for row in rows} == {("site0_1",): True, ("site2_0",): True}
    of_sketch = screened_by_sketch.unseen

    def nothing_left(folder):  # type: ignore[no-untyped-def]
        found = of_sketch(folder)
        at = found.features.index("site2_0")
        X = found.X.copy()
        others = np.column_stack([np.delete(X, at, axis=1), found.Y])
        column = np.random.default_rng(1).standard_normal(len(X))
        column -= others @ np.linalg.lstsq(others, column, rcond=None)[0]  # it has nothing to do with any response
        X[:, at] = column * np.linalg.norm(X[:, at]) / np.linalg.norm(column)
        return type(found)(**{**vars(found), "X": X})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screened_by_sketch, "unseen", nothing_left)
        rows = screened_by_sketch.confirmation(folder, posterior, assessment, settings)
    assert {tuple(row["features"]): row["confirmed"] for row in rows}[("site2_0",)] is False


def test_in_python_with_one_argument_more():
    parties, _ = gram_parties(3, n=N)
    result = fit(parties, kind="screened", m=M, progress=False)
    assert result.study.sketch.by_sketch
    assert {"site0_1", "site2_0"} <= set(result.selected)
    assert all(row["confirmed"] for row in result.confirmation if row["features"][0] in ("site0_1", "site2_0"))
    assert "sketch of 100 rows that screens, then exact products" in repr(result)
    assert len(result.screened) == 10
    assert set(result.screened_out) == set(result.screened.loc[~result.screened["kept"], "feature"])


@pytest.mark.slow
def test_through_pipes_to_processes_it_is_what_tables_and_key_make_of_it(tmp_path):
    study = planned()
    folders = in_folders(3, tmp_path, study, n=N)
    hospitals = {path.name: Hospital(path.name, path) for path in folders}
    folder = through_pipes(hospitals, study, tmp_path / "server")
    as_determined(folder, [SiteFolder.load(path).site() for path in folders])


@pytest.mark.slow
def test_by_letters_it_is_what_tables_and_key_make_of_it_and_every_site_gets_its_results(tmp_path, capsys):
    study = planned()
    folders = in_folders(3, tmp_path, study, n=N)
    assert by_letters(tmp_path) == 10  # as docs/screened.md says
    said = "".join(capsys.readouterr())
    assert "Mixed into the sketch, and those that the server names multiplied" in said
    assert "every site has its coefficients" in said
    assert "findings stand by what the sketch that screened did not see" in said
    folder = StudyFolder.open(tmp_path / "liver")
    sites = [SiteFolder.load(path).site() for path in folders]
    as_determined(folder, sites)
    kept = folder.joined().features
    assert set(sites[2].model(study).units.features) == {label for label in kept if label.startswith("site2")}
    for path in tmp_path.glob("site?/studies"):  # what only the multiplications needed is gone
        left = [file.name for file in path.rglob("*.secret")]
        assert not [name for name in left if "packets" in name or "sums" in name or "seed" in name or "encoded" in name], left
    run("study", "status", folder.path)
    assert "round 1" in capsys.readouterr().out
    run("report", folder.path, "-o", tmp_path / "report.html")
    assert "Confirmation by what the sketch did not see" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_anywhere_a_study_goes_on_and_sends_the_same_bytes(number, tmp_path):
    study = planned(number)
    folder, sites, steps = killed_again_and_again(number, study, tmp_path)
    assert steps.count("keep") >= 1
    assert not {"hold", "look"} & set(steps)
    as_determined(folder, sites)
