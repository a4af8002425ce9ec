"""What the server sends back to a site, and what fit.py puts into it."""

from dataclasses import replace

import numpy as np
import pytest
from tests.reports import made_up
from tests.sparse_draws import ragged

from intarsia.errors import MessageError
from intarsia.server.assess.assessment import assess, keep
from intarsia.server.assess.leave_one_out import Rows
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import CovariateEffects, Names, Posterior
from intarsia.server.study.fit import coefficients
from intarsia.server.study.release import rounded
from intarsia.site.prediction import SiteModel
from intarsia.site.units import Units
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.container import pack, unpack
from intarsia.wire.study import Study

SITES = [
    {"name": "imaging", "features": ["*"]},
    {"name": "laboratory", "features": ["*"]},
    {"name": "clinic", "features": [], "responses": ["*"]},
]


@pytest.fixture
def messages():
    """Covariates at two sites, and a set of interchangeable features across two sites."""
    posterior, joined, _C = made_up(P=20)
    rng = np.random.default_rng(0)
    chains, draws, _P, Q = posterior.C.shape
    X = np.array(joined.X)
    one, two = 3, 15  # of imaging, of laboratory
    X[:, two] = X[:, one] + 0.02 * rng.standard_normal(len(X))
    first = rng.random((chains, draws, 1)) < 0.5
    C = np.array(posterior.C.values)
    C[:, :, one], C[:, :, two] = np.where(first, 0.8, 0.0), np.where(first, 0.0, 0.8)
    C[:, :, [one, two]] += 0.01 * rng.standard_normal((chains, draws, 2, Q))
    effects = CovariateEffects(
        rng.standard_normal((chains, draws, 3, Q)), ("age", "sex", "batch"), ("clinic",) * 2 + ("imaging",)
    )
    Sigma = np.tile(0.3 * np.eye(Q) + 0.2, (chains, draws, 1, 1))
    coords = posterior.C.coords
    posterior = Posterior.from_draws(
        Draws(C, Sigma, {"tau": posterior.tau.values}),
        Names(posterior.features, posterior.responses, coords["site"].values.tolist(), coords["response_site"].values.tolist()),
        effects=effects,
    )
    study = Study.from_dict({"id": "s", "run": "ab" * 8, "sketch": {"m": 100}, "site": SITES})
    assessment = keep(posterior, assess(posterior, Rows.of(X, joined.Y, rng.standard_normal((len(X), 3))), X=X))
    return (posterior, *coefficients(study, posterior, assessment))


def test_each_site_gets_its_own_covariates_groups_and_noise(messages):
    posterior, sent, summary = messages
    assert {name: message.covariates for name, message in sent.items()} == {
        "imaging": ("batch",), "laboratory": (), "clinic": ("age", "sex"),
    }  # fmt: skip
    flat = posterior.Gamma.values.reshape(-1, *posterior.Gamma.shape[2:])
    spread = flat.std(axis=0, ddof=1)
    np.testing.assert_array_equal(sent["clinic"].covariate_mean, rounded(flat[:, :2].mean(axis=0), spread[:2]))
    np.testing.assert_array_equal(sent["imaging"].covariate_lower, rounded(np.quantile(flat[:, 2:], 0.025, axis=0), spread[2:]))
    Q = len(posterior.responses)
    np.testing.assert_allclose(sent["clinic"].noise_covariance, 0.3 * np.eye(Q) + 0.2)
    assert sent["imaging"].noise_covariance.shape == (0, 0)
    (here,), (there,) = sent["imaging"].sets, sent["laboratory"].sets
    assert (here.members, here.elsewhere) == (("f003",), 1)
    assert (there.members, there.elsewhere) == (("f015",), 1)
    assert here.coverage > 0.95
    assert sent["clinic"].sets == ()
    assert list(summary)[:2] == ["converged", "verdict"]
    assert [one["members"] for one in summary["sets"]] == [["f003", "f015"]]
    assert summary["covariates"] == ["age", "sex", "batch"]
    assert all(message.converged == summary["converged"] for message in sent.values())


