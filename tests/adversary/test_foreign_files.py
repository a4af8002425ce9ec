"""Files that somebody else made: of any size, of no end, and with lines of their own."""

import os
from pathlib import Path

import pytest
from tests.federation import frames, sites, study

from intarsia.cli import main
from intarsia.errors import InputError, MessageError
from intarsia.server.study.folder import dump
from intarsia.site.identity import Identity
from intarsia.wire.bounded import read_file
from intarsia.wire.plain import cell
from intarsia.wire.study import Study
from intarsia.wire.table_files import write_table

NEW = ["study", "new", "--id", "liver", "--m", "60", "--site", "clinic", "--responses", "clinic=alt"]
KEY = "Jrkop8attnztWYqcJUZmxaGslabIjDNvaLu1EKI2gwM="


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """A site's folder that has accepted a study with pinned keys."""
    folder = tmp_path / "clinic"
    frames(400)["clinic"].to_csv(tmp_path / "clinic.csv", index=False)
    main(["site", "init", str(folder), "--name", "clinic", "--table", str(tmp_path / "clinic.csv"), "--responses", "alt,ast"])
    parties = sites(frames(400), identities=True)
    parties[0].identity = Identity.load(folder)
    (folder / "accepted").mkdir()
    (folder / "accepted" / "liver.toml").write_text(dump(study(parties)))
    return folder


def commands(clinic: Path, file: Path) -> dict[str, list[object]]:
    """Every command that reads a file of another party."""
    out = file.with_name("out")
    return {
        "share": ["site", "share", clinic, file, "-o", out],
        "combine": ["site", "combine", clinic, file, "-o", out],
        "seal": ["site", "seal", clinic, file],
        "align": ["site", "align", clinic, file, "-o", out],
        "sketch": ["site", "sketch", clinic, "--yes", "--cohort", file, "-o", out],
        "receive": ["site", "receive", clinic, file, "-o", out.with_suffix(".csv")],
        "finish": ["predict", "finish", clinic, "june", clinic.with_suffix(".csv"), file, "-o", out.with_suffix(".csv")],
        "accept": ["site", "accept", clinic, file, "--fingerprints", file],
        "study": ["study", "check", file],
        "new": ["study", "new", out, "--id", "x", "--m", "60", "--site", file],
        "card": ["privacy", "card", file],
    }


def test_no_command_reads_a_file_without_end(clinic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of a terabyte (all of it holes): refused by its size, before any of it is in memory."""
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(2**40)
    for name, words in commands(clinic, huge).items():
        assert main([str(word) for word in words]) not in (0, 1), name
        assert len(capsys.readouterr().err) < 2000, name


def test_a_pipe_that_never_ends_is_not_read_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match="has 3,145,728 bytes or more; at most 3,000,000 are accepted"):
        read_file("/dev/zero", 3_000_000)
    reading, writing = os.pipe()
    os.write(writing, b"abc" * 1000)
    os.close(writing)
    assert read_file(f"/dev/fd/{reading}", 3000) == b"abc" * 1000
    os.close(reading)
    short = tmp_path / "short"
    short.write_bytes(b"12345")
    assert read_file(short, 5) == b"12345"
    with pytest.raises(MessageError, match="5 bytes or more; at most 4"):
        read_file(short, 4)
    with pytest.raises(MessageError, match=r"^Cannot read .*/away: No such file or directory\. Check the name and the folder\.$"):
        read_file(tmp_path / "away", 4)


@pytest.mark.parametrize(
    "text",
    [
        f'name = "lab"\nsigning_key = "{KEY}"\nexchange_key = """{KEY}"\n[[site]]\nname = "ghost"\nfeatures = ["g"]\n#"""\n',
        f'name = """lab"\ncolumns = 1 #"""\nexchange_key = "{KEY}"\nsigning_key = "{KEY}"\n',
        f'name = "lab"\nexchange_key = "{KEY}"\nsigning_key = "AAAA"\n',
        f'name = "lab"\nexchange_key = "{KEY}"\n',
        f'name = ["lab"]\nexchange_key = "{KEY}"\nsigning_key = "{KEY}"\n',
        f'name = "lab"\nexchange_key = "{KEY}"\nsigning_key = "{KEY}"\ncovariates = ["*"]\n',
        "\xff",
    ],
)
@pytest.mark.parametrize("command", ["new", "join"])
def test_a_sites_public_file_brings_no_lines_of_its_own_into_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, command: str
) -> None:
    """Whoever writes study.toml puts the sites' public files together; a second site in one of them would be on the roster."""
    evil, out = tmp_path / "evil.toml", tmp_path / "study.toml"
    evil.write_text(text, encoding="latin-1")
    if command == "new":
        words = [*NEW[:2], out, *NEW[2:], "--site", evil]
    else:
        first = tmp_path / "first.toml"
        first.write_text(dump(study()))
        words = ["study", "join", first, "--site", evil, "--features", "lab2_*", "-o", out]
    assert main([str(word) for word in words]) == InputError.exit_code
    assert "is not the public file" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("label", ["x;=1+1", "x; =1+1", 'x;"=1+1"', "x;;+cmd|'x'!A0", 'a,b;""@SUM(1)', "x;\t-1+1", ";＝1+1"])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_label_is_no_formula_where_tables_are_parted_at_semicolons(tmp_path: Path, label: str, suffix: str) -> None:
    """A label of another site in a table of results, opened by a spreadsheet that takes the semicolon for the end of a cell,
    in quotes or not, and drops quotes and blanks before it looks."""
    path = tmp_path / f"t.{suffix}"
    write_table(path, [{"feature": label, "response": label, label: -1.5}])
    for line in path.read_text(encoding="utf-8").splitlines():
        for piece in line.split(";")[1:]:
            assert not piece.lstrip(' "').startswith(("=", "+", "-", "@", "＝"))
    assert cell("low; high") == "low; high"


def test_an_honest_public_file_still_does(tmp_path: Path) -> None:
    main(["site", "init", str(tmp_path / "lab"), "--name", "lab"])
    words = [*NEW[:2], tmp_path / "study.toml", *NEW[2:], "--site", tmp_path / "lab" / "lab.toml"]
    assert main([str(word) for word in words]) == 0
    assert Study.load(tmp_path / "study.toml").site("lab").signing_key == Identity.load(tmp_path / "lab").signing_key
