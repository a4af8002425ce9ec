"""A Gram study in folds: checks from the folds' matrices are those from pooled rows split the same way; the gate counts them."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from tests.federation import gram_parties, gram_study_of, pooled_columns

from intarsia.carriers.in_process import carrier
from intarsia.errors import PrivacyError, StudyError
from intarsia.privacy.facts import ColumnFacts, Facts
from intarsia.privacy.gate import judge
from intarsia.privacy.gram_leakage import membership_auc
from intarsia.privacy.ledger import Claim, Ledger
from intarsia.privacy.policy import Policy
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.server.study import gram, protocol
from intarsia.server.study.check import check
from intarsia.server.study.fit import fit, model_of, posterior_of
from intarsia.server.study.fold_checks import check_folds, replicate
from intarsia.server.study.folder import StudyFolder
from intarsia.site.gram.shares import fold_places
from intarsia.wire.study import Study

pytestmark = pytest.mark.filterwarnings("ignore")
HOLDERS = ["site0", "site1", "site2"]
SHORT = Settings(draws=12, warmup=8, chains=2, thin=1, seed=1, until=None)


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    parties, tables = gram_parties(3)
    study = gram_study_of(parties, HOLDERS, folds=3)
    folder = StudyFolder.create(tmp_path_factory.mktemp("folds"), study)
    protocol.collect(folder, carrier(parties, study))
    return folder, parties, tables


def split_rows(folder, parties, tables):
    """The pooled rows, features before responses, and the fold of each by the sites' own key."""
    D, site = pooled_columns(parties, tables), parties[0]
    D = D[[c for c in D if not c.startswith("y")] + ["y0", "y1"]]
    tokens, key = site.tokens(folder.study), site.key(folder.study).derive("folds", folder.study.id, folder.study.run)
    ids = np.asarray(site.table().ids())[tokens.rows]
    return D.loc[ids].to_numpy(), fold_places(tokens.tokens, key, 3)