def test_a_site_s_part_of_a_prediction_is_its_linear_predictor_and_that_one_s_spread(messages):
    _, sent, _ = messages
    rng = np.random.default_rng(4)
    c = sent["imaging"]
    c = replace(c, to_predict=rng.normal(size=c.mean.shape), covariate_to_predict=rng.normal(size=c.covariate_mean.shape))
    P, none = len(c.features), np.empty(0)
    centre, scale = rng.normal(size=P), rng.uniform(1, 3, P)
    units = Units(c.features, (), centre, scale, none, none, c.covariates, np.array([40.0]), np.array([9.0]))
    X, Z = rng.normal(size=(7, P)), rng.uniform(20, 60, (7, 1))
    mean, sd = SiteModel(c, units).part(X, Z)
    V, W = (X - centre) / scale, (Z - 40) / 9
    np.testing.assert_allclose(mean, V @ (c.mean + c.to_predict) + W @ (c.covariate_mean + c.covariate_to_predict))
    spread = np.std([V @ draw for draw in c.draws], axis=0, ddof=1)
    np.testing.assert_allclose(sd, spread + np.abs(W) @ c.covariate_sd, rtol=1e-6)
    assert SiteModel(replace(c, draws=None, sigma2=None), units).part(X, Z).shape == (1, *mean.shape)


def test_they_survive_the_way(messages):
    for message in messages[1].values():
        raw = message.to_bytes()
        back = Coefficients.from_bytes(raw)
        assert back.to_bytes() == raw
        assert back.sets == message.sets
        assert back.covariates == message.covariates


@pytest.mark.parametrize(
    "change",
    [
        {"members": ("f015",)},  # of another site
        {"members": ()},
        {"elsewhere": -1},
        {"coverage": 2.0},
        {"purity": -0.1},
    ],
)
def test_a_set_described_wrongly_is_refused(messages, change):
    message = messages[1]["imaging"]
    spoilt = replace(message, sets=(replace(message.sets[0], **change),))
    with pytest.raises(MessageError, match="set of features"):
        Coefficients.from_bytes(spoilt.to_bytes())


def test_another_version_and_what_no_probability_can_be_are_refused(messages):
    message = messages[1]["imaging"]
    header, arrays = unpack(message.to_bytes(), "coefficients")
    with pytest.raises(MessageError, match="another version than 2"):
        Coefficients.from_bytes(pack("coefficients", header | {"version": 3}, arrays))
    for change in ({"pip": message.pip + 1.0}, {"lfsr": message.lfsr - 1.0}, {"stands": message.stands + np.uint8(9)}):
        with pytest.raises(MessageError, match="a probability that cannot be"):
            Coefficients.from_bytes(replace(message, **change).to_bytes())


def test_sparse_draws_give_the_same_message_and_the_background_to_predict_with(messages):
    posterior, sent, _ = messages
    C = np.where(np.abs(posterior.draws.C) < 0.1, 0.0, posterior.draws.C)
    background = np.random.default_rng(9).standard_normal(C.shape[2:])
    study = Study.from_dict({"id": "s", "run": "ab" * 8, "sketch": {"m": 100}, "site": SITES})
    both = []
    for draws in (ragged(C, C.any(axis=3)), C):
        one = replace(posterior, draws=replace(posterior.draws, C=draws, background=background), groups={})
        both.append(coefficients(study, one, assess(one))[0])
    at = [posterior.features.index(label) for label in sent["imaging"].features]
    for sparse, dense in zip(*(found.values() for found in both), strict=True):
        for name in ("mean", "sd", "lower", "upper", "draws", "sigma2", "noise_covariance", "to_predict", "covariate_mean"):
            np.testing.assert_allclose(getattr(sparse, name), getattr(dense, name), atol=1e-12, err_msg=name)
        assert Coefficients.from_bytes(sparse.to_bytes()).to_bytes() == sparse.to_bytes()
    told = rounded(background, np.sqrt(np.square(background).mean(axis=0)))  # as every effect that is added to predict
    np.testing.assert_array_equal(both[0]["imaging"].to_predict, told[at])
