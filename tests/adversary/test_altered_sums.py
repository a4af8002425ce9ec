"""A server or carrier that alters the sum of a prediction and learns from each refusal how to do it better."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer, new_subjects
from tests.adversary.test_prediction import JUNE, parts

from intarsia.wire.prediction import add_parts

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
