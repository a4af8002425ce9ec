"""The secret stream: the same bits for ever, any column on its own, and the law N(0,1)."""

import hashlib
import importlib
import os
import struct
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri

from intarsia.site.sketch import stream, stream_compiled
from intarsia.site.sketch.stream import CHUNK, gaussian_at, gaussian_columns, gaussianise, stride

SUBKEY = bytes(range(32))
# Changing any of these changes Φ: sites with different versions would no longer have the same sketch.
GOLDEN = {
    (0, 0): "-0x1.ba9179f2f6466p-3",
    (4, 0): "0x1.be41fc817ab50p-2",
    (0, 1): "0x1.d2a0ac9a2364bp-1",
    (2, 4095): "-0x1.36cc0c6f0b1a6p-4",
    (2, 4096): "0x1.759677aa2be83p+0",
    (3, 1000000000): "0x1.cc85426e7b9d4p+0",
}
GOLDEN_BLOCK = "ae285ed9191716999f686a4f69693c3eff56d0aa1ee4a2643441920303356ede"
GOLDEN_TAILS = "2cb56ef453316471fe1c316cbbeb70cdbde9723b5d0ed7d39118d760addacd93"


def tail_words() -> np.ndarray:
    """Words over all of (0, 1), most of them far out in both tails. By integers: NumPy's powers differ between processors."""
    k = [*range(2000), *((1 << bits) + (i << bits) // 385 for bits in range(52) for i in range(385))]
    low = np.array(k, dtype=np.uint64) << np.uint64(12)
    return np.concatenate([low, ~low])


def turned(words: np.ndarray) -> np.ndarray:
    out = np.empty(len(words))
    gaussianise(words, out)
    return out


def chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3, in plain Python."""
    constants, words = struct.unpack("<4I", b"expand 32-byte k"), struct.unpack("<8I", key)
    state = [*constants, *words, counter, *struct.unpack("<3I", nonce)]
    work = list(state)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            work[x] = (work[x] + work[y]) & 0xFFFFFFFF
            value = work[z] ^ work[x]
            work[z] = ((value << turn) | (value >> (32 - turn))) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, i + 4, i + 8, i + 12)
        for i in range(4):
            quarter(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(work, state)))


def test_golden_values_are_the_same_to_the_last_bit() -> None:
    for (row, column), value in GOLDEN.items():
        assert gaussian_columns(SUBKEY, 5, column, column + 1)[row, 0].hex() == value
    block = gaussian_columns(SUBKEY, 11, CHUNK - 30, CHUNK + 30)
    assert hashlib.sha256(np.ascontiguousarray(block, "<f8").tobytes()).hexdigest() == GOLDEN_BLOCK
    assert hashlib.sha256(turned(tail_words()).astype("<f8").tobytes()).hexdigest() == GOLDEN_TAILS


def test_golden_values_do_not_depend_on_the_processors_vector_units() -> None:
    """The same hash with NumPy's plain loops as with those for AVX2 and AVX-512."""
    program = (
        "import hashlib, numpy as np\n"
        "from intarsia.site.sketch.stream import CHUNK, gaussian_columns\n"
        "block = gaussian_columns(bytes(range(32)), 11, CHUNK - 30, CHUNK + 30)\n"
        "print(hashlib.sha256(np.ascontiguousarray(block, '<f8').tobytes()).hexdigest())"
    )
    core = importlib.import_module("numpy._core._multiarray_umath" if np.lib.NumpyVersion(np.__version__) >= "2.0.0"
                                   else "numpy.core._multiarray_umath")  # fmt: skip
    able = [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]]
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(able)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == GOLDEN_BLOCK


@pytest.mark.parametrize("column", [0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 7])
@pytest.mark.parametrize("m", [3, 8, 13])
def test_a_column_is_the_ciphers_words_by_an_independent_cipher(column: int, m: int) -> None:
    blocks = stride(m) // 8
    chunk, place = divmod(column, CHUNK)
    raw = b"".join(chacha_block(SUBKEY, place * blocks + b, chunk.to_bytes(12, "little")) for b in range(blocks))
    k = np.frombuffer(raw, "<u8")[:m] >> np.uint64(12)
    expected = ndtri((k.astype(float) + 0.5) * 2.0**-52)
    np.testing.assert_allclose(gaussian_columns(SUBKEY, m, column, column + 1)[:, 0], expected, rtol=1e-14)


def test_the_transform_is_the_inverse_normal_over_the_whole_range() -> None:
    words = np.concatenate([tail_words(), np.random.default_rng(1).integers(0, 2**64, 200_000, np.uint64)])
    u = ((words >> np.uint64(12)).astype(float) + 0.5) * 2.0**-52
    np.testing.assert_allclose(turned(words), ndtri(u), rtol=3e-15, atol=4e-15)


def words_everywhere() -> np.ndarray:
    """Words over the whole range, thick in the far tails, and the edges of every branch."""
    rng = np.random.default_rng(3)
    words = rng.integers(0, 2**64, 300_000, dtype=np.uint64)
    words[:60_000] >>= rng.integers(0, 52, 60_000, dtype=np.uint64)
    words[60_000:120_000] = ~words[:60_000]
    powers = [2**k + d for k in range(12, 64) for d in (-4096, -1, 0, 4096)]
    centre = [int((0.5 + s * 0.425) * 2**64) + d for s in (-1, 1) for d in range(-80_000, 80_000, 4096)]
    edges = np.array([0, 1, 4095, 2**63 - 1, 2**63, 2**64 - 1, *powers, *centre], dtype=np.uint64)
    return np.concatenate([edges, words])


def test_the_compiled_transform_gives_the_same_bits() -> None:
    compiled = stream_compiled.gaussianise
    words = words_everywhere()
    wanted, found = np.empty(words.size), np.empty(words.size)
    gaussianise(words, wanted)
    compiled(words, found)
    np.testing.assert_array_equal(wanted.view(np.int64), found.view(np.int64))
    assert np.abs(wanted).max() > 8
    compiled(words, words.view(np.float64))  # in place
    np.testing.assert_array_equal(wanted.view(np.int64), words.view(np.int64))


def test_large_pieces_are_made_by_the_compiled_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = stream_compiled.gaussianise
    assert stream._compiled() is compiled
    large = gaussian_columns(SUBKEY, 700, 5, 105)
    monkeypatch.setattr(stream, "_compiled", lambda: gaussianise)
    np.testing.assert_array_equal(large, gaussian_columns(SUBKEY, 700, 5, 105))


def test_the_transform_is_odd_and_finite() -> None:
    words = tail_words()
    np.testing.assert_array_equal(turned(words), -turned(~words))
    assert np.abs(turned(words)).max() == pytest.approx(8.2095361516)


@given(st.lists(st.integers(0, 3 * CHUNK), min_size=1, max_size=40), st.integers(1, 20))
def test_any_columns_in_any_order_are_those_of_the_whole(positions: list[int], m: int) -> None:
    found = gaussian_at(SUBKEY, m, np.array(positions))
    assert found.shape == (m, len(positions))
    for i, column in enumerate(positions):
        np.testing.assert_array_equal(found[:, i], gaussian_columns(SUBKEY, m, column, column + 1)[:, 0])


def test_blocks_join_to_the_whole() -> None:
    whole = gaussian_columns(SUBKEY, 9, 0, 2 * CHUNK + 100)
    edges = [0, 1, 500, CHUNK - 1, CHUNK + 3, 2 * CHUNK, 2 * CHUNK + 100]
    parts = [gaussian_columns(SUBKEY, 9, a, b) for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.hstack(parts), whole)


def test_the_law() -> None:
    """Moments, Kolmogorov–Smirnov and tails of 2.4 million entries; each bound fails by chance once in 10⁴ or less."""
    G = gaussian_columns(SUBKEY, 300, 0, 8000)
    N = G.size
    flat = G.ravel()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((flat**power).mean() - mean) < 4 * np.sqrt(variance / N)
    assert stats.kstest(flat, "norm").pvalue > 1e-4
    for cut in (2.0, 3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(cut) * N
        assert abs((np.abs(flat) > cut).sum() - expected) < 4 * np.sqrt(expected) + 1


def test_columns_rows_blocks_and_keys_are_independent() -> None:
    m, c = 100, 4000
    G = gaussian_columns(SUBKEY, m, 0, c)
    others = {
        "next column": gaussian_columns(SUBKEY, m, 1, c + 1),
        "next nonce": gaussian_columns(SUBKEY, m, CHUNK, CHUNK + c),
        "next row": np.roll(G, 1, axis=0),
        "other key": gaussian_columns(bytes([1, *range(1, 32)]), m, 0, c),
    }
    for name, other in others.items():
        for f in (lambda z: z, np.abs, np.square):
            r = np.corrcoef(f(G).ravel(), f(other).ravel())[0, 1]
            assert abs(r) < 4 / np.sqrt(G.size), name
    # The largest of 4,950 correlations between rows is that of independent rows.
    between = np.corrcoef(G)[np.triu_indices(m, 1)]
    assert abs(between.std() * np.sqrt(c) - 1) < 0.05
    assert np.abs(between).max() < 5.5 / np.sqrt(c)


def test_negative_positions_and_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="position"):
        gaussian_at(SUBKEY, 3, np.array([1, -1]))
    with pytest.raises(ValueError, match="m must be"):
        gaussian_columns(SUBKEY, 0, 0, 3)
