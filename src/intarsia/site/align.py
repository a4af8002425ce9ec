"""Same subjects, same order, proved by keyed tokens.

A token is HMAC-SHA256(alignment key, canonical id), cut to 16 bytes: without the key, which the server has not, it says
nothing about the id. Subjects are sketched in the order of their tokens, so the order in which a site keeps its file
does not matter and is not revealed.
"""

import hmac
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import AlignmentError
from intarsia.site.data.id_column import IdColumn
from intarsia.site.key import SketchKey
from intarsia.wire.alignment import TOKEN_BYTES, AlignmentReport, Cohort, halves
from intarsia.wire.study import Study

_SPACE = re.compile(r"\s+")
_INTEGER = re.compile(r"[+-]?\d+(\.0*)?")

_RULES: dict[str, Callable[[str], str]] = {
    "strip": str.strip,
    "collapse": lambda text: _SPACE.sub(" ", text),
    "nfc": lambda text: unicodedata.normalize("NFC", text),
    "lower": str.lower,
    "upper": str.upper,
    "no-leading-zeros": lambda text: text.lstrip("0") or ("0" if text else ""),
}


@dataclass(frozen=True)
class Tokens:
    """A site's tokens in ascending order, and the row of its table each belongs to."""

    tokens: NDArray[np.uint8]  # (n, 16)
    rows: NDArray[np.intp]  # (n,)
    order_key: bytes

    @property
    def n(self) -> int:
        return len(self.rows)

    def mac(self, keep: NDArray[np.bool_] | None = None) -> str:
        """Keyed digest of the (kept) tokens in order: equal at two sites only if cohort and order are equal."""
        kept = self.tokens if keep is None else self.tokens[keep]
        return hmac.digest(self.order_key, len(kept).to_bytes(8, "big") + kept.tobytes(), "sha256").hex()


def canonical(ids: Iterable[Any], rules: Sequence[str]) -> list[str]:
    """The ids as text after the study's rules, in the order in which study.toml lists them.

    Integers are written in decimal. Floating-point ids are refused unless the rule `integer` says what they are.
    """
    array = ids if isinstance(ids, np.ndarray) else np.asarray(list(ids), dtype=object)
    if array.ndim != 1:
        raise AlignmentError("Subject ids must be one column.")
    if array.dtype.kind in "iu":
        texts = [str(value) for value in array.tolist()]
    else:
        texts = _texts(array.tolist(), "integer" in rules)
    for rule in rules:
        texts = _integers(texts) if rule == "integer" else list(map(_RULES[rule], texts))
    empty = sum(not text for text in texts)
    if empty:
        raise AlignmentError(f"{empty} of {len(texts)} subjects have no id. Fill them in or remove those rows.")
    return texts


def _canonical_blocks(ids: Iterable[Any], rules: Sequence[str]) -> Iterator[list[str]]:
    """`canonical`, block by block where the ids come so; a refusal counts over all of them."""
    blocks = ids.blocks() if isinstance(ids, IdColumn) else [ids]
    try:
        for block in blocks:
            texts = canonical(block, rules)
            if texts:
                yield texts
    except AlignmentError:
        canonical(list(ids), rules)
        raise


def written(ids: Iterable[Any]) -> str:
    """How a site's ids are written, where another site may write the same ones otherwise; counts, never an id."""
    texts = [str(value) for value in ids]
    if not texts:
        return ""
    digits = [text for text in texts if text.strip().isdecimal()]
    facts = (
        ("with leading zeros", sum(text.strip().startswith("0") and len(text.strip()) > 1 for text in digits)),
        ("ending in .0", sum(text.strip().endswith(".0") for text in texts)),
        ("with spaces around them", sum(text != text.strip() for text in texts)),
    )
    small = sum(text != text.upper() for text in texts)
    decimals = sum(_INTEGER.fullmatch(text.strip()) is not None for text in texts) - len(digits)
    kind = "numbers and texts" if digits else "texts"
    if len(digits) + decimals == len(texts):
        kind = "numbers with decimals" if decimals else "whole numbers"
    said = [kind, *(f"{count:,} {what}" for what, count in facts if count)]
    said += [f"{small:,} with small letters"] if 0 < small < len(texts) else []
    return "ids are " + ", ".join(said)


