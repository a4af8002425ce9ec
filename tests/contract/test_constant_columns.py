"""constant = "drop" does what it says: the column does not leave, and the gate does not refuse the sketch because of it."""

import numpy as np

from intarsia.site.data.columns import profile
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.sketch.sketch import SketchTerms, sketch


def test_a_dropped_column_is_neither_judged_nor_sent() -> None:
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=200), "same": np.full(200, 3.0), "y": rng.normal(size=200)}
    dropped = Table.open(data, responses="y", rules=TableRules(constant="drop"))
    assert [fact.name for fact in profile(dropped).facts] == ["x", "y"]
    result = sketch(dropped, SketchKey(bytes(32)), SketchTerms("s", "1", 10))
    assert result.message.features == ("x",)
    kept = Table.open(data, responses="y")
    assert [fact.name for fact in profile(kept).facts if fact.distinct < 2] == ["same"]
