"""The errors intarsia raises. Each says the fact, what came, what was expected and the remedy.

No message ever holds a data value, a subject id or key material: messages may cross the wall, reach a log or a screen.
"""

import errno
import os
import re


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


class UnknownNameError(InputError, StudyError):
    """Somebody named a folder, a site or a study that is not there: bad input, whatever it was named for."""

    exit_code = 2


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
    number = error.errno or _told_in(str(error))
    if not number:
        return _nameless(error)
    again = " Free some space and give the same command again: what was finished is kept."
    remedy = {
        errno.ENOSPC: again,
        errno.EFBIG: " The system limits how large a file may be: raise the limit (ulimit -f) and give the same command again.",
        errno.EIO: " The disk itself fails: see the system's log, and go on with a copy of the folder on another one.",
        errno.EPIPE: " The process at the other end has ended. Give the same command again: what was finished is kept.",
        errno.EDQUOT: again,
        errno.ENOENT: " Check the name and the folder.",
        errno.EACCES: " Check who may read and write it.",
        errno.EPERM: " Check who may read and write it.",
        errno.EROFS: " Nothing can be written there: choose another folder.",
        errno.EEXIST: " Choose another name.",
        errno.ENOTDIR: " A folder was expected there.",
        errno.EISDIR: " A file was expected there.",
    }.get(number, "")
    where = f": {error.filename}" if error.filename else ""
    return f"{os.strerror(number)}{where}.{remedy}"


def _told_in(words: str) -> int:
    """The system's number of an error that a library put into its words; 0 where there is none."""
    found = re.search(r"\berrno = ([0-9]+)", words)
    return int(found[1]) if found else 0


def _nameless(error: OSError) -> str:
    """An error of the system that came without its number."""
    if isinstance(error, ConnectionError):
        return "The connection was lost. See that the other end runs, and give the same command again: what has arrived is kept."
    return (
        "A file could not be read or written, and the library in between does not say which. See whether "
        "the disk is full or a file is damaged, and give the same command again; --debug shows where it was."
    )
