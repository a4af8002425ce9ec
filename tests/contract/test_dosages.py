"""PGEN and BGEN files give what the .bed file of the same genotypes gives; dosages between whole copies keep their digits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.contract.test_genotypes import N, P, dosages, numbers, raw, write_plink

from intarsia.errors import InputError
from intarsia.site.data import dosages as module
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.sketch.sketch import SketchTerms, sketch

IDS = [f"s{i:03d}" for i in range(N)]
FILL = TableRules(missing="mean")


def write_pgen(folder: Path, X: np.ndarray) -> Path:
    """Hard calls where all are whole, else dosages; NaN is missing."""
    pgenlib = pytest.importorskip("pgenlib", reason="needs intarsia[pgen]")
    path, values = folder / "chr1.pgen", np.where(np.isnan(X), -9, X)
    whole = bool((values % 1 == 0).all())
    with pgenlib.PgenWriter(
        str(path).encode(), len(X), variant_ct=X.shape[1], nonref_flags=False, dosage_present=not whole
    ) as file:
        for column in values.T:
            if whole:
                file.append_biallelic(np.ascontiguousarray(column, dtype=np.int8))
            else:
                file.append_dosages(np.ascontiguousarray(column, dtype=np.float32))
    lines = "".join(f"1\t{1000 + j}\trs{j}\tG\tA\n" for j in range(X.shape[1]))
    path.with_suffix(".pvar").write_text("##source=a test\n#CHROM\tPOS\tID\tREF\tALT\n" + lines)
    path.with_suffix(".psam").write_text("#FID\tIID\tSEX\n" + "".join(f"fam\t{one}\tNA\n" for one in IDS[: len(X)]))
    return path


def write_bgen(folder: Path, X: np.ndarray, alleles: tuple[str, ...] = ("G", "A"), ids: bool = True) -> Path:
    """Probabilities of 0, 1 and 2 copies of the second allele, in 16 bits."""
    bgen = pytest.importorskip("bgen", reason="needs intarsia[bgen]")
    path = folder / "chr1.bgen"
    with bgen.BgenWriter(str(path), len(X), IDS[: len(X)] if ids else [], compression="zlib") as file:
        for j, column in enumerate(X.T):
            two = np.clip(column - 1, 0, 1)
            one = column - 2 * two
            shares = np.column_stack([1 - one - two, one, two])
            shares[np.isnan(column)] = np.nan
            if len(alleles) > 2:
                shares = np.tile(np.eye(6)[0], (len(X), 1))
            file.add_variant(f"v{j}", f"rs{j}", "1", 1000 + j, list(alleles), shares, bit_depth=16)
    return path


WRITERS = pytest.mark.parametrize("write", [write_pgen, write_bgen], ids=["pgen", "bgen"])
Write = Callable[..., Path]


@WRITERS
@pytest.mark.parametrize("rows", [1, 64, None])
def test_the_same_genotypes_give_the_same_numbers(
    tmp_path: Path, write: Write, rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HELD_VALUES", P * 50)  # 50 subjects in every stretch, the last of three
    G = dosages()
    table = Table.open(write(tmp_path, numbers(G)), id="iid", rules=FILL)
    assert table.ids().tolist() == IDS
    assert table.features == [f"rs{j}" for j in range(P)]
    np.testing.assert_allclose(raw(table, rows), numbers(G), atol=1e-6)
    few = Table.open(table.source.path, id="iid", features=["rs5", "rs30"], rules=FILL)
    np.testing.assert_allclose(raw(few, rows), numbers(G)[:, [5, 30]], atol=1e-6)


@WRITERS
def test_the_same_genotypes_give_the_sketch_of_the_bed_file(tmp_path: Path, write: Write) -> None:
    G, key, terms = dosages(), SketchKey(bytes(32)), SketchTerms("s", "1", 20)
    tables = [Table.open(path, id="iid", rules=FILL) for path in (write(tmp_path, numbers(G)), write_plink(tmp_path, G))]
    order = np.random.default_rng(1).permutation(N)[:150]
    got, expected = (sketch(table, key, terms, order=order).message.X for table in tables)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    counted = [table.imputed for table in tables]
    assert counted[0] == counted[1] != {}


@WRITERS
def test_dosages_between_whole_copies_are_kept(tmp_path: Path, write: Write) -> None:
    X = np.random.default_rng(3).uniform(0, 2, (N, 5))
    X[4, 2] = np.nan
    table = Table.open(write(tmp_path, X), id="iid", rules=FILL)
    np.testing.assert_allclose(raw(table), X, atol=2 / 2**14)
    assert table.imputed == {"rs2": 1}


def test_pgen_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    path = write_pgen(tmp_path, numbers(dosages()))
    psam, pvar = path.with_suffix(".psam"), path.with_suffix(".pvar")
    people, variants = psam.read_text(), pvar.read_text()
    for file, text, words in (
        (psam, people.rsplit("fam", 1)[0], "not a .pgen file of 202 subjects and 57 variants"),
        (psam, "IID\na\n", "the header is not one of PLINK 2"),
        (pvar, variants.replace("rs3\tG\tA", "rs3\tG\tA,T"), "1 variant of more or fewer than two alleles: rs3"),
        (pvar, variants.replace("rs3\tG\tA", "rs3"), r"line 6: 3 fields; 5 are needed"),
    ):
        psam.write_text(people)
        pvar.write_text(variants)
        file.write_text(text)
        with pytest.raises(InputError, match=words):
            Table.open(path, id="iid")
    psam.unlink()
    with pytest.raises(InputError, match=r"needs chr1\.psam beside it"):
        Table.open(path, id="iid")


def test_a_bgen_file_that_names_nobody_needs_its_sample_file(tmp_path: Path) -> None:
    G = dosages(missing=0)
    path = write_bgen(tmp_path, numbers(G), ids=False)
    with pytest.raises(InputError, match=r"203 subjects; 0 ids came with it. Put chr1\.sample beside it"):
        Table.open(path, id="iid")
    path.with_suffix(".sample").write_text("ID_1 ID_2 missing\n0 0 0\n" + "".join(f"fam {one} 0\n" for one in IDS))
    assert Table.open(path, id="iid").ids().tolist() == IDS
    path.with_suffix(".sample").write_text("ID missing\n0 0\n" + "".join(f"{one} 0\n" for one in IDS[1:]))
    with pytest.raises(InputError, match="202 ids came"):
        Table.open(path, id="iid")


def test_bgen_files_that_cannot_be_columns_are_refused(tmp_path: Path) -> None:
    path = write_bgen(tmp_path, numbers(dosages(missing=0))[:, :2], alleles=("G", "A", "T"))
    with pytest.raises(InputError, match="2 variants of more or fewer than two alleles: rs0, rs1"):
        Table.open(path, id="iid")
    path.write_bytes(b"no such thing")
    with pytest.raises(InputError, match="is no BGEN file"):
        Table.open(path, id="iid")
