"""A screened study makes the pooled numbers: the sums of every feature with the responses, what is left of them in a look again,
and the Gram matrix of what is kept.
"""

from pathlib import Path

import numpy as np
import pytest
from tests.federation import (
    frames,
    gram_parties,
    gram_sites,
    gram_study_of,
    pooled_columns,
    screened_study,
    screened_study_of,
)

from intarsia.carriers.in_process import carrier
from intarsia.errors import StudyError
from intarsia.server.sampler.sample import sample
from intarsia.server.study import feature_scores, fit, gram, protocol, screened
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.round_folder import RoundFolder
from intarsia.server.study.screened_rounds import _sums, most_kept
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.ring import decode
from intarsia.wire.screening import pieces
from intarsia.wire.study import Study

EXCUSED = {"overrides": [{"rule": "membership", "reason": "a test of the protocol, with few people"}]}
ROUNDING = 1e-6  # of n: fixed-point numbers with 12 bits left free; without them it is a thousandth of that


def collected(parties, study: Study, where: Path) -> StudyFolder:  # type: ignore[no-untyped-def]
    for site in parties:
        site.policy = EXCUSED
    folder = StudyFolder.create(where, study)
    protocol.collect(folder, carrier(parties, study))
    return folder


def labels(folder: StudyFolder, role: str) -> list[str]:
    return [label for block in screened.stated(folder).values() for label in getattr(block, role)]


def check(folder: StudyFolder, pooled, n: int, within: float) -> None:  # type: ignore[no-untyped-def]
    """Every look and the last round against pooled columns."""
    Y, X = pooled[labels(folder, "responses")].to_numpy(), pooled[labels(folder, "features")].to_numpy()
    spare = folder.study.spare_bits
    for at in range(1, screened.last_round(folder)):
        blocks = gram.own_blocks(RoundFolder(folder, at))
        names = [label for b in blocks.values() for label in (*b.features, *b.responses, *b.covariates)]
        left = pooled[names].to_numpy() @ np.ldexp(screened.look_of(folder, at).weights.astype(float), -spare)
        sums, products = _sums(folder, at)
        assert np.abs(sums - X.T @ left).max() < within * n
        assert np.abs(products - left.T @ left).max() < within * n
        if at == 1 and not labels(folder, "covariates"):
            assert np.array_equal(left, Y)
    joined = folder.joined()
    rows = np.concatenate([joined.X, joined.Y, joined.Z], axis=1)
    kept = pooled[[*joined.features, *joined.responses, *joined.covariates]].to_numpy()
    assert np.abs(rows.T @ rows - kept.T @ kept).max() < within * n
    assert joined.looked_at == X.shape[1]
    assert (joined.m, joined.n, joined.kind) == (n - 1, n, "gram")


@pytest.mark.parametrize("again", [0, 2])
def test_sums_and_the_kept_gram_matrix_are_those_of_pooled_columns(again, tmp_path):
    tables = frames()
    parties = gram_sites(tables)
    folder = collected(parties, screened_study(parties, again=again, keep=5), tmp_path)
    check(folder, pooled_columns(parties, tables), 400, ROUNDING if again else ROUNDING / 1000)
    kept = folder.joined().features
    assert len(kept) == 5
    assert {"clinic_0", "mri_1", "lab_0", "lab_2"} <= set(kept)


@pytest.mark.parametrize(("number", "holders"), [(2, ["site0", "site1", "server"]), (4, ["site1", "site3", "site2"])])
def test_other_numbers_of_sites_and_the_server_as_a_holder(number, holders, tmp_path):
    """With a site that holds no shares, and one that keeps nothing in a round."""
    parties, tables = gram_parties(number)
    folder = collected(parties, screened_study_of(parties, holders, again=1), tmp_path)
    check(folder, pooled_columns(parties, tables), 240, ROUNDING)


def test_covariates_are_taken_off_before_the_screen(tmp_path):
    """A feature that follows a covariate, and a response that follows it too, go together; given the covariate they do not."""
    tables = frames(n=1000)
    age = tables["mri"].set_index("id")["mri_0"]
    clinic = tables["clinic"].set_index("id")
    clinic["clinic_5"] = age + 0.1 * clinic["clinic_5"]
    clinic["alt"] = 4 * age + 0.1 * clinic["alt"]
    tables["clinic"] = clinic.reset_index()
    parties = gram_sites(tables)
    parties[1].roles["covariates"] = ["mri_0"]
    roster = screened_study(parties, keep=4).to_dict()
    roster["site"][1] |= {"covariates": ["mri_0"], "features": [f"mri_{j}" for j in range(1, 6)]}
    folder = collected(parties, Study.from_dict(roster), tmp_path)
    pooled = pooled_columns(parties, tables)
    check(folder, pooled, 1000, ROUNDING)
    row = next(row for row in screened.table(folder) if row["feature"] == "clinic_5")
    assert np.corrcoef(pooled["clinic_5"], pooled["alt"])[0, 1] > 0.5  # a screen without the covariate would keep it
    assert abs(row["r"]["alt"]) < 0.15
    assert row["kept"] is None


