"""The errors intarsia raises. Each says the fact, what came, what was expected and the remedy.

No message ever holds a data value, a subject id or key material: messages may cross the wall, reach a log or a screen.
"""


class IntarsiaError(Exception):
    """Base of every error a user can meet; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(IntarsiaError, ValueError):
    """The data or an argument cannot be used as given."""

    exit_code = 2


class MessageError(IntarsiaError):
    """A message from another party is corrupt, truncated, of another version or of another study."""

    exit_code = 3


class StudyError(IntarsiaError):
    """study.toml is not valid, or two parties do not work from the same one."""

    exit_code = 4


class AlignmentError(IntarsiaError):
    """The sites do not hold the same subjects in the same order."""

    exit_code = 5


class PrivacyError(IntarsiaError):
    """A privacy rule refuses what was asked."""

    exit_code = 6


class KeyFileError(IntarsiaError):
    """A key is missing, unreadable, readable by others or does not fit."""

    exit_code = 7


class ConvergenceError(IntarsiaError):
    """The sampler could not produce usable draws."""

    exit_code = 8


class FederationError(IntarsiaError):
    """A site is missing, late, refused or broke the protocol."""

    exit_code = 9
