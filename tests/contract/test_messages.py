"""The Sketch message, and joining the sketches of several sites."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from intarsia.errors import MessageError
from intarsia.wire.container import unpack
from intarsia.wire.messages import Sketch, join

M, N = 6, 40


def site(name: str, features: tuple[str, ...] = (), responses: tuple[str, ...] = (), **change: object) -> Sketch:
    rng = np.random.default_rng(len(name))
    fields = {
        "site": name, "features": features, "responses": responses, "X": rng.standard_normal((M, len(features))),
        "Y": rng.standard_normal((M, len(responses))), "n": N, "m": M, "kind": "orthonormal", "precision": "float64",
        "study_hash": "ab" * 32, "key_fingerprint": "cd" * 16,
    }  # fmt: skip
    return Sketch(**{**fields, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_file_gives_the_sketch_back(tmp_path: Path, precision: str) -> None:
    sent = site("clinic", ("age", "größe"), ("y",), precision=precision, order_mac="12" * 32, noise=1.5)
    sent.save(tmp_path / "a.sketch")
    got = Sketch.load(tmp_path / "a.sketch")
    assert repr(got) == repr(sent)
    np.testing.assert_array_equal(got.X, sent.X)
    np.testing.assert_array_equal(got.Y, sent.Y)
    assert got.X.dtype == np.float64
    assert got.to_bytes() == sent.to_bytes()


def test_a_sketch_file_holds_exactly_these_fields() -> None:
    """Whoever adds a field sees this test: nothing about means, scales, ids, Φ or the key may be among them."""
    header, arrays = unpack(site("clinic", ("age",)).to_bytes(), "sketch")
    assert set(header) == {"schema", "site", "features", "responses", "covariates", "n", "m", "kind", "precision",
                           "study_hash", "key_fingerprint", "order_mac", "noise", "response_scales", "most_told"}  # fmt: skip
    assert header["response_scales"] == []  # only in a study that shares them
    assert header["most_told"] is None  # a number only where a feature has rare values
    assert set(arrays) == {"X", "Y", "Z"}


def test_sites_are_joined_side_by_side() -> None:
    a, b, c = site("a", ("x1", "x2")), site("bb", (), ("y1",)), site("ccc", ("x3",), ("y2", "y3"))
    joined = join([a, b, c])
    np.testing.assert_array_equal(joined.X, np.hstack([a.X, c.X]))
    np.testing.assert_array_equal(joined.Y, np.hstack([b.Y, c.Y]))
    assert joined.features == ("x1", "x2", "x3")
    assert joined.responses == ("y1", "y2", "y3")
    assert joined.feature_sites == ("a", "a", "ccc")
    assert joined.response_sites == ("bb", "ccc", "ccc")
    assert (joined.n, joined.m, joined.kind, joined.study_hash) == (N, M, "orthonormal", "ab" * 32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"study_hash": "ba" * 32}, "different studies"),
        ({"key_fingerprint": "dc" * 16}, "different keys"),
        ({"order_mac": "11" * 32}, "different cohorts"),
        ({"n": N + 1}, "different numbers of subjects"),
        ({"kind": "gaussian"}, "different kinds"),
        ({"precision": "float32"}, "different precisions"),
        ({"features": ("y",)}, "'y' comes from site 'a' and from site 'b'"),
        ({"features": ("x",)}, "'x' comes from site 'a' and from site 'b'"),
        ({"site": "a"}, "Two sketches come from site a"),
    ],
)
def test_sketches_that_do_not_belong_together_are_refused(change: dict[str, object], words: str) -> None:
    a, b = site("a", ("x",), ("y",)), site("b", ("z",))
    join([a, b])
    with pytest.raises(MessageError, match=words):
        join([a, replace(b, **change)])  # type: ignore[arg-type]


def test_different_m_is_refused() -> None:
    other = site("b", ("z",), X=np.ones((M + 1, 1)), Y=np.empty((M + 1, 0)), m=M + 1)
    with pytest.raises(MessageError, match="different numbers of rows"):
        join([site("a", ("x",), ("y",)), other])


def test_a_regression_needs_features_and_responses() -> None:
    for one, lacking in ((site("a", ("x",)), "response"), (site("a", (), ("y",)), "feature")):
        with pytest.raises(MessageError, match=f"No site brings a {lacking}"):
            join([one])
    with pytest.raises(MessageError, match="No sketch"):
        join([])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"site": "../../etc"}, "site of a sketch"),
        ({"site": "st.marys"}, "site of a sketch"),  # the rule of study.toml: no dot, at most 63
        ({"site": "a" * 64}, "site of a sketch"),
        ({"features": ("x", "x")}, "same label: x"),
        ({"responses": ("x",)}, "has two roles"),
        ({"features": (), "responses": ()}, "neither"),
        ({"features": ("x\n",)}, "printable"),
        ({"features": ("x" * 201,)}, "printable"),
        ({"features": "x"}, "list of text"),
        ({"m": 1}, "2 ≤ m < n"),
        ({"m": N}, "2 ≤ m < n"),
        ({"m": 6.0}, "2 ≤ m < n"),
        ({"kind": "none"}, "kind must be"),
        ({"study_hash": "xyz"}, "study hash"),
        ({"key_fingerprint": ""}, "key fingerprint"),
        ({"noise": -1.0}, "noise"),
        ({"X": np.ones((M, 2))}, "shape"),
        ({"X": np.ones((M, 1), int)}, "type"),
        ({"X": np.full((M, 1), np.nan)}, "not finite"),
        ({"X": np.full((M, 1), 1e300), "precision": "float32"}, "not finite in float32"),
    ],
)
def test_a_sketch_that_makes_no_sense_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(MessageError, match=words):
        replace(site("a", ("x",)), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "scales", [(1.0,), (1.0, 2.0, 3.0), (1.0, 0.0), (1.0, -2.0), (1.0, np.inf), (1.0, np.nan), (1, 2), 2.0, None]
)
def test_shared_scales_are_none_or_a_positive_number_per_response(scales: object) -> None:
    sent = site("a", (), ("y", "z"), response_scales=(0.5, 1e-3))
    assert sent.response_scales == (0.5, 1e-3)
    assert replace(sent, response_scales=()).response_scales == ()
    with pytest.raises(MessageError, match="none at all or 2 positive numbers"):
        replace(sent, response_scales=scales)  # type: ignore[arg-type]


def test_the_smallest_sketch_has_two_rows_of_three_subjects() -> None:
    assert site("a", ("x",), X=np.ones((2, 1)), Y=np.empty((2, 0)), m=2, n=3).m == 2


def test_values_cannot_be_changed_afterwards() -> None:
    sketch = site("a", ("x",))
    with pytest.raises(ValueError, match="read-only"):
        sketch.X[0, 0] = 1.0


def test_a_sketch_that_was_read_is_not_copied_and_one_that_is_made_keeps_numbers_of_its_own() -> None:
    own = np.ones((M, 1))
    sketch = site("a", ("x",), X=own)
    own[0, 0] = 5.0  # still the caller's to change
    assert sketch.X[0, 0] == 1.0
    # At a million features X has gigabytes: no second copy on the way from the file to the joined sketch.
    raw = sketch.to_bytes()
    read = Sketch.load(raw)
    assert np.shares_memory(read.X, np.frombuffer(raw, dtype=np.uint8))
    both = join([read, site("b", (), ("y",))])
    assert np.shares_memory(both.X, read.X)
    assert not both.X.flags.writeable
