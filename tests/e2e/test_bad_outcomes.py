"""Outcomes that cannot be what they are called: `site check`, `Site` and the commands refuse them, and nothing is sent."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federation import KEY, RUN, fingerprints

import intarsia
from intarsia.carriers.in_process import fit
from intarsia.cli import main
from intarsia.errors import IntarsiaError
from intarsia.server.study.folder import dump
from intarsia.wire.study import Study

N = 300
TIME = {"kind": "time", "event": "died", "horizon": 12}
GRADES = {"kind": "ordinal", "order": ["none", "mild", "severe"]}


def of(values: list[Any]) -> list[Any]:
    return list(np.resize(np.array(values, dtype=object), N))


# Kind, the response's values, those of the column of events, and what the refusal says.
BAD: dict[str, tuple[Any, list[Any], list[Any], str]] = {
    "three texts called binary": ("binary", of(["a", "b", "c"]), of([1]), "is called binary and has 3 levels"),
    "three numbers called binary": ("binary", of([0, 1, 2]), of([1]), "A binary response has two levels; this one has 3"),
    "one text called binary": ("binary", of(["no"]), of([1]), "is called binary and has 1 level: leave it out"),
    "one number called binary": ("binary", of([1]), of([1]), "this one has 1. It never varies"),
    "nobody has a value": ("binary", of([None]), of([1]), "no value at all"),
    "nobody has a count": ("count", [np.nan] * N, of([1]), "no value at all"),
    "negative times": (TIME, of([-1.0, 20.0]), of([1]), "150 times are negative"),
    "everybody censored": (TIME, of([5.0, 20.0]), of([0]), "every subject is censored"),
    "times as texts": (
        TIME,
        of(["5 months", "20 months"]),
        of([1]),
        "(2 different ones); kind 'time' needs numbers",
    ),
    "events as texts": (TIME, of([5.0, 20.0]), of(["yes", "no"]), "needs `event`: the name of a column"),
    "events that are no events": (TIME, of([5.0, 20.0]), of([1, 2]), "must be 1 (the event came) or 0"),
    "a horizon beyond follow-up": (TIME, of([5.0, 6.0]), of([1]), "beyond the longest follow-up"),
    "negative counts": ("count", of([-1, 2]), of([1]), "150 values are negative"),
    "fractions called counts": ("count", of([0.5, 2.0]), of([1]), "150 values are not whole numbers"),
    "texts called counts": ("count", of(["one", "two"]), of([1]), "kind 'count' needs numbers"),
    "noughts have no logarithm": ("skewed", of([0.0, 1.5]), of([1]), "150 values are 0, which has no logarithm"),
    "an unknown grade": (GRADES, of(["none", "mild", "awful"]), of([1]), "1 of its 3 grades are not in the order"),
    "texts without an order": ("ordinal", of(["none", "mild", "severe"]), of([1]), "needs their order"),
    "one grade only": (GRADES, of(["mild"]), of([1]), "one level only"),
}


def frames(values: list[Any], events: list[Any]) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    ids = [f"S{i:04d}" for i in range(N)]
    clinic = pd.DataFrame({"id": ids, "x0": rng.standard_normal(N), "x1": rng.standard_normal(N), "y": values, "died": events})
    return {"clinic": clinic, "lab": pd.DataFrame({"id": ids, "g0": rng.standard_normal(N), "g1": rng.standard_normal(N)})}


def study(kind: Any, mode: str = "intersect") -> Study:
    said = {k: v for k, v in kind.items() if k != "event"} if isinstance(kind, dict) else kind
    clinic = {"name": "clinic", "features": ["x*"], "responses": ["y"], "kinds": {"y": said}}
    roster = [clinic, {"name": "lab", "features": ["g*"]}]
    return Study.from_dict({"id": "bad", "run": RUN, "sketch": {"m": 30}, "site": roster, "alignment": {"mode": mode}})


def parties(tables: dict[str, pd.DataFrame], kind: Any) -> list[intarsia.Site]:
    shared: dict[str, Any] = {"id": "id", "key": KEY}
    clinic = intarsia.Site("clinic", tables["clinic"], responses=["y"], kinds={"y": kind}, ignore=["died"], **shared)
    return [clinic, intarsia.Site("lab", tables["lab"], **shared)]


@pytest.mark.parametrize("case", BAD)
def test_in_python(case: str) -> None:
    kind, values, events, words = BAD[case]
    sites, plan = parties(frames(values, events), kind), study(kind)
    with pytest.raises(IntarsiaError) as refused:
        fit(sites, plan)
    assert words in str(refused.value)
    assert "y" in str(refused.value)
    assert not any(cell in str(refused.value) for cell in ("months,", "awful", "S0001"))  # no data
    assert sites[0].run_store(plan).log == []  # not even how many subjects there are


@pytest.mark.parametrize("case", BAD)
def test_by_the_commands(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, values, events, words = BAD[case]
    frames(values, events)["clinic"].to_csv(tmp_path / "clinic.csv", index=False)
    KEY.save(tmp_path / "study.key")
    where, plan = tmp_path / "clinic", tmp_path / "study.toml"
    plan.write_text(dump(study(kind)))
    assert (
        run("site", "init", where, "--name", "clinic", "--table", tmp_path / "clinic.csv", "--id", "id", "--responses", "y") == 0
    )
    toml = (where / "site.toml").read_text().replace('# key = "study.key"', 'key = "../study.key"')
    own = 'ignore = ["died"]' + ('\nkinds = { y = { kind = "time", event = "died" } }' if kind is TIME else "")
    (where / "site.toml").write_text(toml.replace("ignore = []", own))
    assert run("site", "accept", where, plan, "--fingerprints", fingerprints(where, plan)) == 0
    capsys.readouterr()
    assert run("site", "check", where) == 6
    assert words in capsys.readouterr().out
    for step, consent in (("announce", ()), ("sketch", ("--yes",))):
        assert run("site", step, where, "-o", tmp_path / step, *consent) != 0
        assert words in capsys.readouterr().err
        assert not (tmp_path / step).exists()
    assert not list(where.glob("studies/*/sent.jsonl"))


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_one_level_is_left_after_alignment() -> None:
    """Both levels are in the table; of those whom all sites know nobody has the outcome. No sketch leaves."""
    tables = frames(["yes"] * 100 + ["no"] * 200, of([1]))
    tables["lab"] = tables["lab"].iloc[100:]
    sites, plan = parties(tables, "binary"), study("binary")
    with pytest.raises(IntarsiaError, match="A binary response has two levels; this one has 1"):
        fit(sites, plan)
    assert [entry["step"] for entry in sites[0].run_store(plan).log] == ["announcement", "alignment"]