def test_checks_from_folds_are_those_from_pooled_rows_split_the_same_way(collected):
    found = check_folds(collected[0], 3, SHORT)
    rows, part = split_rows(*collected)
    X, Y = rows[:, :-2], rows[:, -2:]
    left, elpd = np.zeros(2), []
    for fold in range(3):
        out = part == fold
        draws = sample(X[~out], Y[~out], model_of(collected[0].study), SHORT)
        C = draws.effects.dense().reshape(-1, *draws.C.shape[2:])
        predicted = X[out] @ (C if draws.background is None else C + draws.background)
        resid = Y[out] - predicted.mean(axis=0)
        left += (resid**2).sum(axis=0)
        uncertain = predicted - predicted.mean(axis=0)
        V = draws.Sigma.mean(axis=(0, 1)) + np.einsum("snq,snr->qr", uncertain, uncertain) / len(C) / out.sum()
        elpd.append(multivariate_normal(np.zeros(2), V).logpdf(resid).sum())
    np.testing.assert_allclose(found.r2, 1 - left / (Y**2).sum(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.elpd, elpd, rtol=1e-6)
    assert (found.r2 > 0.5).all()
    assert (found.r2_se < 0.1).all()


def test_replication_from_folds_is_that_from_pooled_rows_split_the_same_way(collected):
    """The first of three folds against the other two: a feature that acts, one that does not, and a set of two."""
    folder = collected[0]
    joined = gram.joined(folder)
    posterior, _ = posterior_of(folder.study, joined, SHORT)
    acting, idle = joined.features.index("site2_0"), joined.features.index("site1_1")
    findings = [np.array([acting]), np.array([idle]), np.array([acting, idle])]
    found = replicate(folder, SHORT, posterior, findings)

    rows, part = split_rows(*collected)
    X, Y = rows[:, :-2], rows[:, -2:]
    model = model_of(folder.study)
    parts = (part >= 0, joined.m), (part < 1, None), (part >= 1, None)  # all rows together were centred: one fewer counts
    whole, *halves = (sample(X[of], Y[of], model, SHORT, degrees=rows).effects.dense() for of, rows in parts)
    expected = np.empty((3, 2))
    for i, members in enumerate(findings):
        signs = np.where(X[:, members].T @ X[:, members[0]] < 0, -1.0, 1.0)
        effect, *again = ((C[:, :, members] * signs[:, None]).sum(axis=2).reshape(-1, 2) for C in (whole, *halves))
        q = np.argmax(np.abs(effect.mean(axis=0)) / np.maximum(effect.std(axis=0), 1e-300))
        expected[i] = [(np.sign(one[:, q]) == np.sign(effect[:, q].mean())).mean() for one in again]
    np.testing.assert_array_equal(found.probability, expected)
    assert found.replicates[0]  # of the others nothing can be said: the key, and so the people of each part, are new in every run


def test_the_command_uses_the_folds_and_refuses_another_number(collected):
    folder = collected[0]
    fit(folder)
    with pytest.raises(StudyError, match="into 3 folds; ask for --folds 3"):
        check(folder, folds=5)
    found = check(folder, folds=3, halves=True)
    assert set(found["k_fold"]) == {"folds", "elpd", "r2", "r2_se"}
    assert found["replication"]
    assert all(row["replicates"] for row in found["replication"] if row["features"] == ["site2_0"])


def facts(n, columns, folds, **more):
    own = tuple(ColumnFacts(f"x{j}", 13, None, n - 1, 0.01) for j in range(5))
    return Facts(n=n, m=0, kind="gram", columns=columns, own_columns=own, folds=folds, **more)


def test_the_gate_judges_a_fold_as_a_matrix_of_so_few_people():
    def level(found, rule):
        return next(f.level for f in found.findings if f.rule == rule)

    assert level(judge(facts(600, 150, 1), Policy()), "columns") == "warn"
    refused = judge(facts(600, 150, 2), Policy())
    assert level(refused, "columns") == "refuse"
    assert "150 columns for 300 subjects of a fold" in refused.refused[0].text
    assert "fewer folds" in refused.refused[0].text
    assert judge(facts(10_000, 40, 5), Policy()).membership == pytest.approx(membership_auc(2000, 40))
    assert level(judge(facts(10_000, 40, 1), Policy()), "membership") == "ok"
    assert level(judge(facts(10_000, 40, 5), Policy()), "membership") == "warn"


def test_the_ledger_crosses_folds_of_two_runs(tmp_path):
    """Two runs split the same 400 people into other halves: together they single out the four quarters."""
    ledger = Ledger(tmp_path)
    people = [f"P{i}" for i in range(400)]
    tokens = ledger.tokens(people)
    first = tuple(ledger.tokens(people[a : a + 200]) for a in (0, 200))
    assert ledger.singled_out(tokens, "same", folds=first) == 200
    entry = ledger.reserve(Claim("s", "1", tokens, 400, 0, "gram", 5, "same", folds=first))
    ledger.release(entry, b"1")
    second = (ledger.tokens(people[:150] + people[200:250]), ledger.tokens(people[150:200] + people[250:]))
    assert ledger.singled_out(tokens, "same") == 200  # the same matrix again, whole
    assert ledger.singled_out(tokens, "same", folds=second) == 50
    assert ledger.singled_out(ledger.tokens(people[:399]), "other") == 1
    assert ledger.singled_out(tokens, "same", but=("s", "1"), folds=first) == 200
    (tmp_path / "cohorts" / ledger.digest(first[0].tobytes())).unlink()
    assert ledger.singled_out(tokens, "same") == 0


def test_too_small_folds_are_refused_before_anything_is_shared(tmp_path):
    parties, _ = gram_parties(3, n=90)
    study = Study.from_dict(gram_study_of(parties, HOLDERS, folds=3).to_dict())
    for site in parties:
        site.folder = tmp_path / site.name
        site.folder.mkdir()
    with pytest.raises(PrivacyError, match=r"12 columns for 30 subjects of a fold is more than a third"):
        protocol.collect(StudyFolder.create(tmp_path / "server", study), carrier(parties, study))
    assert not list(tmp_path.glob("server/sketch/*"))
