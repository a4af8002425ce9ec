"""What the command line says to a slip of the pen: exit code 2, and which word was probably meant."""

import pytest

from intarsia.cli import main
from intarsia.errors import InputError, StudyError, UnknownNameError


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["sit"], "'sit' is no COMMAND; did you mean 'site'?"),
        (["site", "chek", "clinic"], "'chek' is no ACTION; did you mean 'check'?"),
        (["study", "nxt", "x"], "did you mean 'next'?"),
        (["site", "next", "clinic", "--wiat"], "there is no option --wiat; did you mean '--wait'?"),
        (["fit", "-o", "x", "--backend", "jux"], "'jux' is no --backend; did you mean 'jax'?"),
    ],
)
def test_a_slip_is_told_what_was_meant(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["study", "status", "nowhere"],
        ["report", "nowhere", "-o", "x.html"],
        ["site", "check", "nowhere"],
        ["deliver", "receipts", "nowhere", "x"],
    ],
)
def test_a_name_that_is_not_there_is_bad_input(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == InputError.exit_code == 2
    assert "nowhere" in capsys.readouterr().err


def test_an_unknown_name_is_still_an_error_of_the_study() -> None:
    assert issubclass(UnknownNameError, StudyError)
    assert UnknownNameError.exit_code == 2
