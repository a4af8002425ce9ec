"""Imputed genotypes: PLINK 2 (.pgen with .pvar and .psam beside it) and BGEN (.bgen, with .sample where it names nobody).

A column is a variant, named by its id; its values are expected copies, 0 to 2, of the alternative allele: ALT of a .pvar file,
the second allele of a BGEN variant. PLINK 2 makes ALT of a .bed file's A1, so that the same genotypes give the same numbers.

Both formats lie variant by variant. Rows are cut from stretches of subjects that are held as float32; each stretch costs a
pass over the file.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from intarsia.errors import InputError
from intarsia.site.data.plink import ID, one_name_each
from intarsia.site.data.sources import LEVEL, NUMBER, Batch, to_text
from intarsia.wire.plain import plural, some

_HELD_VALUES = 1 << 26  # dosages held at once: 256 MB
_PGEN_MISSING = -9.0  # what pgenlib writes, in copies of an allele

Read = Callable[[int, np.ndarray], None]  # a variant's number, where its dosages go


class DosageBatch:
    """Some subjects' dosages, subjects in rows."""

    def __init__(self, dosage: np.ndarray, names: tuple[str, ...], ids: Sequence[str]) -> None:
        self.dosage, self.names, self.ids, self.rows = dosage, names, ids, len(ids)

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        if tuple(names) == self.names:
            return self.dosage.astype(np.float64)
        index = {name: j for j, name in enumerate(self.names)}
        return self.dosage[:, [index[name] for name in names]].astype(np.float64)

    def text(self, name: str) -> pa.Array:
        if name == ID:
            return pa.array(self.ids, pa.string())
        return to_text(pa.array(self.matrix([name])[:, 0]))


