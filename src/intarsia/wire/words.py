"""Fingerprints as words that two people can read to each other by telephone.

Every two bytes are one word of five letters, consonant and vowel in turn (the proquints of Wilkerson, arXiv:0901.4016):
four bits choose a consonant out of sixteen, two bits a vowel out of four. There is no list to carry about, every word can be
pronounced in most languages, and two fingerprints differ in a word wherever they differ in a bit.
"""

import re

from intarsia.errors import InputError

CONSONANTS = "bdfghjklmnprstvz"
VOWELS = "aiou"
_BITS = (4, 2, 4, 2, 4)
_WORD = re.compile(f"(?:[{CONSONANTS}][{VOWELS}]){{2}}[{CONSONANTS}]")


def to_words(digest: bytes) -> str:
    """The whole digest as words joined by hyphens; its length must be even."""
    if len(digest) % 2:
        raise ValueError("words are made of pairs of bytes")
    return "-".join(_word(int.from_bytes(digest[i : i + 2], "big")) for i in range(0, len(digest), 2))


def _word(number: int) -> str:
    letters, left = [], 16
    for bits in _BITS:
        left -= bits
        letters.append((CONSONANTS if bits == 4 else VOWELS)[number >> left & (1 << bits) - 1])
    return "".join(letters)


def from_words(text: str) -> bytes:
    """The digest that these words stand for, however they are typed: capitals, blanks or hyphens between them."""
    out = bytearray()
    for word in split_words(text):
        if not _WORD.fullmatch(word):
            raise InputError(
                "This is not a fingerprint in words: each word has five letters, consonant and vowel in turn, as in lusab-babad."
            )
        number = 0
        for letter, bits in zip(word, _BITS):
            number = number << bits | (CONSONANTS if bits == 4 else VOWELS).index(letter)
        out += number.to_bytes(2, "big")
    return bytes(out)


def split_words(text: str) -> list[str]:
    return [word for word in re.split(r"[\s\-.,]+", text.strip().lower()) if word]


def same_words(one: str, other: str) -> bool:
    """Whether two people have the same fingerprint before them, whatever stands between the words."""
    return split_words(one) == split_words(other)


def in_lines(words: str, each: int = 4) -> list[str]:
    """Words in lines of a few, as one reads them out."""
    parts = split_words(words)
    return ["  ".join(parts[i : i + each]) for i in range(0, len(parts), each)]
