"""CSV files as institutions write them: comma, semicolon or tabulator, decimal point or comma, UTF-8 or Latin-1, plain or .gz.

What is not said is found out: separator and encoding from the first 64 kB, what each column is and the decimal sign from
all rows, never from the first few.
"""

import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from intarsia.errors import InputError
from intarsia.site.data.reading import Reading
from intarsia.site.data.sources import LEVEL, NUMBER, ArrowBatch, Batch

_HEAD_BYTES = 1 << 16
_SEPARATORS = ",;\t|"
_BOMS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_WIDTH = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")


class CsvSource:
    """A CSV file, plain or .gz, read in batches."""

    def __init__(self, path: Path, reading: Reading | None = None) -> None:
        self.path, self.reading = path, reading or Reading()
        head = _head(path)
        self.encoding = self.reading.encoding or _encoding(head)
        text = head.decode(self.encoding, "replace")
        self.separator = self.reading.separator or _separator(text)
        self.decimal = "."
        try:
            self._survey()
        except (UnicodeDecodeError, pa.ArrowInvalid) as error:
            if self.reading.encoding is not None or "UTF8" not in str(error):
                raise self._trouble(error) from None
            self.encoding = "latin-1"  # a letter that is not UTF-8 came after the head
            self._again()

    def _again(self) -> None:
        try:
            self._survey()
        except pa.ArrowInvalid as error:
            raise self._trouble(error) from None

    def _trouble(self, error: Exception) -> InputError:
        """The reader's complaint without its quotation of a row."""
        shown = {"\t": "a tabulator"}.get(self.separator, repr(self.separator))
        if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
            return InputError(
                f"{self.path} holds letters that are not {self.encoding}. Say which encoding it has, for example "
                "encoding = 'latin-1', or save it as UTF-8."
            )
        if width := _WIDTH.search(str(error)):
            where = f"row {width[1]}" if width[1] else "a row"
            return InputError(
                f"{self.path}: {where} has {width[3]} cells, the first has {width[2]}, with {shown} between cells. If that "
                "is not the separator, or the decimal sign is a comma, say separator = ';' and decimal = ','; else put quotes "
                "around texts that hold the separator."
            )
        return InputError(
            f"{self.path} cannot be read as CSV ({type(error).__name__}), with {shown} between cells and encoding "
            f"{self.encoding}. Say separator, decimal and encoding if these are wrong; else check that the file is whole."
        )

    def _survey(self) -> None:
        """One pass over the cells as text: rows, names, and what every column is."""
        self.n, first = 0, True
        sought = self.reading.decimal or ("." if self.separator == "," else None)  # None: whichever the cells have
        points: set[str] = set()
        commas: set[str] = set()
        truths: set[str] = set()
        self.names: list[str] = []
        words = pa.array(["true", "false"])
        for batch in self._read():
            if first:
                self.names, first = list(batch.schema.names), False
                if len(set(self.names)) != len(self.names):
                    raise InputError(f"{self.path}: two columns have the same name. Rename one.")
                points, truths = set(self.names), set(self.names)
                commas = set(self.names) if sought != "." else set()
            self.n += batch.num_rows
            for name in self.names:
                column = self._cells(batch.column(name), name)
                if name in points and not _is_number(column):
                    points.discard(name)
                if name in commas and not _is_number(_with_points(column)):
                    commas.discard(name)
                if name in truths and pc.all(pc.is_in(pc.utf8_lower(column.drop_null()), value_set=words)).as_py() is False:
                    truths.discard(name)
        if first:
            raise InputError(f"{self.path} has no rows.")
        self._decide(sought, points, commas)
        numbers = points if self.decimal == "." else commas
        self._truths = truths - numbers
        self.kinds = {name: NUMBER if name in numbers | truths else LEVEL for name in self.names}

    def _decide(self, sought: str | None, points: set[str], commas: set[str]) -> None:
        if sought is not None:
            self.decimal = sought
        else:
            only_commas, only_points = sorted(commas - points), sorted(points - commas)
            if only_commas and only_points:
                raise InputError(
                    f"{self.path}: column {only_commas[0]!r} has decimal commas and column {only_points[0]!r} decimal points. "
                    "Bring them to one sign, or say decimal = ',' or '.'; columns with the other sign are then texts."
                )
            self.decimal = "," if only_commas else "."

    def _cells(self, column: pa.Array, name: str) -> pa.Array:
        """Cells without white space around them; empty ones and the column's codes for "missing" as nulls."""
        column = pc.utf8_trim_whitespace(column)
        codes = pa.array(["", *self.reading.rules.codes(name)], pa.string())
        return pc.if_else(pc.is_in(column, value_set=codes), pa.scalar(None, pa.string()), column)

    def _read(
        self, types: dict[str, pa.DataType] | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        read = pacsv.ReadOptions(encoding=self.encoding)
        parse = pacsv.ParseOptions(delimiter=self.separator)
        if types is None:
            with pacsv.open_csv(self.path, read_options=read, parse_options=parse) as reader:
                types = {name: pa.string() for name in reader.schema.names}
        convert = pacsv.ConvertOptions(
            column_types=types, strings_can_be_null=True, decimal_point=self.decimal,
            include_columns=None if columns is None else list(columns),
        )  # fmt: skip
        with pacsv.open_csv(self.path, read_options=read, parse_options=parse, convert_options=convert) as reader:
            yield from reader

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        numbers = [name for name in columns if self.kinds[name] == NUMBER]
        # A text that means "missing" is no number to the reader: such columns are read as text and turned here.
        coded = [name for name in numbers if any(not _plain(code) for code in self.reading.rules.codes(name))]
        types = {name: pa.float64() if name in numbers else pa.string() for name in columns}
        types |= {name: pa.bool_() for name in numbers if name in self._truths}
        types |= {name: pa.string() for name in coded}
        for batch in self._read(types, columns):
            for name in coded:
                batch = batch.set_column(batch.schema.get_field_index(name), name, self._numbers(batch.column(name), name))
            for start in range(0, batch.num_rows, rows):
                yield ArrowBatch(batch.slice(start, rows))

    def _numbers(self, column: pa.Array, name: str) -> pa.Array:
        cells = self._cells(column, name)
        if name in self._truths:
            return pc.cast(pc.equal(pc.utf8_lower(cells), "true"), pa.float64())
        return pc.cast(_with_points(cells) if self.decimal == "," else cells, pa.float64())


def _head(path: Path) -> bytes:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    if path.suffix in (".bz2", ".zst"):
        with pa.input_stream(str(path), compression=path.suffix[1:].replace("zst", "zstd")) as stream:
            return bytes(stream.read(_HEAD_BYTES))
    with path.open("rb") as plain:
        return plain.read(_HEAD_BYTES)


def _encoding(head: bytes) -> str:
    for mark, name in _BOMS.items():
        if head.startswith(mark):
            return name
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # the head may end inside a letter
            return "latin-1"
    return "utf-8"


def _separator(text: str) -> str:
    """The candidate that stands in the header and equally often in the lines after it; quoted cells do not count."""
    lines = [re.sub(r'"[^"]*"', "", line) for line in text.splitlines()[:20] if line.strip()]
    if not lines:
        return ","
    lines = lines[:-1] if len(lines) > 2 else lines  # the last line may be cut off

    def rank(sign: str) -> tuple[int, int]:
        counts = [line.count(sign) for line in lines]
        return sum(count == counts[0] for count in counts) if counts[0] else 0, counts[0]

    best = max(_SEPARATORS, key=rank)
    return best if rank(best)[1] else ","


def _with_points(column: pa.Array) -> pa.Array:
    """Decimal commas as points; a cell that has a point already becomes one that is no number."""
    return pc.replace_substring(pc.replace_substring(column, ".", "point"), ",", ".")


def _is_number(column: pa.Array) -> bool:
    try:
        pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _plain(code: str) -> bool:
    """Whether a code is a number, which the reader takes as one; it is turned into "missing" later."""
    try:
        float(code)
    except ValueError:
        return False
    return True
