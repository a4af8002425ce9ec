"""Text of other parties on a person's screen and in a person's spreadsheet."""

import argparse
import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federation import frames, sites, study

from intarsia.cli import main
from intarsia.cli.show import emit, fitted, table
from intarsia.cli.study import explain
from intarsia.errors import IntarsiaError
from intarsia.wire.plain import cell, one_line, printable
from intarsia.wire.study import Study
from intarsia.wire.table_files import write_table

EVIL = "fine\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\u2028\r\x00"


@given(st.text())
def test_nothing_active_is_left(text: str) -> None:
    for shown in (printable(text).replace("\n", ""), one_line(text)):
        assert shown.isprintable() or all(c.isspace() or c.isprintable() for c in shown)
        assert not [c for c in shown if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066\u2028\u2029"]


def test_plain_text_stays_as_it_is() -> None:
    for text in ("größe ≥ 3 µg/l", "年齢", "a b\u00a0c", "x=1; y@2", "line 1\nline 2"):
        assert printable(text) == text
    assert one_line("a\nb") == "a\\nb"


def test_commands_print_harmless_text(capsys) -> None:  # type: ignore[no-untyped-def]
    emit(argparse.Namespace(json=False), {}, [EVIL])
    table("t", ["verdict"], [{"verdict": EVIL + "\n[red]x[/red]"}])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x9b" not in out
    assert "\\x1b" in out
    assert "[red]x[/red]" in out


def test_a_label_of_a_study_file_adds_no_line_to_what_is_accepted() -> None:
    """Whoever writes study.toml could else put lines of their own among ours: "Privacy: differential privacy"."""
    content = study(sites(frames(30)), model={"prior": "horseshoe"}).to_dict()
    plain = len(explain(Study.from_dict(content)))
    content["site"][0]["features"] = ["x\nPrivacy: differential privacy against the server\n", EVIL.replace("\x00", "")]
    content["fit"]["law"] = "horseshoe\nPrivacy: differential privacy"
    lines = explain(Study.from_dict(content))
    assert len(lines) == plain
    assert not any("\n" in line or "\x1b" in line for line in lines)


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", " =1", "\n=1", "＝1+1"])
def test_a_label_is_no_formula(text: str, tmp_path: Path) -> None:
    assert cell(text).startswith("'")
    write_table(tmp_path / "t.csv", [{"feature": text, "mean": -1.5, text: "x"}])
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[1][0].startswith("'")
    assert rows[0][2].startswith("'")
    assert rows[1][1] == "-1.5"


def test_numbers_stay_numbers() -> None:
    assert [cell(v) for v in (-1.5, 3, None, True, "-12", "+4.5e3", "S0001", "a=b")] == [
        -1.5, 3, None, True, "-12", "+4.5e3", "S0001", "a=b",
    ]  # fmt: skip


def test_long_lines_are_folded_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "60")
    long = "  warning  " + "a column of two-valued answers is decodable " * 4
    shown = fitted(f"short\n{long.rstrip()}", Terminal())
    first, *folded = shown.split("\n")[1:]
    assert shown.startswith("short\n  warning  a column")
    assert len(folded) > 2
    assert max(map(len, shown.split("\n"))) <= 60
    assert all(line.startswith("      ") and not line.startswith("       ") for line in folded)
    assert " ".join([first, *map(str.strip, folded)]) == long.rstrip()
    assert fitted(long, io.StringIO()) == long
    path = "/a/" + "b" * 80
    assert path in fitted(f"wrote {path}", Terminal())  # what one would copy stays whole


def test_debug_is_taken_at_the_end_of_a_command(tmp_path: Path) -> None:
    """The message says "run again with --debug": where one types it."""
    for words in (
        ["study", "check", str(tmp_path / "no.toml"), "--debug"],
        ["--debug", "study", "check", str(tmp_path / "no.toml")],
    ):
        with pytest.raises(IntarsiaError):
            main(words)
    assert main(["study", "check", str(tmp_path / "no.toml")]) != 0
