"""Several stores of one site: the sketch of all of them together, and no store's sums in the open."""

import numpy as np
import pandas as pd
import pytest

from intarsia.errors import AlignmentError, FederationError, MessageError
from intarsia.site.align import tokenise
from intarsia.site.data.table import Table
from intarsia.site.identity import Identity
from intarsia.site.key import SketchKey
from intarsia.site.sketch.sketch import design, finish, sketch
from intarsia.site.stores import (
    Store,
    StorePlan,
    add_column_sums,
    add_row_sums,
    column_sums,
    places,
    row_sums,
)
from intarsia.wire.container import unpack
from intarsia.wire.study import Study

KEY = SketchKey(bytes(range(32)))
TERMS = {"study": "s", "run": "0" * 32, "m": 20}


def build(kind: str) -> tuple[Table, list[Store], StorePlan]:
    rng = np.random.default_rng(1)
    n = 200
    frame = pd.DataFrame(
        {
            "id": [f"S{i}" for i in range(n)],
            "far": 1e9 + 1e3 * rng.standard_normal(n),
            "small": 1e-5 * rng.standard_normal(n),
            "holes": rng.standard_normal(n),
            "y": rng.standard_normal(n),
        }
    )
    frame.loc[[3, 150], "holes"] = np.nan
    options = {"id": "id", "responses": ["y"], "missing": "mean"}
    whole = Table.open(frame, **options)
    study = Study.from_dict(
        {
            "id": "s",
            "run": "0" * 32,
            "sketch": {"m": 20},
            "site": [{"name": "a", "features": ["*"], "responses": ["y"]}],
        }
    )
    parts = {"north": frame[:50], "east": frame[50:170], "west": frame[170:]}
    tables = {name: Table.open(part, **options) for name, part in parts.items()}
    where = places({name: tokenise(t.ids(), KEY, study) for name, t in tables.items()})
    ids = {name: Identity.new(name) for name in parts}
    stores = [Store(name, ids[name], tables[name], where[name]) for name in parts]
    phi = design(KEY, n=n, kind=kind, cohort="ab" * 32, **TERMS)
    keys = {name: i.exchange_key for name, i in ids.items()}
    return whole, stores, StorePlan(phi, keys, tuple(whole.features), tuple(whole.responses), "context")


@pytest.mark.parametrize("kind", ["orthonormal", "gaussian"])
def test_masked_stores_give_the_sketch_of_one_table(kind: str) -> None:
    whole, stores, plan = build(kind)
    study = Study.from_dict(
        {
            "id": "s",
            "run": "0" * 32,
            "sketch": {"m": 20},
            "site": [{"name": "a", "features": ["*"], "responses": ["y"]}],
        }
    )
    order = tokenise(whole.ids(), KEY, study).rows
    one = sketch(whole, KEY, kind=kind, order=order, order_mac="ab" * 32, **TERMS)
    pilot = add_column_sums(plan, [column_sums(plan, s) for s in stores])
    sums = add_row_sums(plan, [row_sums(plan, s, pilot) for s in stores], pilot)
    two = finish(sums, plan.design, key_fingerprint=KEY.fingerprint, study_hash="0" * 64, order_mac="ab" * 32, missing="mean")
    np.testing.assert_allclose(two.message.X, one.message.X, atol=1e-9)
    np.testing.assert_allclose(two.message.Y, one.message.Y, atol=1e-9)
    np.testing.assert_allclose(two.local.x_mean, one.local.x_mean, rtol=1e-12)


def test_a_single_message_looks_like_noise() -> None:
    _, stores, plan = build("orthonormal")
    raw = column_sums(plan, stores[0])
    _, arrays = unpack(raw, "store-sums")
    other = column_sums(StorePlan(plan.design, plan.keys, plan.features, plan.responses, "another"), stores[0])
    _, changed = unpack(other, "store-sums")
    # Same data, another context: nothing in common, and the bits are balanced.
    assert not (arrays["masked"] == changed["masked"]).any()
    rows = row_sums(plan, stores[0], np.zeros(4))
    bits = np.unpackbits(unpack(rows, "store-sums")[1]["masked"].view(np.uint8))
    assert abs(bits.mean() - 0.5) < 6 * 0.5 / np.sqrt(len(bits))


def test_all_stores_or_nothing() -> None:
    _, stores, plan = build("orthonormal")
    messages = [column_sums(plan, s) for s in stores]
    with pytest.raises(FederationError, match="Sums of west are missing"):
        add_column_sums(plan, messages[:2])
    with pytest.raises(FederationError, match="come twice"):
        add_column_sums(plan, [*messages, messages[0]])
    with pytest.raises(MessageError, match="another round"):
        add_row_sums(plan, messages, np.zeros(4))


def test_a_subject_in_two_stores_or_none_is_counted() -> None:
    _, stores, plan = build("orthonormal")
    study = Study.from_dict(
        {
            "id": "s",
            "run": "0" * 32,
            "sketch": {"m": 20},
            "site": [{"name": "a", "features": ["*"], "responses": ["y"]}],
        }
    )
    both = {"a": tokenise(["x", "y"], KEY, study), "b": tokenise(["y", "z"], KEY, study)}
    with pytest.raises(AlignmentError, match="1 subjects are in two stores"):
        places(both)
    lost = stores[2].positions.copy()
    lost[:3] = -1
    stores[2] = Store("west", stores[2].identity, stores[2].table, lost)
    messages = [row_sums(plan, s, np.zeros(4)) for s in stores]
    with pytest.raises(AlignmentError, match="3 subjects of the agreed cohort are in no store"):
        add_row_sums(plan, messages, np.zeros(4))