def test_the_numbers_are_those_of_a_gram_study_to_the_last_bit(tmp_path):
    """The same encoded columns, whichever kind of study multiplies them."""
    parties, _ = gram_parties(3)
    folder = collected(parties, screened_study_of(parties, ["site0", "site1", "site2"]), tmp_path / "screened")
    again, _ = gram_parties(3)
    whole = StudyFolder.create(tmp_path / "gram", gram_study_of(again, ["site0", "site1", "site2"]))
    protocol.collect(whole, carrier(again, whole.study))
    place = {}
    for block in gram.own_blocks(whole).values():
        for label in (*block.features, *block.responses):
            place[label] = len(place)
    G = gram.joint(whole)
    rows, columns = ([place[label] for label in labels(folder, role)] for role in ("features", "responses"))
    bits = next(iter(screened.stated(folder).values())).bits
    assert np.array_equal(decode(screened.looked(folder, 1), bits), G[np.ix_(rows, columns)])
    last = RoundFolder(folder, 2)
    kept = [place[x] for b in gram.own_blocks(last).values() for x in (*b.features, *b.responses)]
    assert np.array_equal(gram.joint(last), G[np.ix_(kept, kept)])


def test_a_look_again_finds_what_strong_effects_hide(tmp_path):
    """Neighbours of a strong effect fill the list; what they leave shows the weak one."""
    rng = np.random.default_rng(3)
    parties, tables = gram_parties(3, n=2000, seed=3)
    strong = rng.standard_normal(2000)
    for name, frame in tables.items():
        order = frame["id"].str[1:].astype(int).to_numpy()
        for column in [c for c in frame if c.startswith(name)]:
            frame[column] = strong[order] + 0.05 * rng.standard_normal(2000)
    hidden = rng.standard_normal(2000)
    by_id = {name: frame["id"].str[1:].astype(int).to_numpy() for name, frame in tables.items()}
    tables["site2"]["site2_2"] = hidden[by_id["site2"]]
    for k in range(2):
        tables[f"site{k}"][f"y{k}"] = (2 * strong - 0.4 * hidden + 0.5 * rng.standard_normal(2000))[by_id[f"site{k}"]]
    found = {}
    for again in (0, 1):
        study = screened_study_of(parties, ["site0", "site1", "site2"], keep=4, again=again, rows=2000)
        found[again] = collected(parties, study, tmp_path / str(again)).joined().features
    assert "site2_2" not in found[0]
    assert "site2_2" in found[1]


def test_the_list_grows_by_even_shares_and_never_beyond_what_the_gates_allow(tmp_path):
    parties, _ = gram_parties(3)
    folder = collected(parties, screened_study_of(parties, ["site0", "site1", "site2"], keep=6, again=2), tmp_path)
    sizes = [len(screened.kept(screened.round_path(folder, at)).features) for at in range(1, 5)]
    assert sizes == [0, 2, 4, 6]
    assert most_kept(folder) == 6


def test_the_fit_counts_every_feature_looked_at_and_tells_no_more_than_sites_allow(tmp_path, monkeypatch):
    monkeypatch.setattr("intarsia.site.preflight.most_sums", lambda laws, n, earlier, now: 1)
    parties, _ = gram_parties(3, n=600)
    folder = collected(parties, screened_study_of(parties, ["site0", "site1", "site2"], keep=7), tmp_path)
    joined = folder.joined()
    assert (len(joined.features), joined.looked_at) == (7, 10)
    assert joined.most_told == dict.fromkeys(folder.names, 1)
    counted = []

    def run(X, Y, model, settings, **more):  # type: ignore[no-untyped-def]
        counted.append(more["looked_at"])
        return sample(X, Y, model, settings, **more)

    monkeypatch.setattr(fit, "run_chains", run)
    fit.fit(folder)
    assert counted == [10] * len(counted)
    assert len(counted) > 1  # the refits of predictions, too
    for name in folder.names:
        found = Coefficients.from_bytes(folder.file("coefficients", name))
        assert len(found.features) > 1
        assert len(np.unique(np.asarray(found.unshrunk_sd)[:, 0])) <= 2  # of all effects but one the same width is told


def test_pieces_cover_every_subject_once_and_lie_within_their_block():
    for n, rows in ((400, 128), (64, 64), (1000, 16384), (5000, 1000)):
        at = 0
        for cut, parts in pieces(n, rows):
            assert (parts[0].start, parts[-1].stop) == (cut.start, cut.stop)
            for part in parts:
                assert part.start == at
                at = part.stop
        assert at == n


def test_scores_are_p_values_finite_and_ordered_however_strong():
    n = 10_000
    r = np.array([[0.9, 0.9], [0.8, 0.0], [0.0, 0.0], [0.01, 0.02]])
    score = feature_scores.scores(r * (n - 1), np.eye(2) * (n - 1), n)
    assert np.isfinite(score).all()
    assert score[0] > score[1] > score[3] > score[2]
    z = np.random.default_rng(0).standard_normal((20_000, 2))
    p = 10 ** -feature_scores.scores(z * np.sqrt(n - 1), np.eye(2) * (n - 1), n)
    assert abs((p < 0.01).mean() - 0.015) < 0.006  # the stronger of two: at most twice the level


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"folds": 3}, "no folds yet"),
        ({"m": 60, "again": 1}, "leave one of the two out"),
        ({"again": 6}, "again"),
        ({"holders": ["clinic"]}, "holders"),
    ],
)
def test_what_a_screened_study_cannot_do_is_refused_with_its_line(change, said):
    parties = gram_sites(frames())
    content = screened_study(parties).to_dict()
    content["sketch"] |= change
    with pytest.raises(StudyError, match=said):
        Study.from_dict(content)


def test_other_kinds_have_no_keep_and_no_patterns_of_responses_are_counted():
    parties = gram_sites(frames())
    content = screened_study(parties).to_dict()
    with pytest.raises(StudyError, match='keep is for kind = "screened"'):
        Study.from_dict(content | {"sketch": {"kind": "gram", "keep": 3}})
    content["site"][0]["responses"] = ["a*"]
    with pytest.raises(StudyError, match="list every response by name"):
        Study.from_dict(content)
