"""Gram studies of two sites and the server, of four and of five sites, whole and in folds: the matrix of the pooled columns."""

import numpy as np
import pytest
from tests.federation import gram_parties, gram_study_of, pooled_columns

from intarsia.carriers.in_process import carrier
from intarsia.cli.study import explain
from intarsia.errors import FederationError, StudyError
from intarsia.privacy.card import study_card
from intarsia.server.study import gram, protocol
from intarsia.server.study.folder import StudyFolder
from intarsia.site.gram.shares import fold_places
from intarsia.wire.gram_messages import GramDeal, GramProduct
from intarsia.wire.study import Study

HOLDERS = {2: ["site0", "site1", "server"], 4: ["site3", "site0", "site2"], 5: ["site1", "site2", "site4"]}


def collected(where, number, **sketch):
    parties, tables = gram_parties(number)
    study = gram_study_of(parties, HOLDERS[number], **sketch)
    folder = StudyFolder.create(where, study)
    protocol.collect(folder, carrier(parties, study))
    return folder, parties, tables


@pytest.mark.parametrize("number", [2, 4, 5])
def test_the_joint_matrix_is_that_of_the_pooled_columns(tmp_path, number):
    folder, parties, tables = collected(tmp_path, number)
    D = pooled_columns(parties, tables).to_numpy()
    assert np.abs(gram.joint(folder) - D.T @ D).max() < 1e-8 * (len(D) - 1)
    assert folder.collected
    assert not list(tmp_path.glob("deal-*/*"))
    assert not list(tmp_path.glob("progress-*/*"))
    products = {name: GramProduct.from_bytes(folder.read("product", name)) for name in folder.names}
    assert {name for name, found in products.items() if found.products} == set(HOLDERS[number]) - {"server"}


def test_the_order_of_holders_changes_nothing(tmp_path):
    first = collected(tmp_path / "a", 4)[0]
    parties, _ = gram_parties(4)
    study = gram_study_of(parties, ["site1", "site2", "site3"])
    second = StudyFolder.create(tmp_path / "b", study)
    protocol.collect(second, carrier(parties, study))
    assert np.array_equal(gram.joint(first), gram.joint(second))


@pytest.mark.parametrize("number", [2, 5])
def test_folds_are_the_matrices_of_subjects_split_by_a_keyed_hash(tmp_path, number):
    folder, parties, tables = collected(tmp_path, number, folds=4)
    D, site = pooled_columns(parties, tables), parties[0]
    tokens, key = site.tokens(folder.study), site.key(folder.study).derive("folds", folder.study.id, folder.study.run)
    ids = np.asarray(site.table().ids())[tokens.rows]
    part = fold_places(tokens.tokens, key, 4)
    found = gram.by_fold(folder)
    assert found.shape == (4, D.shape[1], D.shape[1])
    for fold in range(4):
        rows = D.loc[ids[part == fold]].to_numpy()
        assert len(rows) == 60
        assert np.abs(found[fold] - rows.T @ rows).max() < 1e-8 * len(D)


def test_the_server_resumes_its_own_sums(tmp_path):
    """Lost after every deal and every product; the server's sums take each block once."""
    parties, tables = gram_parties(2)
    study = gram_study_of(parties, HOLDERS[2])
    lost: set[tuple[str, bytes]] = set()

    def ask(step, payloads):
        replies = carrier(parties, study)(step, payloads)
        at = (step, next(iter(payloads.values())).get("block.number", b""))
        if step in ("deal", "multiply") and at not in lost:
            lost.add(at)
            return {name: reply for name, reply in replies.items() if name == "site0"}
        return replies

    for _ in range(6):
        with pytest.raises(FederationError, match="lacks the"):
            protocol.collect(StudyFolder.create(tmp_path, study), ask)
    folder = StudyFolder.create(tmp_path, study)
    protocol.collect(folder, ask)
    D = pooled_columns(parties, tables).to_numpy()
    assert len(lost) == 6
    assert np.abs(gram.joint(folder) - D.T @ D).max() < 1e-8 * (len(D) - 1)


@pytest.mark.parametrize(
    ("number", "holders", "words"),
    [
        (2, [], "needs the server as the third holder"),
        (2, ["site0", "site1"], "needs the server as the third holder"),
        (4, [], "three of them to hold shares"),
        (4, ["site0", "site1", "server"], "three of them to hold shares"),
        (4, ["site0", "site1", "elsewhere"], "three of them to hold shares"),
    ],
)
def test_who_holds_shares_is_said_in_the_study_file(number, holders, words):
    with pytest.raises(StudyError, match=words):
        gram_study_of(gram_parties(number)[0], holders)


def test_no_site_may_be_called_as_the_server():
    content = gram_study_of(gram_parties(4)[0], HOLDERS[4]).to_dict()
    content["site"][1]["name"] = "server"
    with pytest.raises(StudyError, match="may be called 'server'"):
        Study.from_dict(content)


def test_what_goes_to_one_holder_is_not_relayed_to_another(tmp_path):
    """A packet is cut out for its holder: nobody is sent more than it can open."""
    parties, _ = gram_parties(4)
    study = gram_study_of(parties, HOLDERS[4])
    seen = {}

    def ask(step, payloads):
        if step == "multiply":
            seen.update({name: payload for name, payload in payloads.items() if name not in seen})
        return carrier(parties, study)(step, payloads)

    protocol.collect(StudyFolder.create(tmp_path, study), ask)
    for name, payload in seen.items():
        deals = [GramDeal.from_bytes(raw) for sender, raw in payload.items() if sender != "block.number"]
        held = {study.holders.index(name)} if name in study.holders else set()
        assert all(set(deal.sealed) == held for deal in deals)
        assert len(deals) == (3 if held else 0)


def test_a_lost_reply_names_the_site(tmp_path):
    parties, _ = gram_parties(4)
    study = gram_study_of(parties, HOLDERS[4])

    def ask(step, payloads):
        return {} if step == "multiply" else carrier(parties, study)(step, payloads)

    with pytest.raises(FederationError, match="lacks the progress-0 of site0, site2, site3"):
        protocol.collect(StudyFolder.create(tmp_path, study), ask)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (2, "The server and one of the two sites that work together have every value of the other site's columns"),
        (5, "Any two of these three that work together have every value of every site's columns"),
    ],
)
def test_the_card_says_who_together_has_everything(number, said):
    study = gram_study_of(gram_parties(number)[0], HOLDERS[number], folds=2)
    card = study_card(study, n=240, columns=12, key_fingerprint="0" * 32)
    assert said in card["parties"]["together"]
    assert card["not_claimed"][0] == card["parties"]["together"]
    assert ("the server and one site" if number == 2 else "any two of site1, site2, site4") in card["in_one_sentence"]
    assert "each of 2 folds" in card["parties"]["server_receives"]
    assert card["attacks"]["columns_per_subject"] == 12 / 120
    assert any("server" in line or "site1, site2, site4" in line for line in explain(study) if line.startswith("Privacy"))
