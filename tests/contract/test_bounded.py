"""Runs too large for all their draws: what they keep agrees with the run that keeps everything, on a size where both run."""

import signal
import threading
import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest

from intarsia import ReducedRankHorseshoe
from intarsia.errors import InputError
from intarsia.report import render
from intarsia.report.gather import gather
from intarsia.server.results.diagnostics import entries
from intarsia.server.results.distance_from_zero import contour_share
from intarsia.server.results.draws import Draws
from intarsia.server.results.effects import effects_of
from intarsia.server.results.judgement import judge, keep, kept
from intarsia.server.results.leave_one_out import Rows
from intarsia.server.results.not_converged import NotConvergedWarning
from intarsia.server.results.posterior import Names, Posterior, singular_values
from intarsia.server.results.selection import select
from intarsia.server.results.summaries import Summaries, ordered_quantiles
from intarsia.server.sampler import backends, running
from intarsia.server.sampler.exchange import Alike
from intarsia.server.sampler.keeping import choose_features, whole_draws
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.sparse_start import SparseStart
from intarsia.server.sampler.stopping import Look, Until, standing
from intarsia.server.study.fit import coefficients
from intarsia.site.prediction import SiteModel
from intarsia.site.units import Units
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.study import Study

P, M, Q = 400, 100, 3
RUN = Settings(draws=200, warmup=60, chains=4, thin=1, seed=3, workers=1)
MEMORY = 4 * 4 * P * Q * 30  # 30 whole draws per chain; the draws of 220 features, the fewest


def data():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((M, P))
    X[:, 9] = X[:, 8] + 0.05 * rng.standard_normal(M)  # twins
    C = np.zeros((P, Q))
    C[:9] = rng.normal(0.0, 1.0, (9, Q))
    return X, X @ C + rng.standard_normal((M, Q))


X, Y = data()


@pytest.fixture(scope="module")
def both():
    return sample(X, Y, settings=RUN), sample(X, Y, settings=replace(RUN, memory=MEMORY))


@pytest.fixture(scope="module")
def posteriors(both):
    out = [Posterior.from_draws(draws) for draws in both]
    for posterior in out:
        keep(posterior, judge(posterior, Rows.of(X, Y), X=X))
    return out


def together_of(C):
    """What `running` makes of draws at hand (chain, draw, P, Q)."""
    runs = []
    for chain in C:
        now = running.blank(np, C.shape[2:])
        for i, draw in enumerate(chain):
            now = running.add(backends.get("numpy"), now, draw, running.Mark(*(v[0] for v in running.marks(i, i + 1))))
        runs.append(running.as_first(now))
    return running.together(runs)


def summed_up(C):
    return running.convergence(together_of(C), C.shape[1])


