"""A server or carrier that alters the sum of a prediction and learns from each refusal how to do it better."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer, new_subjects
from tests.adversary.test_prediction import JUNE, parts

from intarsia.site.masks import masked, with_tags
from intarsia.wire.prediction import TAG_PRIME, add_parts

ONE_SD = 40  # a change of 2⁴⁰ steps is one standard deviation


@pytest.fixture
def rogue(tmp_path: Path) -> RogueServer:
    found = RogueServer.after_fit(tmp_path)
    found.deliver()
    return found


def test_no_change_of_a_sum_passes_and_refusals_teach_nothing(rogue: RogueServer) -> None:
    """Tags are the values times secret factors. Where numbers are counted modulo 2⁶⁴ and factors are odd, 2⁶³ more in the value
    is 2⁶³ more in the tag; and whether 2⁶² more passes tells the factor's next bit, and so on down to changes nobody notices.
    """
    new = new_subjects()
    good = add_parts(parts(rogue, new), "clinic")
    slices = len(good.total) // 2
    low = 1  # the factor's bits as far as they are known
    for bit in range(63, ONE_SD - 1, -1):
        for guess in {low, low | (1 << (63 - bit))}:
            total = good.total.copy()
            total[0, 3, 0] += np.uint64(1 << bit)
            total[slices, 3, 0] += np.uint64((guess << bit) & (2**64 - 1))
            told = rogue.ask("clinic", "finish", JUNE | {"sum": replace(good, total=total).to_bytes()}, new["clinic"])
            assert told.words in FIXED_WORDS, f"a sum altered by 2^{bit - ONE_SD} standard deviations was taken"
    assert not rogue.ask("clinic", "finish", JUNE | {"sum": good.to_bytes()}, new["clinic"]).refused


@pytest.mark.parametrize("bit", [40, 53, 60, 63])
def test_no_change_fits_its_tag_by_a_guess_at_a_few_bits(bit: int) -> None:
    """Where tags count modulo 2⁶⁴, a change of 2^bit has only 2^(63 − bit) tags that an odd factor can give: of 16,384 guesses
    at 2⁵³, the largest change that a sum may have and still be possible, sixteen are right. Each tells eleven bits of the factor.
    """
    rng, secret = np.random.default_rng(1), bytes(range(32))
    values = rng.integers(-(2**50), 2**50, (1, 2**14, 1)).view(np.uint64)
    good = with_tags(values, secret)
    guess = rng.integers(0, 2**62, values.shape, dtype=np.uint64).astype(object) * 2 + 1
    for fits in (guess * 2**bit % 2**64, guess * 2**bit % TAG_PRIME):
        altered = good.copy()
        altered[:1] += np.uint64(1 << bit)
        altered[1:] += fits.astype(np.uint64)
        lifted = masked("clinic", {}, altered)
        assert not (with_tags(lifted[:1], secret)[1:] == lifted[1:]).any()
    lifted = masked("clinic", {}, good)
    assert (with_tags(lifted[:1], secret) == lifted).all()
