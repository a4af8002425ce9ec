"""The demonstration, small: three hospitals in processes of their own, from tables to report."""

import json
from pathlib import Path

import pytest

from intarsia.cli import main
from intarsia.demo.hospitals import SITES, simulate
from intarsia.demo.processes import MARK

SMALL = ["--people", "500", "--m", "60", "--draws", "60", "--workers", "1"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    import contextlib
    import io

    out = tmp_path_factory.mktemp("demo") / "demo-study"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["demo", "--out", str(out), *SMALL]) == 0
    return out, said.getvalue()


def test_every_step_is_told(demo):
    _, said = demo
    steps = ("Three hospitals", "accepted by all three", "Key agreement", "Alignment", "500 people are at all three")
    steps += ("leaves; gate:", "Sampling", "Delivered", "95 % interval", "truth", "report.html")
    places = [said.index(step) for step in steps]
    assert places == sorted(places)


def test_what_it_leaves(demo):
    out, _ = demo
    assert (out / "report.html").stat().st_size < 2_000_000
    assert {p.name for p in (out / "sites").iterdir()} == set(SITES)
    assert (out / "study" / "fit.json").is_file()
    page = (out / "report.html").read_text(encoding="utf-8")
    selected = json.loads((out / "study" / "fit.json").read_text(encoding="utf-8"))["selected"]
    edges = [name for name in selected if "--" in name]
    assert ("Connectogram" in page, "none of them is selected" in page) == (bool(edges), not edges)
    assert "intarsia report study --truth truth.csv" in page  # how to make it again
    assert len((out / "truth.csv").read_text(encoding="utf-8").splitlines()) > 10


def test_the_server_holds_no_id_and_no_row(demo):
    """The study folder at the server has neither ids nor the hospitals' numbers."""
    out, _ = demo
    lines = (out / "sites" / "clinic" / "data.csv").read_text(encoding="utf-8").splitlines()[1:6]
    held = b"".join(p.read_bytes() for p in (out / "study").rglob("*") if p.is_file() and p.suffix != ".nc")
    for line in lines:
        person, *values = line.split(",")
        assert person.encode() not in held
        assert ",".join(values[:2]).encode() not in held


def test_again_replaces_its_own_folder_only(demo, tmp_path, capsys):
    out, _ = demo
    assert (out / MARK).is_file()
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    assert main(["demo", "--out", str(tmp_path), *SMALL]) == 2
    assert "not empty" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "keep"


@pytest.mark.slow
def test_json_is_only_json(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "d"), "--json", *SMALL]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["report"]).is_file()
    assert told["right"] + told["wrong"] == len(told["table"])


def test_truth_is_the_regression():
    """Least squares on everybody's standardised columns gives back the truth that the table is compared with."""
    import numpy as np

    data = simulate(n=6000, extra=5, seed=1)
    rows = {site: dict(zip(data.ids[site], values)) for site, values in data.values.items()}
    people = sorted(set.intersection(*(set(ids) for ids in data.ids.values())))
    joint = np.column_stack([np.array([rows[site][p] for p in people]) for site in SITES])
    names = [c for site in SITES for c in data.columns[site]]
    z = (joint - joint.mean(axis=0)) / joint.std(axis=0)
    responses = [q for _p, q in data.truth]
    features = [n for n in names if n not in set(responses)]
    X, Y = z[:, [names.index(f) for f in features]], z[:, [names.index(q) for q in dict.fromkeys(responses)]]
    estimate = np.linalg.lstsq(X, Y, rcond=None)[0]
    truth = np.zeros_like(estimate)
    for (p, q), value in data.truth.items():
        truth[features.index(p), list(dict.fromkeys(responses)).index(q)] = value
    # A standard error is about √(.2/6000 · 1.5) = .007.
    assert np.abs(estimate - truth).max() < 0.06
    assert np.abs((estimate - truth)[truth.any(axis=1)]).mean() < 0.02


@pytest.mark.slow
@pytest.mark.network
def test_over_the_network(tmp_path, capsys):
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed (pip install 'intarsia[federation]')")
    assert main(["demo", "--network", "--out", str(tmp_path / "d"), "--json", *SMALL]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["report"]).is_file()
    assert told["features"] == 273


@pytest.mark.slow
def test_screened_it_tells_the_look_and_what_was_kept(tmp_path, capsys):
    small = ["--people", "5000", "--draws", "60", "--workers", "1"]
    assert main(["demo", "--screened", "--out", str(tmp_path / "demo"), *small]) == 0
    said = capsys.readouterr().out
    steps = ("accepted by all three", "Key agreement", "5,000 people are at all three", "Columns: each hospital states")
    steps += (
        "Look: exact sums of every feature",
        "253 features looked at",
        "Sampling",
        "products of the kept columns",
        "Delivered",
    )
    places = [said.index(step) for step in steps]
    assert places == sorted(places)
    table = json.loads((tmp_path / "demo" / "study" / "screened.json").read_text(encoding="utf-8"))
    kept = [row["feature"] for row in table["features"] if row["kept"]]
    assert table["looked_at"] == 273
    assert 10 <= len(kept) <= 50
    assert "exact sums of products of 273 features" in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
