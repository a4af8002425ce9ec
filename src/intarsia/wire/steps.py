"""The steps a server may ask a site to take; a request for any other is refused. And how much may come with one."""

STEPS = (
    "offer", "share", "combine", "announce", "align", "sketch", "deal", "hold", "keep", "multiply", "look", "receive", "predict",
    "finish",
)  # fmt: skip
# What is read of a step's messages at a site. Coefficients, with draws, are the largest; a cohort has one bit per subject or so.
_MOST_BYTES = {
    "receive": 4 * 2**30, "finish": 2**30, "sketch": 2**28, "deal": 2**28, "hold": 2**31, "keep": 2**26, "multiply": 2**31,
    "look": 2**28,
}  # fmt: skip
_MOST_BYTES_ELSE = 2**24


def most_bytes(step: str) -> int:
    """The largest message, or file with one, that a site reads for a step, whoever carries it."""
    return _MOST_BYTES.get(step, _MOST_BYTES_ELSE)
