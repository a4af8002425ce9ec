"""One text for every way of writing an id, so that the ledger knows a person again.

The ledger counts what was told about each subject. An id written with a blank, in capitals, with leading zeros, with other
dashes or in the digits of another script must not start the count anew. Two different ids that become the same here are counted
together, which errs on the safe side.
"""

import re
import unicodedata
from typing import Any

_FLOAT = re.compile(r"([+-]?\d+)\.0+")
_NOT_PLAIN = re.compile(r"[^0-9a-z]+")
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")


def canonical_id(value: Any) -> str:
    """Letters and digits only, in one case, without leading zeros; a whole number written as 12.0 is 12."""
    text = str(value)
    if text.isascii():  # as most are: then the general way comes to this, and takes several times as long
        text = text.strip().lower()
        if whole := _FLOAT.fullmatch(text):
            text = whole[1]
        plain = text if text.isalnum() else _NOT_PLAIN.sub("", text)
        return (_ZEROS.sub("", plain) if "0" in plain else plain) if plain else text
    text = unicodedata.normalize("NFKC", text).strip().casefold()
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    if whole := _FLOAT.fullmatch(text):
        text = whole[1]
    plain = "".join(c for c in text if c.isalnum())
    return _ZEROS.sub("", plain) if plain else text
