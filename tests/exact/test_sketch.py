"""The sketch is Φ times the scaled columns, whatever the blocks, files, stores, machines or threads."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from intarsia.errors import InputError, MessageError
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.sketch import sketch as module
from intarsia.site.sketch.clipping import Bound
from intarsia.site.sketch.partial import Partial
from intarsia.site.sketch.sketch import ClippedNoise, SketchTerms, Work, factor, finish, gaussian_columns, partial, sketch
from intarsia.site.units import Units
from intarsia.wire.messages import Sketch, join

KEY = SketchKey(bytes(range(32)))
N, M, P = 400, 50, 17
TERMS = SketchTerms("trial", "first", M)
GAUSSIAN = replace(TERMS, kind="gaussian")


@pytest.fixture(autouse=True)
def _forget_factors() -> None:
    module._FACTORS.clear()


def data(seed: int = 0, n: int = N) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, P)) * rng.uniform(0.1, 30, P) + rng.uniform(-50, 50, P)


def dense_phi(n: int = N, m: int = M, kind: str = "orthonormal") -> np.ndarray:
    """Φ by the textbook, all of it in memory."""
    G = gaussian_columns(SketchTerms("trial", "first", m, kind).design(KEY, n).subkey, m, 0, n)
    if kind == "gaussian":
        return G / np.sqrt(n)
    Gc = G @ (np.eye(n) - np.full((n, n), 1 / n))
    return np.linalg.solve(np.linalg.cholesky(Gc @ Gc.T), Gc)


def scaled(X: np.ndarray) -> np.ndarray:
    return (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)


def close(a: np.ndarray, b: np.ndarray, rtol: float = 1e-10) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())


@pytest.mark.parametrize("kind", ["orthonormal", "gaussian"])
def test_the_sketch_is_phi_times_the_scaled_columns(kind: str) -> None:
    X = data()
    close(sketch(X, KEY, SketchTerms("trial", "first", M, kind)).message.X, dense_phi(kind=kind) @ scaled(X))


def test_the_papers_plain_sketch_neither_centres_nor_scales() -> None:
    X = data()
    found = sketch(X, KEY, GAUSSIAN, columns="plain").message.X
    close(found, dense_phi(kind="gaussian") @ X)


@pytest.mark.parametrize(("n", "m"), [(3, 2), (60, 20), (200, 150), (200, 199), (500, 499), (3000, 100)])
def test_phi_is_orthonormal_and_centred(n: int, m: int) -> None:
    phi = SketchTerms("trial", "first", m).design(KEY, n)
    G = gaussian_columns(phi.subkey, m, 0, n)
    Phi = np.linalg.solve(factor(phi), G - G.mean(axis=1, keepdims=True))
    assert np.abs(Phi @ Phi.T - np.eye(m)).max() < 1e-12  # one Cholesky alone gives 1e-11 at m = n − 1
    assert np.abs(Phi.sum(axis=1)).max() < 1e-10


def test_the_server_sees_unit_columns_on_average() -> None:
    """With divisor n − 1 in the scale, a sketched column has squared length m on average."""
    X = np.random.default_rng(3).standard_normal((2000, 300))
    lengths = (sketch(X, KEY, SketchTerms("s", "r", 200)).message.X ** 2).sum(axis=0)
    assert abs(lengths.mean() / 200 - 1) < 4 * np.sqrt(2 / 200 / 300)


def test_phi_y_has_the_noise_of_y() -> None:
    """A response that is X C plus noise keeps exactly the relation: Y_Φ − X_Φ C = Φ E."""
    rng = np.random.default_rng(5)
    X, E = data(), rng.standard_normal((N, 2))
    C = rng.standard_normal((P, 2))
    Y = X @ C + E + 7
    table = Table.open(
        np.hstack([X, Y]), responses=["y1", "y2"], rules=TableRules(names=[f"x{j}" for j in range(P)] + ["y1", "y2"])
    )
    result = sketch(table, KEY, TERMS)
    found, local = result.message, result.units
    noise = found.Y * local.y_scale - (found.X * local.x_scale) @ C
    close(noise, dense_phi() @ E, 1e-9)


@pytest.mark.parametrize("rows", [1, 7, 64, 399, 400, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_and_threads_do_not_matter(rows: int, threads: int) -> None:
    X = data()
    close(sketch(X, KEY, TERMS, work=Work(rows, threads)).message.X, dense_phi() @ scaled(X))


@pytest.mark.parametrize(("n", "columns", "m"), [(400, 18, 20), (400, 7, 60), (300, 65, 200), (2000, 40, 200)])
def test_however_many_threads_there_are_the_last_bit_is_the_same(n: int, columns: int, m: int) -> None:
    X, terms = np.random.default_rng(n).standard_normal((n, columns)), SketchTerms("trial", "threads", m)
    found = set()
    for own in (1, 2, 3, 7):
        for of_the_algebra in (1, 2):
            module._FACTORS.clear()
            with threadpool_limits(of_the_algebra, "blas"):
                found.add(sketch(X, KEY, terms, work=Work(threads=own)).message.X.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("kind", ["orthonormal", "gaussian"])
def test_an_intercept_does_not_matter(kind: str) -> None:
    X = np.round(data() * 2**10) / 2**10  # so that X + shift is exact
    shift = np.where(np.arange(P) % 2, 1e6, -3e5)
    a, b = (sketch(Z, KEY, SketchTerms("trial", "first", M, kind)).message.X for Z in (X, X + shift))
    close(b, a, 1e-11)


def test_row_order_is_that_agreed_not_that_of_the_file() -> None:
    X, rng = data(), np.random.default_rng(1)
    place = rng.permutation(N)
    shuffled = np.empty_like(X)
    shuffled[place] = X  # subject i lies in row place[i]
    close(sketch(shuffled, KEY, TERMS, order=place, work=Work(rows=33)).message.X, dense_phi() @ scaled(X))
    assert np.abs(sketch(shuffled, KEY, TERMS).message.X - dense_phi() @ scaled(X)).max() > 0.1


def test_rows_outside_the_cohort_are_left_out_entirely() -> None:
    X = data()
    kept = np.random.default_rng(1).permutation(N)[:300]
    X[np.setdiff1d(np.arange(N), kept), 0] = np.nan  # must not even be looked at
    close(sketch(X, KEY, TERMS, order=kept, work=Work(rows=45)).message.X, dense_phi(300) @ scaled(X[kept]))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, N - 1), max_size=5, unique=True), st.randoms(use_true_random=False), st.booleans())
def test_partial_sums_of_stores_add_in_any_order(cuts: list[int], random: object, holes: bool) -> None:
    X = data()
    X[:, 3] += 1e5 * (np.arange(N) > N / 2)  # stores with very different means
    if holes:
        X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    filled = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    phi = TERMS.design(KEY, N)
    edges = [0, *sorted(cuts), N]
    parts = [
        partial(Table.open(X[a:b], rules=TableRules(missing="mean")), phi, start=a, work=Work(threads=1))
        for a, b in pairwise(edges)
    ]
    random.shuffle(parts)  # type: ignore[attr-defined]
    total = parts[0]
    for other in parts[1:]:
        total = total + other
    found = finish(total, KEY, TERMS, missing="mean")
    close(found.message.X, dense_phi() @ scaled(filled), 1e-9)
    np.testing.assert_allclose(found.units.x_mean, filled.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.units.x_scale, filled.std(axis=0, ddof=1), rtol=1e-9)


def test_partial_sums_travel_between_the_sites_machines_by_file(tmp_path: Path) -> None:
    X = data()
    X[3, 2] = np.nan
    phi = TERMS.design(KEY, N)
    for i, rows in enumerate((slice(0, 150), slice(150, N))):
        partial(Table.open(X[rows], rules=TableRules(missing="mean")), phi, start=rows.start).save(tmp_path / f"{i}.partial")
    assert (tmp_path / "0.partial").stat().st_mode & 0o077 == 0
    total = Partial.load(tmp_path / "1.partial") + Partial.load(tmp_path / "0.partial")
    found = finish(total, KEY, TERMS, missing="mean").message
    close(found.X, sketch(Table.open(X, rules=TableRules(missing="mean")), KEY, TERMS).message.X, 1e-9)


def test_partial_sums_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    X = data()
    phi = TERMS.design(KEY, N)
    first = partial(Table.open(X[:150]), phi)
    with pytest.raises(InputError, match="150 subjects are in both"):
        first + first
    with pytest.raises(InputError, match="150 of 400 subjects"):
        finish(first, KEY, TERMS)
    other = SketchTerms("trial", "second", M)
    with pytest.raises(InputError, match="different sketches"):
        first + partial(Table.open(X[150:]), other.design(KEY, N), start=150)
    with pytest.raises(InputError, match="another sketch"):
        finish(first, KEY, other)
    with pytest.raises(InputError, match="different columns"):
        first + partial(Table.open(X[150:, :4]), phi, start=150)
    first.save(tmp_path / "a.partial")
    with pytest.raises(MessageError, match="'partial' message"):
        Units.from_bytes(tmp_path / "a.partial")


def test_several_files_are_one_table(tmp_path: Path) -> None:
    frame = pd.DataFrame(data(), columns=[f"x{j}" for j in range(P)])
    frame[:100].to_parquet(tmp_path / "a.parquet")
    frame[100:130].to_csv(tmp_path / "b.csv.gz", index=False)
    frame[130:].to_feather(tmp_path / "c.feather")
    table = Table.open([tmp_path / "a.parquet", tmp_path / "b.csv.gz", tmp_path / "c.feather"])
    close(sketch(table, KEY, TERMS, work=Work(rows=37)).message.X, dense_phi() @ scaled(frame.to_numpy()), 1e-9)


def test_dask_gives_the_same_sketch() -> None:
    da = pytest.importorskip("dask.array")
    dd = pytest.importorskip("dask.dataframe")
    X = data()
    expected = sketch(X, KEY, TERMS).message.X
    array = da.from_array(X, chunks=(61, 5))
    close(sketch(array, KEY, TERMS).message.X, expected)
    close(sketch(array[X[:, 0] > -1e9], KEY, TERMS).message.X, expected)  # chunks of unknown length
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(P)])
    frame["sex"] = rng.choice(["f", "m"], N)
    frame["y"] = rng.standard_normal(N)
    frame["who"] = [f"s{i}" for i in range(N)]
    frame.loc[5, "x1"] = np.nan
    roles = {"id": "who", "responses": ["y"], "rules": TableRules(missing="mean")}
    order = rng.permutation(N)[:300]
    for chosen in (None, order):
        small = sketch(Table.open(frame, **roles), KEY, TERMS, order=chosen).message
        module._FACTORS.clear()
        big = sketch(Table.open(dd.from_pandas(frame, npartitions=9), **roles), KEY, TERMS, order=chosen).message
        assert (big.features, big.responses, big.n) == (small.features, small.responses, small.n)
        close(big.X, small.X)
        close(big.Y, small.Y)


def test_phi_is_one_time() -> None:
    """Another study, run, cohort, n, m or kind: an unrelated Φ, so two sketches never share one."""
    changes = ({"study": "t"}, {"run": "second"}, {"m": M - 1}, {"kind": "gaussian"}, {"order_mac": "ab"})
    designs = [replace(TERMS, **change).design(KEY, N) for change in changes] + [TERMS.design(KEY, N - 1)]
    G = gaussian_columns(TERMS.design(KEY, N).subkey, 20, 0, 300)
    for other in designs:
        H = gaussian_columns(other.subkey, 20, 0, 300)
        assert abs(np.corrcoef(G.ravel(), H.ravel())[0, 1]) < 4.5 / np.sqrt(G.size), other
    same = replace(TERMS, site="clinic", precision="float32").design(KEY, N)  # Φ is that of all sites
    np.testing.assert_array_equal(G, gaussian_columns(same.subkey, 20, 0, 300))


def test_precision_is_rounded_as_stated() -> None:
    X = data()
    full, half = (sketch(X, KEY, replace(TERMS, precision=p)).message.X for p in ("float64", "float32"))
    np.testing.assert_array_equal(half, full.astype(np.float32).astype(np.float64))
    assert (half != full).any()


def test_constant_columns_are_refused_or_dropped() -> None:
    X = data()
    X[:, 4] = 0.1  # not a binary fraction: sums of it are not exact
    with pytest.raises(InputError, match="No variation in column x05"):
        sketch(X, KEY, TERMS)
    result = sketch(Table.open(X, rules=TableRules(constant="drop")), KEY, TERMS)
    assert result.units.dropped == ("x05",)
    assert "x05" not in result.message.features
    close(result.message.X, dense_phi() @ scaled(np.delete(X, 4, axis=1)))


def test_covariates_are_sketched_like_features_under_their_own_role(tmp_path: Path) -> None:
    X = data()[:, :4]
    columns = {"age": X[:, 0], "gene": X[:, 1], "y": X[:, 2], "smoke": np.where(X[:, 3] > 0.3, "yes", "no")}
    result = sketch(Table.open(columns, responses="y", covariates=["age", "smoke"]), KEY, replace(TERMS, site="clinic"))
    found, phi = result.message, dense_phi()
    assert (found.features, found.responses, found.covariates) == (("gene",), ("y",), ("age", "smoke=yes"))
    yes = np.column_stack([X[:, 0], X[:, 3] > 0.3])
    close(found.Z, phi @ scaled(yes))
    close(found.X, phi @ scaled(X[:, [1]]))
    np.testing.assert_allclose(result.units.z_mean, yes.mean(axis=0))
    result.units.save(tmp_path / "a.units")
    assert (tmp_path / "a.units").stat().st_mode & 0o077 == 0
    assert Units.from_bytes(tmp_path / "a.units").covariates == ("age", "smoke=yes")
    again = Sketch.load(found.to_bytes())
    np.testing.assert_array_equal(again.Z, found.Z)
    assert join([found]).covariate_sites == ("clinic", "clinic")


def test_the_message_does_not_depend_on_means_and_scales() -> None:
    """Nothing of location or unit is in what leaves: shifted and rescaled data give the same file, up to rounding."""
    X = data()
    a, b = (sketch(Z, KEY, replace(TERMS, precision="float32")).message for Z in (X, 3 * X + 11))
    close(a.X, b.X, 1e-6)
    assert {k: v for k, v in vars(a).items() if k not in "XYZ"} == {k: v for k, v in vars(b).items() if k not in "XYZ"}


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    sketch(data(), KEY, TERMS, work=Work(rows=100, progress=lambda done, total: seen.append((done, total))))
    assert seen == [(100, N), (200, N), (300, N), (400, N)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"m": N}, "must be below n"),
        ({"m": N + 5}, "must be below n"),
        ({"m": 1}, "2 rows or more"),
        ({"kind": "fourier"}, "not one of orthonormal, gaussian"),
    ],
)
def test_what_cannot_be_sketched_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sketch(data(), KEY, replace(TERMS, **change))


@pytest.mark.parametrize(("order", "words"), [([0, 0, 1], "twice"), ([0, N], "beyond the table"), ([0.5, 1.0], "row numbers")])
def test_an_order_that_is_none_is_refused(order: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sketch(data(), KEY, TERMS, order=order)


def test_an_unknown_word_for_the_columns_is_refused() -> None:
    with pytest.raises(InputError, match="not one of standardised, centred, plain"):
        sketch(data(), KEY, TERMS, columns="scaled")  # type: ignore[arg-type]


def test_mismatched_numbers_of_subjects_are_refused() -> None:
    phi = TERMS.design(KEY, N)
    with pytest.raises(InputError, match="more rows than the 400 subjects"):
        partial(Table.open(data(n=N + 1)), phi)
    with pytest.raises(InputError, match="399 places were given for 400 rows"):
        partial(Table.open(data()), phi, positions=np.arange(N - 1))
    with pytest.raises(InputError, match="same place"):
        partial(Table.open(data()), phi, positions=np.zeros(N, int))
    with pytest.raises(InputError, match="beyond the 400"):
        partial(Table.open(data()), phi, positions=np.arange(N) + 1)


def test_bounded_rows_and_noise_for_a_private_sketch() -> None:
    X = data()
    table = Table.open(X)
    bound = Bound.of(table, {"x01": 2.0}, dict.fromkeys(table.features, 10.0), 3.0)
    Z = X.copy()
    Z[:, 0] -= 2.0
    Z /= 10.0
    norms = np.linalg.norm(Z, axis=1)
    assert (norms > 3).any()
    Z *= np.minimum(1, 3 / norms)[:, None]
    plain = sketch(table, KEY, GAUSSIAN, private=ClippedNoise(bound, 0.0))
    close(plain.message.X, dense_phi(kind="gaussian") @ Z)
    np.testing.assert_array_equal(plain.units.x_scale, np.full(P, 10.0))
    w = 5.0
    noisy = [sketch(table, KEY, GAUSSIAN, private=ClippedNoise(bound, w)).message for _ in range(2)]
    added = noisy[0].X - plain.message.X
    assert noisy[0].noise == w
    assert abs(added.std() / (w / np.sqrt(N)) - 1) < 4 / np.sqrt(2 * added.size)
    assert not np.allclose(noisy[0].X, noisy[1].X)  # fresh each time, from no shared key
    with pytest.raises(InputError, match="gaussian sketch only"):
        sketch(table, KEY, TERMS, private=ClippedNoise(bound, w))


@pytest.mark.slow
def test_phi_is_orthonormal_at_full_size() -> None:
    from experiments.sketch import orthonormality

    identity, ones = orthonormality(SketchTerms("trial", "first", 500).design(KEY, 100_000))
    assert identity < 1e-10
    assert ones < 1e-10
