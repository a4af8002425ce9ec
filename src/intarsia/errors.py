"""The errors intarsia raises. Each says the fact, what came, what was expected and the remedy.

No message ever holds a data value, a subject id or key material: messages may cross the wall, reach a log or a screen.
"""

import errno
import os


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


def of_the_system(error: OSError) -> str:
    """What the operating system refused, in its words (not in those of a library in between), and what helps."""
    again = " Free some space and give the same command again: what was finished is kept."
    remedy = {
        errno.ENOSPC: again,
        errno.EDQUOT: again,
        errno.ENOENT: " Check the name and the folder.",
        errno.EACCES: " Check who may read and write it.",
        errno.EPERM: " Check who may read and write it.",
        errno.EROFS: " Nothing can be written there: choose another folder.",
        errno.EEXIST: " Choose another name.",
        errno.ENOTDIR: " A folder was expected there.",
        errno.EISDIR: " A file was expected there.",
    }.get(error.errno or 0, "")
    where = f": {error.filename}" if error.filename else ""
    return f"{os.strerror(error.errno) if error.errno else type(error).__name__}{where}.{remedy}"