class DosageSource:
    """What both formats have in common; a format names its variants and subjects and opens a reader of single variants."""

    def __init__(self, path: Path, variants: list[str], ids: list[str]) -> None:
        self.path, self.variants, self.ids, self.n = path, variants, ids, len(ids)
        if ID in variants:
            raise InputError(f"{path}: a variant is called {ID!r}, which is the name of the id column. Rename it.")
        self.names = [ID, *variants]
        self.kinds = {ID: LEVEL, **dict.fromkeys(variants, NUMBER)}
        self._index = {name: j for j, name in enumerate(variants)}

    @contextmanager
    def _opened(self) -> Iterator[Read]:
        raise NotImplementedError
        yield

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        wanted = tuple(name for name in columns if name != ID)
        at = [self._index[name] for name in wanted]
        stretch = min(max(_HELD_VALUES // max(len(at), 1), 1), self.n)
        for start in range(0, self.n, stretch):
            stop = min(start + stretch, self.n)
            held = self._held(at, start, stop)
            for a in range(start, stop, rows):
                b = min(a + rows, stop)
                yield DosageBatch(np.ascontiguousarray(held[:, a - start : b - start].T), wanted, self.ids[a:b])

    def _held(self, variants: Sequence[int], start: int, stop: int) -> np.ndarray:
        """These variants of these subjects, variants in rows, missing as NaN."""
        held, one = np.empty((len(variants), stop - start), np.float32), np.empty(self.n, np.float32)
        if not variants:
            return held
        with self._opened() as read:
            for j, variant in enumerate(variants):
                read(variant, one)
                held[j] = one[start:stop]
        return held


class PgenSource(DosageSource):
    """A .pgen file and the two text files beside it."""

    def __init__(self, path: Path) -> None:
        pvar = next((p for p in (path.with_suffix(".pvar"), path.with_suffix(".pvar.zst")) if p.exists()), None)
        psam = path.with_suffix(".psam")
        if pvar is None or not psam.exists():
            missing = psam.name if pvar is not None else f"{path.stem}.pvar (or .pvar.zst)"
            raise InputError(f"{path} needs {missing} beside it: PLINK 2 writes three files.")
        names, alternatives = _columns(pvar, "#CHROM", ("ID", "ALT"))
        several = [name for name, alt in zip(names, alternatives) if "," in alt]
        if several:
            raise InputError(_several_alleles(pvar, several, "plink2 --pfile … --max-alleles 2 --make-pgen"))
        super().__init__(path, names, _subjects(psam))
        with self._opened():  # finds files that do not belong together
            pass

    @contextmanager
    def _opened(self) -> Iterator[Read]:
        try:
            from pgenlib import PgenReader
        except ImportError:
            raise InputError("Reading .pgen needs its package: pip install 'intarsia[pgen]'.") from None
        try:
            reader = PgenReader(str(self.path).encode(), raw_sample_ct=self.n, variant_ct=len(self.variants))
        except RuntimeError:
            raise InputError(
                f"{self.path} is not a .pgen file of {plural(self.n, 'subject')} and {plural(len(self.variants), 'variant')}, "
                "which the files beside it name. They do not belong together, or one was cut off."
            ) from None

        def read(variant: int, out: np.ndarray) -> None:
            try:
                reader.read_dosages(variant, out)
            except RuntimeError:
                raise InputError(_damaged(self.path, variant)) from None
            out[out == _PGEN_MISSING] = np.nan

        with reader:
            yield read


class BgenSource(DosageSource):
    """A .bgen file; who its subjects are stands in it, or in a .sample file beside it."""

    def __init__(self, path: Path) -> None:
        with _bgen(path) as file:
            found = [(variant.rsid, variant.varid, len(variant.alleles)) for variant in file]
            inside, count = file.header.has_sample_ids, file.header.nsamples
            ids = list(file.samples) if inside else []
        rsids, others = [rsid for rsid, _, _ in found], [varid for _, varid, _ in found]
        names = rsids if len(set(rsids)) == len(rsids) and all(rsids) else others
        if several := [name for name, (_, _, alleles) in zip(names, found) if alleles != 2]:
            raise InputError(_several_alleles(path, several, "qctool or plink2 --max-alleles 2"))
        sample = path.with_suffix(".sample")
        if sample.exists():
            ids = _subjects(sample)
        if len(ids) != count:
            raise InputError(
                f"{path} has {plural(count, 'subject')}; {plural(len(ids), 'id')} came with it. Put {sample.name} beside "
                "it, with one line per subject after its two header lines."
            )
        super().__init__(path, names, ids)

    @contextmanager
    def _opened(self) -> Iterator[Read]:
        with _bgen(self.path) as file:

            def read(variant: int, out: np.ndarray) -> None:
                try:
                    out[:] = file[variant].alt_dosage
                except (ValueError, RuntimeError):
                    raise InputError(_damaged(self.path, variant)) from None

            yield read


@contextmanager
def _bgen(path: Path) -> Iterator[Any]:
    try:
        from bgen import BgenReader
    except ImportError:
        raise InputError("Reading .bgen needs its package: pip install 'intarsia[bgen]'.") from None
    try:
        file = BgenReader(str(path), delay_parsing=True)
    except (ValueError, RuntimeError):
        raise InputError(f"{path} is no BGEN file, or is cut off. Make one with: plink2 --export bgen-1.2") from None
    with file:
        yield file


def _damaged(path: Path, variant: int) -> str:
    return f"{path}: variant {variant + 1} cannot be read as dosages of one allele in two copies. Check that the file is whole."


def _several_alleles(path: Path, names: Sequence[str], remedy: str) -> str:
    return (
        f"{path} has {plural(len(names), 'variant')} of more or fewer than two alleles: {some(names)}. A column is the dosage of "
        f"one allele. Keep variants of two alleles: {remedy}"
    )


def _lines(path: Path) -> Iterator[str]:
    compressed = "zstd" if path.suffix == ".zst" else None
    with pa.input_stream(str(path), compression=compressed) as stream:
        left = b""
        while piece := stream.read(1 << 20):
            *lines, left = (left + piece).split(b"\n")
            yield from (line.decode().rstrip("\r") for line in lines)
        if left:
            yield left.decode()


def _columns(path: Path, first: str, wanted: Sequence[str]) -> list[list[str]]:
    """Columns of a .pvar or .psam file, named by its line that begins with `first`."""
    at: list[int] = []
    out: list[list[str]] = [[] for _ in wanted]
    for number, line in enumerate(_lines(path), 1):
        parts = line.split()
        if line.startswith("##") or not parts:
            continue
        if not at:
            if parts[0] != first or not set(wanted) <= set(parts):
                raise InputError(f"{path}, line {number}: the header is not one of PLINK 2 with {' and '.join(wanted)}.")
            at = [parts.index(name) for name in wanted]
            continue
        if len(parts) <= max(at):
            raise InputError(f"{path}, line {number}: {len(parts)} fields; {max(at) + 1} are needed.")
        for values, place in zip(out, at):
            values.append(parts[place])
    if not out[0]:
        raise InputError(f"{path} is empty.")
    return out


def _subjects(path: Path) -> list[str]:
    """Who the rows are: a .psam file, or a .sample file with its two header lines."""
    if path.suffix == ".psam":
        head = next(_lines(path), "").split()
        if head[:1] == ["#IID"]:
            return one_name_each(None, _columns(path, "#IID", ("#IID",))[0])
        return one_name_each(*_columns(path, "#FID", ("#FID", "IID")))
    lines = [line.split() for line in _lines(path) if line.strip()]
    if len(lines) < 3 or lines[1][0] != "0":
        raise InputError(f"{path} is no .sample file: after a line of names and a line of types comes one line per subject.")
    if any(len(line) != len(lines[0]) for line in lines):
        raise InputError(f"{path}: its lines do not have equally many fields.")
    both = lines[0][:2] == ["ID_1", "ID_2"]
    first, second = [line[0] for line in lines[2:]], [line[1 if both else 0] for line in lines[2:]]
    return one_name_each(first if both else None, second)
