"""A differentially private study from raw tables to intervals, and the cards it leaves behind."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from intarsia.carriers.in_process import fit
from intarsia.cli import main
from intarsia.errors import InputError
from intarsia.privacy.card import verify
from intarsia.site.identity import Identity
from intarsia.site.key import SketchKey
from intarsia.site.site import Site
from intarsia.site.sketch import grid_noise
from intarsia.site.sketch import sketch as sketching
from intarsia.wire.messages import Sketch
from intarsia.wire.study import Study

KEY = SketchKey(bytes(range(32)))


def parties(n: int, folder: Path | None = None) -> tuple[list[Site], np.ndarray, dict[str, Identity]]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 10))
    C = np.zeros(10)
    C[[0, 6]] = 0.6, -0.5
    y = X @ C + 0.5 * rng.standard_normal(n)
    ids = np.array([f"s{i}" for i in range(n)])
    a = {f"a{j}": X[:, j] for j in range(5)} | {"id": ids, "y": y}
    b = {f"b{j}": X[:, 5 + j] for j in range(5)} | {"id": ids}
    who = {name: Identity.new(name) for name in ("left", "right")}

    def site(name: str, data: dict[str, np.ndarray], responses: list[str]) -> Site:
        where = None if folder is None else folder / name
        return Site(name, data, id="id", responses=responses, key=KEY, identity=who[name], folder=where)

    return [site("left", a, ["y"]), site("right", b, [])], C, who


def study(m: int, epsilon: float, who: dict[str, Identity], pinned: bool = True) -> Study:
    roster = [{"name": "left", "features": ["a*"], "responses": ["y"]}, {"name": "right", "features": ["b*"]}]
    for entry in roster if pinned else ():
        keys = who[str(entry["name"])]
        entry |= {"exchange_key": keys.exchange_key, "signing_key": keys.signing_key}
    public = {site: {"*": 0.0} for site in ("left", "right")}
    unit = {site: {"*": 1.0} for site in ("left", "right")}
    return Study.from_dict(
        {
            "id": "private",
            "run": "ab" * 16,
            "sketch": {"m": m, "kind": "gaussian"},
            "fit": {"draws": 200, "warmup": 150, "chains": 2, "thin": 1},
            "privacy": {
                "epsilon": epsilon, "delta": 1e-6, "row_bound": {"left": 4.0, "right": 3.5}, "centres": public,
                "scales": unit,
            },
            "site": roster,
        }
    )  # fmt: skip


def test_private_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same key and the same noise in every run of the test: it looks at 95 % intervals.
    monkeypatch.setattr(sketching, "snap", partial(grid_noise.snap, random_bytes=np.random.default_rng(1).bytes))
    sites, C, who = parties(20_000, tmp_path)
    plan = study(200, 5.0, who, pinned=False)
    result = fit(sites, plan)
    mean = result.posterior.mean().values[:, 0]
    np.testing.assert_allclose(mean, C, atol=0.15)
    low, high = (edge.values[:, 0] for edge in result.posterior.interval(0.95))
    assert ((low <= C) & (high >= C)).mean() >= 0.8
    for name in ("left", "right"):
        text = next((tmp_path / name).rglob("card.json")).read_text()
        card = verify(text, who[name].signing_key)
        private = card["differential_privacy"]
        assert private["against_server"] == {"epsilon": 5.0, "delta": 1e-6}
        assert private["against_a_party_that_knows_phi"]["epsilon"] > 5
        assert private["all_runs"] == {"epsilon": 5.0, "delta": 1e-6}
        assert card["ledger"]["entries"] >= 1
        assert next((tmp_path / name).rglob("card.html")).read_text().startswith("<!doctype html>")


def test_the_servers_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites, _, who = parties(2_000, tmp_path)
    plan = study(60, 8.0, who, pinned=False)  # the key comes by file
    from intarsia.server.study.folder import dump

    (tmp_path / "study.toml").write_text(dump(plan))
    paths = []
    for site in sites:
        paths.append(str(tmp_path / f"{site.name}.sketch"))
        Path(paths[-1]).write_bytes(site.sketch(plan))
    cards = [str(next((tmp_path / s.name).rglob("card.json"))) for s in sites]
    command = ["privacy", "card", "--study", str(tmp_path / "study.toml"), "--sketch", *paths, "--site-card", *cards]
    assert main([*command, "--json", "--html", str(tmp_path / "study.html")]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["made_by"] == "server"
    assert [s["site"] for s in card["sites"]] == ["site left", "site right"]
    assert (tmp_path / "study.html").stat().st_size > 1000
    assert main(["privacy", "card", cards[0], "--key", who["left"].signing_key]) == 0
    assert main(["privacy", "card", cards[0], "--key", who["right"].signing_key]) == 3
    assert main(["privacy", "ledger", str(tmp_path / "left" / "ledger"), "--card", cards[0]]) == 0


def test_a_hopeless_private_study_is_refused_with_numbers() -> None:
    sites, _, who = parties(400)
    with pytest.raises(InputError, match="drowns the features"):
        fit(sites, study(60, 1.0, who))


def test_what_a_cell_holds_never_decides_a_private_step() -> None:
    """A missing or infinite cell, a rare level, a constant column: a private study answers each step as if nothing were there."""
    sites, _, who = parties(400)
    plan = study(60, 8.0, who)
    sites[1].data["b0"][3], sites[1].data["b1"][4], sites[1].data["b2"][:] = np.nan, np.inf, 0.0
    sites[1].data["b3"] = np.r_[1.0, np.zeros(399)]
    sites[1].offer(plan)
    sites[1].set_key(plan, KEY)
    sites[1].announce(plan)
    sent = Sketch.load(sites[1].sketch(plan))
    assert sent.features == tuple(f"b{j}" for j in range(5))


def test_every_refusal_that_rests_on_data_comes_before_the_first_message() -> None:
    """A private study must not answer some steps and then refuse by what the data are: each refusal would be an answer."""
    sites, _, who = parties(400)
    plan = study(60, 8.0, who)
    sites[1].data["id"] = np.array(["s1", *sites[1].data["id"][1:]])
    for step in (sites[1].offer, sites[1].announce):
        with pytest.raises(InputError, match="1 row repeats the id"):
            step(plan)
    assert sites[1].run_store(plan).log == []