def _texts(values: list[Any], integral: bool) -> list[str]:
    missing = sum(value is None or value != value for value in values)
    if missing:
        raise AlignmentError(f"{missing} of {len(values)} subjects have no id. Fill them in or remove those rows.")
    if all(type(value) is str for value in values):
        return values
    out = []
    for value in values:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, float | np.floating) and not integral:
            raise AlignmentError(
                "The subject ids are floating-point numbers, which two programs may write differently. "
                'Store them as whole numbers or text, or put "integer" into [alignment] canonical of study.toml.'
            )
        elif not isinstance(value, str | int | float | np.integer | np.floating):
            value = str(value)
        out.append(str(value))
    return out


def _integers(texts: list[str]) -> list[str]:
    bad = sum(_INTEGER.fullmatch(text.strip()) is None for text in texts)
    if bad:
        raise AlignmentError(
            f"The rule 'integer' applies to whole numbers; {bad} of {len(texts)} ids are none. "
            "Correct the ids or the rules in study.toml."
        )
    return [str(int(text.strip().split(".")[0])) for text in texts]


def tokenise(ids: Iterable[Any], key: SketchKey, study: Study, purpose: str = "cohort") -> Tokens:
    """The sorted tokens of a site's subjects; duplicates are refused with their count, never their value.

    `purpose` separates the study's cohort from the subjects of a later prediction.
    """
    token_key = key.derive("align-" + purpose, study.id, study.run)
    parts = [
        np.frombuffer(b"".join([hmac.digest(token_key, text.encode(), "sha256")[:TOKEN_BYTES] for text in texts]), np.uint8)
        for texts in _canonical_blocks(ids, study.alignment.canonical)
    ]
    if not parts:
        raise AlignmentError("The table has no subjects.")
    tokens = np.concatenate(parts).reshape(-1, TOKEN_BYTES)
    high, low = halves(tokens)
    rows = np.lexsort((low, high))
    high, low = high[rows], low[rows]
    _refuse_repeated(int(((high[1:] == high[:-1]) & (low[1:] == low[:-1])).sum()), len(rows), study)
    return Tokens(tokens[rows], rows, key.derive("order-" + purpose, study.id, study.run))


def check_ids(ids: Iterable[Any], study: Study) -> None:
    """What `tokenise` refuses, before there is a key: ids that are missing, or alike after the study's rules."""
    texts = canonical(ids, study.alignment.canonical)
    _refuse_repeated(len(texts) - len(set(texts)), len(texts), study)


def _refuse_repeated(twice: int, n: int, study: Study) -> None:
    if twice:
        raise AlignmentError(
            f"{twice} of {n} subjects have an id that another row has too, after the rules "
            f"{', '.join(study.alignment.canonical) or '(none)'}. Keep one row per subject, or correct the rules."
        )


def report(site: str, study: Study, tokens: Tokens) -> AlignmentReport:
    """What this site sends: in `strict` mode a digest only, else its tokens."""
    travels = None if study.alignment.mode == "strict" else tokens.tokens
    return AlignmentReport(site, study.hash, study.alignment.mode, tokens.n, tokens.mac(), travels)


def settle(site: str, study: Study, tokens: Tokens, cohort: Cohort) -> tuple[NDArray[np.intp], str]:
    """The rows of the site's table in the agreed order, and the MAC that proves it to the others."""
    if cohort.site != site or cohort.study_hash != study.hash or cohort.mode != study.alignment.mode:
        raise AlignmentError(f"The agreed cohort is not meant for site {site!r} in this run of study {study.id!r}.")
    if cohort.mode == "strict":
        return tokens.rows, tokens.mac()
    keep = cohort.keep
    if keep is None or keep.shape != (tokens.n,):
        raise AlignmentError(
            f"The agreed cohort speaks of another number of subjects than the {tokens.n} site {site!r} announced. "
            "The table changed since the alignment: align again in a new run."
        )
    return tokens.rows[keep], tokens.mac(keep)