def agrees(full, bounded):
    """Draws bit for bit, moments to rounding, diagnostics to that of single precision."""
    known = bounded.summaries
    np.testing.assert_array_equal(bounded.C, full.C[:, :, known.features])
    np.testing.assert_array_equal(bounded.Sigma, full.Sigma)
    flat = full.C.reshape(-1, *full.C.shape[2:])
    np.testing.assert_allclose(known.mean, flat.mean(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(known.sd, flat.std(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_array_equal(known.positive, (flat > 0).sum(axis=0))
    shift = known.whole - full.C[:, known.at]
    assert np.ptp(shift, axis=(0, 1)).max() < 1e-5
    np.testing.assert_allclose(known.whole.mean(axis=(0, 1)), known.mean, atol=1e-6)
    for name, values in summed_up(full.C).items():
        np.testing.assert_allclose(getattr(known, name), values, rtol=2e-3 if name.startswith("ess") else 1e-4)


def test_a_bounded_run_agrees_with_the_one_that_keeps_everything(both):
    full, bounded = both
    assert full.summaries is None
    assert bounded.C.shape == (4, 200, 220, Q)
    assert (bounded.P, bounded.summaries.whole.dtype) == (P, np.float32)
    assert 20 <= len(bounded.summaries.at) <= 30
    agrees(full, bounded)


def test_its_diagnostics_say_what_those_of_all_draws_say(both):
    exact, known = entries(both[0].C), both[1].summaries
    for name, least in (("rhat", 0.9), ("rhat_folded", 0.85), ("ess_bulk", 0.4), ("ess_tail", 0.4)):
        assert np.corrcoef(exact[name].ravel(), getattr(known, name).ravel())[0, 1] > least, name
    for name in ("rhat", "rhat_folded"):
        assert np.quantile(np.abs(exact[name] - getattr(known, name)), 0.9) < 0.25 * (np.quantile(exact[name], 0.99) - 1)
    assert 0.6 < np.median(known.ess_bulk / exact["ess_bulk"]) < 1.5


ON_A_DEVICE = replace(RUN, chains=2, draws=80, warmup=0, backend="jax")


def test_on_a_device_too():
    """Every draw is kept whole, in single precision, so that one compilation is enough to see what was summed up."""
    pytest.importorskip("jax")
    found = sample(X[:12, :250], Y[:12], settings=replace(ON_A_DEVICE, memory=5 * 2 * 80 * 250 * Q))
    known, whole = found.summaries, found.summaries.whole.astype(float)
    assert (found.C.shape, whole.shape) == ((2, 80, 220, Q), (2, 80, 250, Q))
    np.testing.assert_allclose(found.C, whole[:, :, known.features], rtol=1e-6, atol=1e-6)
    flat = whole.reshape(-1, 250, Q)
    np.testing.assert_allclose(known.mean, flat.mean(axis=0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(known.sd, flat.std(axis=0, ddof=1), rtol=1e-5)
    for name, values in summed_up(whole).items():
        np.testing.assert_allclose(getattr(known, name), values, rtol=0.02)


@pytest.mark.slow
def test_a_device_agrees_with_itself_and_goes_on(tmp_path):
    pytest.importorskip("jax")
    few, memory = (X[:12, :250], Y[:12]), 4 * 2 * 250 * Q * 10
    sample(*few, settings=replace(ON_A_DEVICE, draws=40, memory=memory, checkpoint=tmp_path))
    bounded = sample(*few, settings=replace(ON_A_DEVICE, memory=memory, checkpoint=tmp_path))
    assert len(bounded.summaries.at) < 20
    agrees(sample(*few, settings=ON_A_DEVICE), bounded)


@pytest.mark.parametrize("bug", ["batches", "halfway", "mean"])
def test_planted_bugs_in_the_summing_up_are_found(both, monkeypatch, bug):
    real = running.add

    def wrong(be, now, C, mark):
        if bug == "halfway":
            mark = mark._replace(halfway=mark.number % 10 == 0)
        out = real(be, now, C, mark)
        if bug == "batches":
            return out._replace(batches=out.batches * 1.05)
        return out._replace(mean=now.mean + (C - now.mean) / (mark.number + 1)) if bug == "mean" else out

    monkeypatch.setattr("intarsia.server.sampler.record.add", wrong)
    with pytest.raises(AssertionError):
        agrees(both[0], sample(X, Y, settings=replace(RUN, memory=MEMORY)))


def test_selection_groups_and_diagnosis_agree(posteriors):
    full, bounded = (kept(posterior) for posterior in posteriors)
    a, b = full.selection, bounded.selection
    assert a.groups
    np.testing.assert_array_equal(a.selected, b.selected)
    np.testing.assert_array_equal(a.by_response, b.by_response)
    np.testing.assert_array_equal(a.sign_by_response, b.sign_by_response)
    assert [g.members.tolist() for g in a.groups] == [g.members.tolist() for g in b.groups]
    assert a.expected_fdr == pytest.approx(b.expected_fdr, abs=1e-12)
    assert np.abs(a.local_fdr - b.local_fdr).mean() < 0.05
    some = posteriors[1].with_draws
    for name in ("rhat", "ess_tail", "mcse_sd"):
        np.testing.assert_array_equal(getattr(full.diagnosis, name)[some], getattr(bounded.diagnosis, name)[some])
    assert np.isfinite(bounded.diagnosis.rhat).all()
    assert np.isfinite(bounded.diagnosis.mcse).all()
    assert full.diagnosis.converged == bounded.diagnosis.converged


def test_a_feature_without_draws_is_selected_all_the_same(both):
    """Take the draws of a feature that matters away: counts and whole draws still find it."""
    bounded = both[1]
    known = bounded.summaries
    rest = known.features != 0
    without = Draws(bounded.C[:, :, rest], bounded.Sigma, bounded.tau, None, {}, replace(known, features=known.features[rest]))
    chosen = judge(Posterior.from_draws(without), X=X).selection
    assert chosen.selected[0]
    assert (chosen.selected == judge(Posterior.from_draws(bounded), X=X).selection.selected).all()


def test_a_feature_that_was_in_for_some_draws_alone_is_not_selected():
    """Few whole draws, and nulls that come in now and then, as a million features have them: the mean of all draws lies outside
    the cloud of the whole ones, which says nothing of zero.
    """
    rng = np.random.default_rng(0)
    P, Q, draws, whole_at = 300, 10, 600, np.arange(24, 600, 25)
    C = 1e-4 * rng.standard_normal((4, draws, P, Q))
    for p in range(1, P):  # in for ten draws in a row of one chain
        begin = int(rng.choice(whole_at[:-1])) + 1
        C[p % 4, begin : begin + 10, p] += 0.1 * rng.standard_normal(Q)
    C[:, :, 0] += 1.0
    whole = C[:, whole_at] + (C.mean(axis=(0, 1)) - C[:, whole_at].mean(axis=(0, 1)))
    flat = C.reshape(-1, P, Q)
    numbers = {name: np.ones((P, Q)) for name in ("rhat", "rhat_folded", "ess_bulk", "ess_tail")}
    known = Summaries(
        np.array([5]), flat.mean(axis=0), flat.std(axis=0, ddof=1), (flat > 0).sum(axis=0), **numbers,
        whole=whole.astype(np.float32), at=whole_at, total=4 * draws,
    )  # fmt: skip
    run = Draws(C[:, :, [5]], np.ones((4, draws, Q, Q)), np.ones((4, draws, Q)), None, {}, known)
    apart = contour_share(np.ascontiguousarray(whole.transpose(2, 3, 0, 1)).reshape(P, Q, -1))
    assert (apart[1:] < 0.05).mean() > 0.5  # what the whole draws would have said
    assert np.flatnonzero(select(run).selected).tolist() == [0]


def test_intervals_of_kept_features_are_exact_and_others_near(posteriors):
    bounded = posteriors[1]
    some = bounded.with_draws
    others = np.setdiff1d(np.arange(P), some)
    a, b = (np.stack(posterior.interval(0.95)) for posterior in posteriors)
    np.testing.assert_array_equal(a[:, some], b[:, some])
    width = a[1, others] - a[0, others]
    assert np.sqrt(np.square((b - a)[:, others] / width).mean()) < 0.15
    assert 0.9 < ((b[1] - b[0])[others] / width).mean() < 1.1
    place = np.array([0, int(others[3]), 7])
    np.testing.assert_allclose(np.stack(bounded.quantile([0.025, 0.975], place)), b[:, place])
    assert bounded.draws_of(np.array([0])).shape == (4, 200, 1, Q)
    assert bounded.draws_of(others[:2]).shape == (4, len(bounded.whole_at), 2, Q)


@pytest.mark.parametrize("numbers", [1, 20_000])
def test_stretches_of_features_without_draws_are_no_obstacle(posteriors, monkeypatch, tmp_path, numbers):
    """At a million features most parts that are worked on at once have none whose draws were kept."""
    everything, bounded = posteriors
    before = [posterior.interval(0.95) for posterior in posteriors]
    monkeypatch.setattr("intarsia.server.results.posterior._CHUNK", numbers)
    for posterior, intervals in zip(posteriors, before, strict=True):
        for again, once in zip(posterior.interval(0.95), intervals, strict=True):
            np.testing.assert_array_equal(again, once)
    missing = np.setdiff1d(np.arange(P), bounded.with_draws)[:7]
    np.testing.assert_array_equal(bounded.quantile([0.5], missing)[0], bounded.quantile([0.5])[0][missing])
    assert bounded.quantile([0.5], missing[:0])[0].shape == (0, Q)
    np.testing.assert_array_equal(singular_values(bounded.whole), bounded.tree["sample_stats"]["singular_value"].values)
    assert Posterior.load(bounded.save(tmp_path / "p.nc")).interval(0.95)[0].shape == everything.interval(0.95)[0].shape


def test_quantiles_of_few_draws_are_those_of_numpy():
    x = np.random.default_rng(3).standard_normal((7, 13)).astype(np.float32)
    q = [0.0, 0.03, 0.5, 1.0]
    np.testing.assert_allclose(ordered_quantiles(np.sort(x, axis=1), q), np.quantile(x, q, axis=1), rtol=1e-6)


def test_the_rank_of_whole_draws_is_that_of_the_draws(posteriors):
    full, bounded = (posterior.rank_summary() for posterior in posteriors)
    assert bounded["effective_rank"] == pytest.approx(full["effective_rank"], rel=0.02)
    np.testing.assert_allclose(bounded["singular_values"], full["singular_values"], rtol=0.02)


def test_prediction_and_leave_one_out_agree(posteriors):
    full, bounded = posteriors
    new = np.random.default_rng(8).standard_normal((20, P))
    (mean, sd), (near, near_sd) = full.predict(new), bounded.predict(new)
    assert np.abs(near - mean).max() < 1e-5
    assert np.abs(near_sd / sd - 1).max() < 0.2
    assert bounded.predictive_draws(new, rng=np.random.default_rng(0)).shape == (4, len(bounded.whole_at), 20, Q)
    assert np.abs(kept(full).loo.r2 - kept(bounded).loo.r2).max() < 0.05


def test_the_file_holds_kept_draws_under_their_names_and_summaries_of_all(posteriors, tmp_path):
    bounded = posteriors[1]
    back = Posterior.load(bounded.save(tmp_path / "posterior.nc"))
    assert back.features == [f"x{p}" for p in range(P)]
    assert back.C.coords["feature"].values.tolist() == [f"x{p}" for p in bounded.with_draws]
    np.testing.assert_array_equal(back.mean(), bounded.mean())
    np.testing.assert_array_equal(back.interval(0.9)[1], bounded.interval(0.9)[1])
    np.testing.assert_array_equal(kept(back).selection.local_fdr, kept(bounded).selection.local_fdr)
    page = render(gather(back))
    assert "those of 220 features were kept" in page


def test_every_site_gets_its_part(both):
    """Messages with draws, whether a site's features have draws of their own or not."""
    names = Names(None, None, ["one"] * 200 + ["two"] * 200, ["two"] * Q)
    sites = [{"name": "one", "features": ["*"]}, {"name": "two", "features": ["*"], "responses": ["*"]}]
    asked = {"id": "s", "run": "ab" * 8, "sketch": {"m": M}, "site": sites, "deliver": {"content": "draws", "draws": 40}}
    study, sent = Study.from_dict(asked), []
    for draws in both:
        posterior = Posterior.from_draws(draws, names)
        judgement = judge(posterior, X=X)
        messages, summary = coefficients(study, posterior, judgement)
        sent.append(messages)
        assert summary["draws"] == 800
        assert effects_of(posterior, judgement)[0].mean.shape == (P, Q)
    for name in ("one", "two"):
        full, bounded = sent[0][name], sent[1][name]
        np.testing.assert_allclose(full.mean, bounded.mean, atol=1e-9)
        np.testing.assert_array_equal(full.selected, bounded.selected)
        assert full.features == bounded.features
        assert full.draws.shape == bounded.draws.shape == (40, 200, Q)
        assert bounded.sigma2.shape == full.sigma2.shape
    one, two = (sent[1][name].draws for name in ("one", "two"))
    whole = both[1].summaries.whole.reshape(-1, P, Q)
    at = np.unique(np.linspace(0, len(whole) - 1, 40).round().astype(int))
    np.testing.assert_array_equal(np.concatenate([one, two], axis=1), whole[at])
    assert one.dtype == whole.dtype == np.float32  # as they were kept: no more bytes than numbers that are known


@pytest.mark.parametrize(("bytes_of_draws", "number"), [(25, 25), (3, 20), (500, 40)])
def test_draws_that_go_back_have_room_and_the_message_comes_through(both, monkeypatch, bytes_of_draws, number):
    monkeypatch.setattr("intarsia.server.study.fit.DELIVERED_BYTES", bytes_of_draws * 4 * P * Q)
    posterior = Posterior.from_draws(both[1], Names(None, None, ["one"] * P, ["one"] * Q))
    roster = [{"name": "one", "features": ["*"], "responses": ["*"]}]
    study = Study.from_dict({"id": "s", "run": "ab" * 8, "sketch": {"m": M}, "site": roster, "deliver": {"draws": 40}})
    message = coefficients(study, posterior, judge(posterior, X=X))[0]["one"]
    assert message.draws.shape == (number, P, Q)
    assert message.sigma2.shape == (number, Q)
    back = Coefficients.from_bytes(message.to_bytes())
    np.testing.assert_array_equal(back.draws, message.draws)
    assert back.own_digest() == message.own_digest()
    # Predictions are made in double precision from them.
    units = Units(back.features, back.responses, np.zeros(P), np.ones(P), np.zeros(Q), np.ones(Q))
    new = np.random.default_rng(3).standard_normal((5, P))
    sd = SiteModel(back, units).part(new, np.empty((5, 0)))[1]
    np.testing.assert_allclose(sd, np.std([new @ draw.astype(float) for draw in message.draws], axis=0, ddof=1), rtol=1e-9)


def test_draws_go_through_a_folder(both, tmp_path):
    back = Draws.load(both[1].save(tmp_path))
    agrees(both[0], back)


def test_the_draws_do_not_depend_on_workers_or_interruptions(both, tmp_path):
    full = both[0]
    agrees(full, sample(X, Y, settings=replace(RUN, workers=2, memory=MEMORY)))
    whole = sample(X, Y, settings=replace(RUN, memory=MEMORY, checkpoint=tmp_path / "one"))
    sample(X, Y, settings=replace(RUN, draws=70, memory=MEMORY, checkpoint=tmp_path / "two"))
    longer = sample(X, Y, settings=replace(RUN, memory=MEMORY, checkpoint=tmp_path / "two"))
    agrees(full, longer)
    for name in ("mean", "sd", "rhat", "rhat_folded", "ess_bulk", "ess_tail"):
        np.testing.assert_array_equal(getattr(whole.summaries, name), getattr(both[1].summaries, name))
        np.testing.assert_array_equal(getattr(longer.summaries, name), getattr(both[1].summaries, name))
    with pytest.raises(InputError, match="holds 200 draws"):
        sample(X, Y, settings=replace(RUN, draws=90, memory=MEMORY, checkpoint=tmp_path / "two"))


def test_an_interrupted_run_goes_on(both, tmp_path):
    def stop(progress):
        if threading.current_thread() is threading.main_thread() and min(progress.sweeps[:1]) > 100 and not stopped:
            stopped.append(True)
            signal.raise_signal(signal.SIGINT)

    stopped = []
    with pytest.raises(KeyboardInterrupt):
        sample(X, Y, settings=replace(RUN, memory=MEMORY, checkpoint=tmp_path, progress=stop))
    again = sample(X, Y, settings=replace(RUN, memory=MEMORY, checkpoint=tmp_path))
    np.testing.assert_array_equal(again.C, both[1].C)
    np.testing.assert_array_equal(again.summaries.ess_tail, both[1].summaries.ess_tail)
    np.testing.assert_array_equal(again.summaries.whole, both[1].summaries.whole)


def test_a_target_stops_the_run_at_the_same_draw_whatever_the_workers(tmp_path):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((60, 6))
    y = x[:, :2] @ rng.standard_normal((2, 2)) + rng.standard_normal((60, 2))
    run = Settings(draws=2000, warmup=50, thin=2, chains=4, seed=1, until=Until(rhat=1.05, folded=1.06, ess=150))
    alone = sample(x, y, settings=replace(run, workers=1, memory=0))
    assert alone.draws in (100, 150, 200, 250, 300, 350, 400)
    pair = sample(x, y, settings=replace(run, workers=2, memory=0, checkpoint=tmp_path))
    assert pair.draws == alone.draws
    np.testing.assert_array_equal(pair.C, alone.C)
    np.testing.assert_array_equal(pair.summaries.rhat, alone.summaries.rhat)
    again = sample(x, y, settings=replace(run, workers=1, memory=0, checkpoint=tmp_path))
    np.testing.assert_array_equal(again.summaries.ess_tail, alone.summaries.ess_tail)


@pytest.mark.parametrize("place", [0, 3, 8, 6998])
def test_a_target_is_missed_while_any_one_coefficient_misses_it(place):
    """Few are looked at first, then more, in the end all: place 0 is among the first, 3 among the last alone."""
    rng = np.random.default_rng(0)
    C, Sigma = rng.standard_normal((4, 200, 7000, 1)), np.exp(rng.standard_normal((4, 200, 1, 1)))
    target = Until(rhat=1.1, folded=1.1, ess=100)
    assert standing(Look(200, C, Sigma), target).meets(target)
    C[0, :, place] += 2.0
    assert not standing(Look(200, C, Sigma), target).meets(target)


def test_a_target_is_missed_while_a_coefficient_without_draws_misses_it():
    rng = np.random.default_rng(0)
    C, Sigma = rng.standard_normal((4, 400, 3, 1)), np.exp(rng.standard_normal((4, 400, 1, 1)))
    rest = rng.standard_normal((4, 400, 5, 1))
    target = Until(rhat=1.02, folded=1.03, ess=300)
    assert standing(Look(400, C, Sigma, together_of(rest)), target).meets(target)
    rest[0, :, 4] += 1.0
    assert not standing(Look(400, C, Sigma, together_of(rest)), target).meets(target)


def test_the_estimator_works_from_it():
    """Constant columns, covariates, data with means, in their own units."""
    rng = np.random.default_rng(1)
    wide = np.hstack([X * rng.uniform(0.5, 2.0, P) + rng.normal(0, 30.0, P), np.ones((M, 1)), rng.standard_normal((M, 1))])
    y = 5.0 * Y + wide[:, -1:] + 100.0
    settings = {"draws": 100, "warmup": 60, "chains": 2, "thin": 1, "until": None, "random_state": 0, "n_jobs": 1, "folds": 0}
    settings |= {"covariates": [-1], "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        full = ReducedRankHorseshoe(**settings).fit(wide, y)
        bounded = ReducedRankHorseshoe(**settings, memory=MEMORY).fit(wide, y)
    assert bounded.posterior_.summaries is not None
    np.testing.assert_allclose(bounded.coef_, full.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(bounded.selected_, full.selected_)
    assert bounded.coef_[:, P].tolist() == [0.0] * Q
    # Intercept and covariate effects need all of C: they have the whole draws, and their noise is drawn anew.
    spread = np.sqrt(np.diag(full.noise_covariance_) / M)
    assert np.abs(bounded.predict(wide[:10]) - full.predict(wide[:10])).max() < spread.max()
    assert bounded.predict_draws(wide[:2]).shape[2:] == (2, Q)
    assert len(bounded.table()) == len(full.table())
    assert bounded.interval(0.9)[0].shape == full.interval(0.9)[0].shape


def test_memory_grows_with_the_features_and_not_with_the_draws():
    def peak(draws):
        tracemalloc.start()
        found = sample(X, Y, settings=replace(RUN, draws=draws, warmup=5, chains=1, memory=0))
        size = found.C.nbytes  # of the features whose draws are kept
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top - 2 * size

    few, many = peak(60), peak(300)
    whole = 240 * P * Q * 8  # of the draws more
    assert many - few < 0.15 * whole


def test_what_is_kept_is_chosen_from_data_and_start_alone():
    found = SparseStart(np.array([399]), np.ones((1, Q)), np.eye(Q))
    places = choose_features(X, Y, found, 50)
    assert len(places) == 50
    assert 399 in places
    assert set(range(6)) <= set(places.tolist())
    np.testing.assert_array_equal(places, choose_features(X, Y, found, 50))
    assert choose_features(X, Y, None, P).tolist() == list(range(P))


def test_what_looks_like_the_start_is_kept_too():
    """Sets of interchangeable features are looked for among what is kept."""
    found = SparseStart(np.array([399]), np.ones((1, Q)), np.eye(Q))
    dull = np.setdiff1d(np.arange(P), choose_features(X, Y, found, 50))[:5]
    alike = Alike(np.array([[399, *dull[:3]], [dull[3], dull[4], dull[3], dull[3]]]), np.array([4, 2]))
    places = choose_features(X, Y, replace(found, alike=alike), 50)
    assert len(places) == 50
    assert {399, *dull.tolist()} <= set(places.tolist())


@pytest.mark.parametrize(("draws", "number"), [(1000, 13), (1000, 5000), (60, 5), (4, 2), (5000, 100)])
def test_whole_draws_are_there_wherever_a_run_stops(draws, number):
    at = whole_draws(draws, number)
    assert len(at) == len(np.unique(at)) <= max(number, 7)
    assert at[-1] == draws - 1
    if number >= draws:
        assert len(at) == draws
    for look in (100, 150, 200, 400, 800):
        if look < draws:
            assert (at < look).sum() >= min(number, draws) // 10


def test_batches_and_halves_are_those_of_the_draws():
    """Against the definitions, on draws at hand."""
    rng = np.random.default_rng(2)
    n, chains = 150, 3
    x = rng.standard_normal((chains, n, 5, 2)).cumsum(axis=1) * 0.1 + 1.0
    found = summed_up(x)
    root = np.sign(x) * np.abs(x) ** 0.25
    for name, r, ess in (("rhat", root, "ess_bulk"), ("rhat_folded", np.abs(root), "ess_tail")):
        halves = np.concatenate([r[:, :75], r[:, 75:]])
        within = halves.var(axis=1, ddof=1).mean(axis=0)
        between = halves.mean(axis=1).var(axis=0, ddof=1)
        np.testing.assert_allclose(found[name], np.sqrt(1 - 2 / n + between / within), rtol=1e-4)
        means = r.reshape(chains * 6, 25, 5, 2).mean(axis=1)
        np.testing.assert_allclose(found[ess], chains * n * within / (25 * means.var(axis=0, ddof=1)), rtol=1e-3)


def test_whole_draws_lie_on_disk_with_a_checkpoint_too_and_the_run_goes_on_from_its_own(both, tmp_path):
    asked = replace(RUN, memory=MEMORY, checkpoint=tmp_path)
    first = sample(X, Y, settings=asked)
    own = (tmp_path / "whole.npy").read_bytes()
    again = sample(X, Y, settings=asked)  # from the file as the first left it
    assert (tmp_path / "whole.npy").read_bytes() == own
    assert not list(tmp_path.glob(".whole*"))
    for draws in (first, again):
        assert isinstance(draws.summaries.whole, np.memmap)
        np.testing.assert_array_equal(draws.summaries.whole, both[1].summaries.whole)
