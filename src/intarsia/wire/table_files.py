"""A table of results as a file: CSV, tab-separated, JSON lines, Excel, LaTeX or Markdown, by the file's suffix.

Texts may come from other parties: no cell can become a formula, a command of the terminal or a mark-up of its own.
"""

import csv
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from intarsia.errors import InputError
from intarsia.wire.container import write
from intarsia.wire.page_table import Page, for_page, is_of_results
from intarsia.wire.plain import cells, one_line, probability

Rows = Sequence[Mapping[str, Any]]
_DIGITS = 4  # significant, in LaTeX and Markdown; the other kinds keep all
_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "<": "$<$", ">": "$>$", "≤": r"$\le$", "≥": r"$\ge$",
    "²": "$^2$", "³": "$^3$", "µ": r"$\mu$", "μ": r"$\mu$", "°": r"$^\circ$", "·": r"$\cdot$", "±": r"$\pm$",
}  # fmt: skip
# What is mark-up of Markdown within a cell; an underscore is at the edge of a word. What HTML has is escaped as such.
_MARKS = re.compile(r"[\\`*\[\]~|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ROWS_IN_EXCEL = 1_048_576
_PROBABILITIES = frozenset(("pip", "lfsr", "local_fdr", "coverage", "PIP", "Sign rate", "Coverage"))
_SAID_ONCE = frozenset(("role", "selected"))  # left out of a page where every row has the same
# What a table for a page leaves out of the results, beside columns that are empty in every row; the other kinds have all.
_NOT_PRINTED = frozenset((
    "interval", "standardised", "unshrunk", "unshrunk_lower", "unshrunk_upper", "local_fdr", "purity", "or_is", "ratio",
    "ratio_lower", "ratio_upper", "ratio_is",
))  # fmt: skip


def write_table(
    path: str | os.PathLike[str], rows: Rows, columns: Sequence[str] = ("feature",), page: Page | None = None
) -> None:
    """Write the rows; `columns` are the headings of a table without rows. An unknown suffix is refused, never guessed.

    `page` has what a table of results on a page adds (.tex, .md): caption, label, names of columns.
    """
    path = Path(path)
    maker = _KINDS.get(path.suffix.lower())
    if maker is None:
        raise InputError(
            f"{path.name}: a table is not written as {path.suffix or 'a file without suffix'!r}. Use {', '.join(_KINDS)}."
        )
    names = list(rows[0]) if rows else list(columns)
    if maker in (_tex, _markdown):
        names = [name for name in names if not rows or _worth_printing(name, [row.get(name) for row in rows])]
        if is_of_results(rows):
            keep = set(names) | {"effect", "lower", "upper", "interval", "odds_ratio", "or_lower", "or_upper"}
            rows = for_page([{name: value for name, value in row.items() if name in keep} for row in rows], page or Page())
            names = [name for name in rows[0] if any(_short(row.get(name)) for row in rows)]
    made = maker(names, rows)
    if maker is _tex and page is not None and page.caption:
        made = _floating(made, page)
    write(path, made)


def _worth_printing(name: str, values: Sequence[Any]) -> bool:
    """Not what only a program reads, nor an empty column, nor one in which every row says the same of itself."""
    if name in _NOT_PRINTED or not any(map(_short, values)):
        return False
    return name not in _SAID_ONCE or len(values) == 1 or len(set(values)) > 1


def _csv(names: Sequence[str], rows: Rows, delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(cells(dict.fromkeys(names)))
    writer.writerows(cells(dict.fromkeys(names) | dict(row)).values() for row in rows)
    return text.getvalue().encode()


def _tsv(names: Sequence[str], rows: Rows) -> bytes:
    return _csv(names, rows, "\t")


def _jsonl(names: Sequence[str], rows: Rows) -> bytes:
    return "".join(json.dumps(dict(row), default=str) + "\n" for row in rows).encode()


def _short(value: Any, name: str = "") -> str:
    if name in _PROBABILITIES and isinstance(value, float):
        return probability(value)
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else one_line(str(value))


def _tex(names: Sequence[str], rows: Rows) -> bytes:
    def line(values: Sequence[Any]) -> str:
        texts = (_short(value, name) for value, name in zip(values, names, strict=True))
        text = " & ".join("".join(_TEX.get(c, c) for c in text) for text in texts) + r" \\"
        # The \\ of the line before would take a bracket or a star for its argument.
        return f"{{}}{text}" if text.startswith(("[", "*")) else text

    numbers = [bool(rows) and all(_is_number(row.get(name)) for row in rows) for name in names]
    layout = "".join("r" if number else "l" for number in numbers)
    body = [line([row.get(name) for name in names]) for row in rows]
    # booktabs' rules: \usepackage{booktabs}
    lines = [
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        line(names),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ]
    return "\n".join(lines).encode()


def _floating(tabular: bytes, page: Page) -> bytes:
    """The table with its caption, and a label that the text refers to."""
    words = "".join(_TEX.get(c, c) for c in one_line(page.caption))
    label = re.sub(r"[^A-Za-z0-9:.-]", "-", page.label)
    head = "\n".join([r"\begin{table}", r"\centering", rf"\caption{{{words}}}", rf"\label{{{label}}}", ""])
    return head.encode() + tabular + b"\\end{table}\n"


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, float | int | None)


def _markdown(names: Sequence[str], rows: Rows) -> bytes:
    def line(values: Sequence[Any]) -> str:
        texts = (_short(value, name) for value, name in zip(values, names, strict=True))
        return "| " + " | ".join(_MARKS.sub(r"\\\g<0>", escape(text)) for text in texts) + " |"

    lines = [line(names), "|" + "---|" * len(names), *(line([row.get(name) for name in names]) for row in rows), ""]
    return "\n".join(lines).encode()


def _excel(names: Sequence[str], rows: Rows) -> bytes:
    """The least a spreadsheet opens: one sheet, numbers as numbers, everything else as text (which is never a formula)."""
    if len(rows) >= _ROWS_IN_EXCEL:
        raise InputError(f"{len(rows):,} rows: an Excel sheet has {_ROWS_IN_EXCEL:,} at most. Use .csv.")

    def cell(value: Any) -> str:
        if value is None or value != value:
            return "<c/>"
        if isinstance(value, bool):
            return f'<c t="b"><v>{int(value)}</v></c>'
        if isinstance(value, float | int):
            return f"<c><v>{value!r}</v></c>" if abs(value) < 1e308 else "<c/>"
        return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(one_line(str(value)))}</t></is></c>'

    sheet = io.StringIO()
    sheet.write('<?xml version="1.0" encoding="UTF-8"?><worksheet xmlns="' + _MAIN + '"><sheetData>')
    lines: list[list[Any]] = [list(names)]
    lines += [[row.get(name) for name in names] for row in rows]
    for values in lines:
        sheet.write("<row>" + "".join(cell(value) for value in values) + "</row>")
    sheet.write("</sheetData></worksheet>")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**_PARTS, "xl/worksheets/sheet1.xml": sheet.getvalue()}.items():
            # A fixed date: the same table gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_OPEN = "http://schemas.openxmlformats.org"
_MAIN = f"{_OPEN}/spreadsheetml/2006/main"
_LINKS = f"{_OPEN}/package/2006/relationships"
_OFFICE = f"{_OPEN}/officeDocument/2006/relationships"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_PARTS = {
    "[Content_Types].xml": f'{_XML}<Types xmlns="{_OPEN}/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPE}.worksheet+xml"/></Types>',
    "_rels/.rels": f'{_XML}<Relationships xmlns="{_LINKS}">'
    f'<Relationship Id="r1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'{_XML}<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}">'
    '<sheets><sheet name="results" sheetId="1" r:id="r1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'{_XML}<Relationships xmlns="{_LINKS}">'
    f'<Relationship Id="r1" Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}
_KINDS: dict[str, Callable[[Sequence[str], Rows], bytes]] = {
    ".csv": _csv, ".tsv": _tsv, ".jsonl": _jsonl, ".xlsx": _excel, ".tex": _tex, ".md": _markdown,
}  # fmt: skip
