"""Genotypes from PLINK files and matrices in zarr and HDF5 give what the same numbers in memory give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.site.data.plink import PlinkSource
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.sketch.sketch import SketchTerms, sketch

N, P = 203, 57  # 203 subjects: the last byte of a variant holds three
CODE = {2: 0b00, -1: 0b01, 1: 0b10, 0: 0b11}


def dosages(missing: float = 0.03) -> np.ndarray:
    rng = np.random.default_rng(0)
    out = rng.binomial(2, rng.uniform(0.1, 0.5, P), (N, P))
    out[rng.random((N, P)) < missing] = -1
    return out


def write_plink(folder: Path, G: np.ndarray) -> Path:
    """As the format's description has it: per variant, four subjects per byte, the first in the lowest bits."""
    path = folder / "chr1.bed"
    body = bytearray(b"\x6c\x1b\x01")
    for j in range(G.shape[1]):
        for a in range(0, G.shape[0], 4):
            byte = 0
            for place, value in enumerate(G[a : a + 4, j]):
                byte |= CODE[int(value)] << (2 * place)
            body.append(byte)
    path.write_bytes(bytes(body))
    path.with_suffix(".bim").write_text("".join(f"1 rs{j} 0 {1000 + j} A G\n" for j in range(G.shape[1])))
    path.with_suffix(".fam").write_text("".join(f"fam s{i:03d} 0 0 0 -9\n" for i in range(G.shape[0])))
    return path


def numbers(G: np.ndarray) -> np.ndarray:
    return np.where(G < 0, np.nan, G.astype(float))


def raw(table: Table, rows: int | None = None) -> np.ndarray:
    return np.vstack(list(table.raw_blocks(rows)))


@pytest.mark.parametrize("rows", [1, 7, 64, None])
def test_plink_gives_the_dosages(tmp_path: Path, rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.site.data.plink._PACKED_BYTES", P * 13)  # 13 bytes, 52 subjects, in every stretch
    G = dosages()
    table = Table.open(write_plink(tmp_path, G), id="iid", rules=TableRules(missing="mean"))
    assert (table.n, table.features[:2]) == (N, ["rs0", "rs1"])
    assert table.ids().tolist() == [f"s{i:03d}" for i in range(N)]
    np.testing.assert_array_equal(raw(table, rows), numbers(G))
    some = Table.open(tmp_path / "chr1.bed", id="iid", features=["rs5", "rs30"], rules=TableRules(missing="mean"))
    np.testing.assert_array_equal(raw(some, rows), numbers(G)[:, [5, 30]])


def test_genotypes_stay_bytes_until_they_are_sketched(tmp_path: Path) -> None:
    G = dosages()
    table = Table.open(write_plink(tmp_path, G), id="iid", rules=TableRules(missing="mean"))
    assert {block.dtype for block in table.sketch_blocks(50)} == {np.dtype(np.uint8)}
    key, terms = SketchKey(bytes(32)), SketchTerms("s", "1", 20)
    plain = Table.open(numbers(G), rules=TableRules(names=[f"rs{j}" for j in range(P)], missing="mean"))
    for order in (None, np.random.default_rng(1).permutation(N)[:150]):
        got, expected = (sketch(t, key, terms, order=order).message.X for t in (table, plain))
        np.testing.assert_allclose(got, expected, atol=1e-10)
    with pytest.raises(InputError, match=r"Missing values in \d+ columns: rs0 \(\d+\)"):
        sketch(Table.open(tmp_path / "chr1.bed", id="iid"), key, terms)
    assert table.imputed == {f"rs{j}": int((G[:, j] < 0).sum()) for j in range(P) if (G[:, j] < 0).any()}


def test_genotypes_of_people_who_withdrew_are_not_read(tmp_path: Path) -> None:
    G = dosages()
    table = Table.open(write_plink(tmp_path, G), id="iid", rules=TableRules(missing="mean", without={"s2", "s57"}))
    stay = np.delete(np.arange(N), [2, 57])
    assert table.packed
    np.testing.assert_array_equal(raw(table, 11), numbers(G[stay]))
    plain = Table.open(numbers(G[stay]), rules=TableRules(names=[f"rs{j}" for j in range(P)], missing="mean"))
    key, terms = SketchKey(bytes(32)), SketchTerms("s", "1", 20)
    np.testing.assert_allclose(sketch(table, key, terms).message.X, sketch(plain, key, terms).message.X, atol=1e-10)


def test_broken_plink_files_are_refused(tmp_path: Path) -> None:
    path = write_plink(tmp_path, dosages())
    whole = path.read_bytes()
    for content, words in (
        (whole[:-1], "The three files do not belong together"),
        (b"\x6c\x1b\x00" + whole[3:], "not a PLINK 1"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            PlinkSource(path)
    path.write_bytes(whole)
    path.with_suffix(".fam").write_text("fam s1 0 0 0\n")
    with pytest.raises(InputError, match="line 1: 5 fields"):
        PlinkSource(path)
    path.with_suffix(".bim").unlink()
    with pytest.raises(InputError, match=r"needs chr1\.bim beside it"):
        PlinkSource(path)


def write_zarr(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed: pip install 'intarsia[zarr]'")
    root = zarr.open_group(str(path), mode="w")
    for name, values in arrays.items():
        chunks = {"chunks": (16, values.shape[1])} if values.ndim == 2 else {}
        root.create_array(name, data=values, **chunks)
    return path


def write_hdf5(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=[str(v) for v in values] if values.dtype.kind == "U" else values)
    return path


@pytest.mark.filterwarnings("ignore:The data type")  # texts in zarr 3 have no final form yet
@pytest.mark.parametrize("kind", ["zarr", "h5"])
def test_a_matrix_with_its_lists_is_a_table(tmp_path: Path, kind: str) -> None:
    G = dosages().astype(np.int8)
    arrays: dict[str, np.ndarray] = {
        "dosage": G, "variant": np.array([f"rs{j}" for j in range(P)]), "sample": np.array([f"s{i}" for i in range(N)]),
        "trait": np.random.default_rng(2).normal(size=N),
    }  # fmt: skip
    path = (write_zarr if kind == "zarr" else write_hdf5)(tmp_path / f"t.{kind}", arrays)
    table = Table.open(path, id="sample", responses="trait", rules=TableRules(missing="mean", missing_codes=[-1]))
    assert table.features == [f"rs{j}" for j in range(P)]
    assert table.ids().tolist() == [f"s{i}" for i in range(N)]
    np.testing.assert_array_equal(raw(table, 10), np.column_stack([numbers(dosages()), arrays["trait"]]))
    np.testing.assert_array_equal(raw(table, 40), raw(table, None))
    with pytest.raises(InputError, match=r"'trait' is no list of 57 texts"):
        Table.open(path, id="sample", rules=TableRules(reading={"names": "trait"}))
    with pytest.raises(InputError, match=r"say which matrix .* There: dosage"):
        Table.open(path, id="sample", rules=TableRules(reading={"dataset": "gt"}))


def test_names_are_numbered_where_the_file_has_none(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "t.hdf5", {"x": np.eye(12, 3)})
    table: Any = Table.open(path)
    assert table.features == ["x1", "x2", "x3"]
