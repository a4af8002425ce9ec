"""The report: whole, self-contained, safe, small, and right about what it shows."""

import csv
import html
import json
import os
import re
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.federation import frames, sites, study
from tests.reports import made_up

from intarsia import report
from intarsia.cli import main
from intarsia.errors import InputError, StudyError, UnknownNameError
from intarsia.report import doubts
from intarsia.report.brain import Region, split_edges
from intarsia.report.checks import check
from intarsia.report.evidence import standing
from intarsia.report.gather import read_regions
from intarsia.report.html import el, fixed, number, short, text
from intarsia.report.monitor import Monitor, loopback
from intarsia.report.monitor_state import chains, find_studies
from intarsia.report.page import collect, render
from intarsia.report.svg import Scale
from intarsia.server.assess.assessment import assess, keep
from intarsia.server.assess.leave_one_out import Rows
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import CovariateEffects, Names, Posterior

SECTIONS = ("asked", "converged", "selected", "map", "forest", "checks", "rank", "noise", "traces", "privacy", "again")
NASTY = ['<script>alert("x")</script>', "a&b", '"><img src=x onerror=alert(1)>', "'; DROP", "Größe–Ünïcode 🧠", "עברית", "=1+1"]


class Reader(HTMLParser):
    """Collects tags, attributes and the table's rows; complains about tags that do not nest."""

    VOID = frozenset({"meta", "br", "img", "input", "hr", "wbr", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def page() -> str:
    posterior, joined, C = made_up()
    return render(collect(posterior, joined=joined, truth=C, title="A study"))


def test_every_section_is_there_and_linked(page):
    reader = read(page)
    ids = {attrs.get("id") for _tag, attrs in reader.tags}
    links = {attrs["href"][1:] for tag, attrs in reader.tags if tag == "a" and (attrs.get("href") or "").startswith("#")}
    assert set(SECTIONS) <= ids
    assert links <= ids
    assert "Privacy card" in page


def test_page_is_self_contained(page):
    """No address but data: ones, no script but ours, and a policy that says so."""
    reader = read(page)
    for tag, attrs in reader.tags:
        for name in ("src", "href", "action", "data", "srcset", "poster", "background"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value[:60])
        assert not any(name.startswith("on") for name in attrs)
    assert "http://" not in page.replace("http-equiv", "")
    assert "https://" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in html.unescape(page)
    assert page.count("<script>") == 1
    assert len(page.encode()) < 2_000_000


def test_page_reads_without_script(page):
    """What the script adds (search, sorting) is hidden without it; every row is in the page."""
    body = page.replace(page[page.index("<script>") : page.index("</script>")], "")
    assert body.count("<tr") > 25
    assert 'class="tools js"' in body
    assert ".js{display:none}" in body


def test_accessible(page):
    reader = read(page)
    assert any(tag == "html" and attrs.get("lang") == "en" for tag, attrs in reader.tags)
    figures = [attrs for tag, attrs in reader.tags if tag == "svg" and attrs.get("aria-hidden") != "true"]
    assert figures
    assert all(attrs.get("role") == "img" and attrs.get("aria-label") for attrs in figures)
    headings = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch("h[1-6]", tag)]
    assert headings.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(headings))


def test_table_tells_the_posterior(page):
    """The numbers in the table are the posterior's; the selected are those that are true here."""
    posterior, joined, C = made_up()
    m = collect(posterior, joined=joined, truth=C)
    assert sorted(m.chosen) == sorted(np.flatnonzero(C.any(axis=1)))
    p = int(m.shown[0])
    q = m.strongest(p)
    lower, upper = (edge.values[p, q] for edge in posterior.interval(0.95))
    row = next(line for line in page.split("<tr") if f"<bdi>{m.features[p]}</bdi>" in line and "data-v" in line)
    shown = [float(v) for v in re.findall(r'data-v="([^"]+)"', row)][:3]
    assert shown == pytest.approx([m.mean[p, q], lower, C[p, q]], rel=1e-4)
    assert f"{upper:.3f}".replace("-", "−") in row


@pytest.mark.parametrize("label", NASTY)
def test_names_are_escaped(label):
    """A label is shown as it is written, wherever it appears, and is never markup."""
    features = [label, *(f"f{i}" for i in range(59))]
    posterior, joined, _ = made_up(features=features, responses=[label + " y", "b", "c"])
    posterior.tree["posterior"]["C"].values[:, :, 0] += 0.7  # selected, so it appears everywhere
    page = render(collect(posterior, joined=joined, title=label))
    reader = read(page)
    assert {tag for tag, _ in reader.tags} <= ALLOWED
    assert not any(name.startswith("on") or name == "srcdoc" for _, attrs in reader.tags for name in attrs)
    assert page.count("<script>") == 1
    assert f"<bdi>{html.escape(label)}</bdi>" in page


ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "a", "div", "nav", "svg", "path", "ul", "li", "button", "header", "p",
    "h1", "h2", "h3", "bdi", "span", "b", "main", "section", "rect", "text", "table", "thead", "tbody", "tr", "th", "td",
    "figure", "line", "circle", "small", "strong", "label", "input", "select", "option", "image", "code", "pre", "details",
    "summary", "footer", "script", "caption",
}  # fmt: skip


def test_csv_does_not_carry_formulas():
    from base64 import b64decode

    posterior, _, _ = made_up(features=["=1+1", "@x", *(f"f{i}" for i in range(58))])
    page = render(collect(posterior))
    raw = b64decode(re.search(r"data:text/csv;charset=utf-8;base64,([^\"]+)", page).group(1)).decode()
    assert "\n=1" not in raw
    assert "\n@x" not in raw


@pytest.mark.parametrize(("P", "Q", "active"), [(60, 3, 0), (60, 1, 4), (80, 60, 6), (2, 1, 1)])
def test_odd_shapes(P, Q, active):
    posterior, joined, _ = made_up(P=P, Q=Q, active=active, draws=60)
    page = render(collect(posterior, joined=joined))
    read(page)
    assert ("No feature is selected" in page) == (active == 0)
    assert len(page.encode()) < 2_000_000
    assert "nan" not in re.sub(r"[A-Za-z]*nan[A-Za-z]+", "", page.split("<body>")[1].lower())


def test_many_features_stay_small():
    """P = 10⁵: the table and the map are bounded, so is the page."""
    posterior, _, _ = made_up(P=100_000, Q=2, active=30, chains=2, draws=10)
    page = render(collect(posterior, top=100))
    assert len(page.encode()) < 600_000
    assert "a pixel shows the strongest of its 112" in page


def test_too_many_selected_says_so():
    posterior, _, _ = made_up(P=60, active=30)
    page = render(collect(posterior, top=10))
    assert "10 of 30 selected features are listed" in page


def test_checks_find_a_wrong_model():
    """Predictive shares are middling for the model that made the data, and extreme when the noise is understated."""
    posterior, joined, _ = made_up(m=200)
    rng = np.random.default_rng(0)
    good = check(posterior, Rows.of(joined.X, joined.Y), 0.95, rng)
    assert (np.minimum(good.p_spread, 1 - good.p_spread) > 0.02).all()
    assert (good.coverage > 0.88).all()
    posterior.tree["posterior"]["Sigma"].values[...] *= 0.05
    bad = check(posterior, Rows.of(joined.X, joined.Y), 0.95, rng)
    assert (bad.coverage < 0.7).all()
    assert (bad.p_spread < 0.05).any()


def test_verdict_has_three_grades():
    posterior, _, _ = made_up(P=300, chains=4, draws=400)
    posterior.tree["posterior"]["C"].values[...] = np.random.default_rng(5).standard_normal(posterior.C.shape)
    wander = posterior.C.values
    wander[0, :, 0, 0] += 0.6
    assert standing(collect(posterior))[0] == "almost converged"
    assert "almost converged" in render(collect(posterior))
    wander[0] += 3.0
    assert standing(collect(posterior))[0] == "not converged"
    page = render(collect(posterior))
    assert "nothing below is a result yet" in page
    assert page.index("not converged") < page.index("features selected")
    assert "Selected features (provisional)" in page


def test_edges_are_recognised_and_drawn():
    codes = [f"R{i}" for i in range(12)]
    edges = [f"{a}--{b}" for i, a in enumerate(codes) for b in codes[i + 1 :]][:60]
    assert split_edges(edges, {})[0] == ("R0", "R1")
    assert split_edges([f"gene-{i}" for i in range(30)], {}) == {}
    assert split_edges([f"a{i}" for i in range(30)], {}) == {}
    posterior, _, _ = made_up(features=edges)
    places = [Region(c, "one" if i % 2 else "two", 5.0 * i - 30, 3.0 * i - 20, 2.0 * i) for i, c in enumerate(codes)]
    page = render(collect(posterior, regions=places))
    assert page.count('class="edge') == 4 * 4  # four edges, in the circle and in three views
    assert "Brain from above" in page
    assert "Coordinates were not given" in render(collect(posterior))


def test_regions_file(tmp_path):
    path = tmp_path / "rois.csv"
    path.write_text("roi,x_mni,y_mni,z_mni\na,1,2,3\n", encoding="utf-8")
    assert read_regions(path)["a"] == Region("a", "regions", 1.0, 2.0, 3.0)
    path.write_text("roi,x\na,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="code, x, y, z"):
        read_regions(path)


def test_write_from_file_and_refuse_others(tmp_path):
    posterior, _, _ = made_up()
    posterior.save(tmp_path / "posterior.nc")
    out = report.write(tmp_path / "posterior.nc", tmp_path / "r.html", title="From a file")
    assert "From a file" in out.read_text(encoding="utf-8")
    with pytest.raises(UnknownNameError):
        report.write(tmp_path / "absent.nc", tmp_path / "x.html")
    with pytest.raises(InputError):
        report.write(3, tmp_path / "x.html")
    with pytest.raises(StudyError):
        report.write(tmp_path, tmp_path / "x.html")


def test_helpers():
    assert text("<a>\u202e\x1b") == "&lt;a&gt;" + 2 * "\N{REPLACEMENT CHARACTER}"
    assert text("one line\nand another") == "one line\nand another"
    assert el("a", "x<y", href='"') == '<a href="&quot;">x&lt;y</a>'
    assert short("abcdefghij", 5) == "ab…ij"
    assert [fixed(v) for v in (-0.004, -0.006, 0.0, float("nan"))] == ["0.00", "−0.01", "0.00", "–"]
    assert [number(v) for v in (0.0, -1.5, 1234567.0, float("nan"), 0.00012)] == ["0", "−1.5", "1,234,567", "–", "0.00012"]
    assert [words for _, words in Scale(0.9985, 1.0105, 0, 1).marks(3)] == ["1.000", "1.005", "1.010"]
    ticks = Scale(-3, 7, 0, 100).ticks(4)
    assert all(-3 <= t <= 7 for t in ticks)
    assert 0.0 in ticks


# The study folder, the monitor.


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    import intarsia

    where = tmp_path_factory.mktemp("server") / "studies" / "liver"
    parties = sites(frames())
    intarsia.fit(parties, study(parties, fit={"draws": 80, "warmup": 60, "chains": 2, "thin": 1, "seed": 1}), folder=where)
    return where


def test_report_from_the_study_folder(fitted, tmp_path):
    out = report.write(fitted, tmp_path / "report.html")
    page = out.read_text(encoding="utf-8")
    read(page)
    assert "ΦΦ" not in page
    assert "Mutual information" in page
    assert "What these checks cannot see" in page
    assert "clinic_0" in page


def test_report_command(fitted, tmp_path, capsys):
    from intarsia.cli import main

    assert main(["report", str(fitted), "-o", str(tmp_path / "r.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == (tmp_path / "r.html").stat().st_size
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "x.html")]) == 4


def get(address: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def monitor(fitted):
    found = Monitor(fitted.parents[1], port=0)
    found.start()
    yield found
    found.close()


def test_monitor_shows_the_study_and_its_report(monitor, fitted):
    code, page = get(monitor.address)
    assert code == 200
    read(page)
    assert "clinic" in page
    assert "Open the report" in page
    state = json.loads(get(monitor.address + "state.json")[1])
    assert state["studies"] == ["liver"]
    assert all(step["done"] for step in state["study"]["steps"])
    code, body = get(monitor.address + "report?study=liver")
    assert code == 200
    assert "Selected features" in body


def test_monitor_is_read_only_and_bound(monitor):
    request = urllib.request.Request(monitor.address, data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request, timeout=10)
    assert get(monitor.address, Host="evil.example")[0] == 403
    assert get(monitor.address + "etc/passwd")[0] == 404
    assert get(monitor.address + "?study=../../etc")[0] == 200  # an unknown name is no path
    assert "No study yet" in get(monitor.address + "?study=../../etc")[1]
    assert monitor.server.server_address[0] == "127.0.0.1"


def test_monitor_wants_a_token_off_loopback(fitted):
    assert [loopback(h) for h in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "10.0.0.1")] == [True, True, True, False, False]
    with pytest.raises(InputError, match="16"):
        Monitor(fitted, port=0, token="short")
    found = Monitor(fitted, host="0.0.0.0", port=0)
    found.start()
    try:
        port = found.server.server_address[1]
        assert found.token is not None
        assert get(f"http://127.0.0.1:{port}/")[0] == 401
        assert get(f"http://127.0.0.1:{port}/?token=wrong-wrong-wrong-wrong")[0] == 401
        assert get(f"http://127.0.0.1:{port}/?token={found.token}")[0] == 200
        assert get(f"http://127.0.0.1:{port}/", Cookie=f"token={found.token}")[0] == 200
    finally:
        found.close()


def test_monitor_of_a_running_fit(tmp_path):
    """Progress files give the bars, the time left and R̂; a half-written or missing file does no harm."""
    progress = {"chain": 0, "sweeps": 500, "total": 1000, "warmup": 200, "kept": 300, "seconds": 50.0}
    moments = {"mean": [0.0, 1.0], "square": [299.0, 299.0]}
    for k, shift in enumerate((0.0, 0.5)):
        content = {**progress, **moments, "chain": k, "mean": [shift, 1.0]}
        (tmp_path / f"progress-{k}.json").write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "progress-2.json").write_text('{"sweeps": 4', encoding="utf-8")
    rows = chains(tmp_path, 4)
    assert [row["sweeps"] for row in rows] == [500, 500, 0, 0]
    assert rows[0]["left"] == pytest.approx(50.0)
    assert rows[0]["rhat"] == pytest.approx(np.sqrt((299 + 300 * 0.125) / 300), rel=1e-9)
    later = (tmp_path / "progress-0.json").stat().st_mtime + 300
    assert chains(tmp_path, 1, later)[0]["silent"] == pytest.approx(300, abs=1)


def test_the_monitor_foretells_the_next_look_and_not_the_end():
    """Chains of a run that ends by itself count to the next look: close to it there is not "0 s left", at it nothing is done."""
    from intarsia.report.monitor_page import _fit

    def said(sweeps, looks):
        rows = [
            {"chain": k, "sweeps": s, "total": 600, "warmup": 500, "silent": None, "left": (600 - s) / 100, "rhat": None}
            for k, s in enumerate(sweeps)
        ]
        return str(_fit({"fit": None, "chains": rows, "looks": looks}))

    before = said([580, 100], looks=True)
    assert "next look in less than 1 s" in before
    assert "next look in 5 s" in before
    assert "580 of 600 sweeps to the next look" in before
    assert " left" not in before
    between = said([600, 590], looks=True)
    assert "ready for the look" in between
    at = said([600, 600], looks=True)
    assert at.count("looking whether it has converged") == 2
    assert not any(word in between + at for word in ("done", " left"))
    fixed = said([580, 100], looks=False)
    assert "less than 1 s left" in fixed
    assert "5 s left" in fixed
    assert "look" not in fixed
    assert said([600, 600], looks=False).count("done") == 2


def test_monitor_survives_an_unreadable_study(tmp_path):
    (tmp_path / "studies" / "broken").mkdir(parents=True)
    (tmp_path / "studies" / "broken" / "study.toml").write_text("nonsense = <b>", encoding="utf-8")
    assert [p.name for p in find_studies(tmp_path)] == ["broken"]
    found = Monitor(tmp_path, port=0)
    thread = found.start()
    try:
        code, page = get(found.address)
        assert code == 200
        assert "not valid TOML" in page
        assert "<b>" not in page.split('id="live"')[1].split("</section>")[0]
    finally:
        found.close()
    assert isinstance(thread, threading.Thread)


def test_plain_lines_and_live_bar(capsys):
    import io

    from intarsia.progress import Bar, clock
    from intarsia.server.sampler.settings import Progress

    pipe = io.StringIO()
    with Bar(pipe) as bar:
        bar(Progress([10, 0], 100, 50, 1.0, 9.0, float("nan")))
        bar(Progress([100, 100], 100, 50, 9.0, 0.0, 1.004))
        bar(Progress([100, 100], 100, 50, 9.0, 0.0, 1.004))
    assert pipe.getvalue().count("\n") == 1
    assert "100%" in pipe.getvalue()
    assert "1.004" in pipe.getvalue()
    with Bar(pipe, live=True) as bar:
        bar(Progress([10, 0], 100, 50, 1.0, 9.0, float("nan")))
    assert "chain 2" in pipe.getvalue()
    assert [clock(s) for s in (5, 600, 9000)] == ["5 s", "10 min", "2.5 h"]


def test_assets_are_packaged():
    where = Path(report.__file__).parent
    assert all((where / name).is_file() for name in ("style.css", "report.js", "figures.js", "monitor.js"))


# What speaks against a fit.


def test_out_of_sample_figures_stand_beside_in_sample_ones(page):
    assert "What speaks against this fit" in page
    assert "out-of-sample R² (leave-one-out)" in page
    assert "variance explained in-sample" in page
    assert "Correlation of the noise between responses" in page
    assert "0 (taken as independent)" in page


def test_how_much_another_sketch_would_change_the_figures():
    """R² .13 ± .04 under one Φ may be "not beyond chance" under another; where nothing was mixed there is no other."""
    posterior, joined, _ = made_up(m=200)
    m = collect(posterior, joined=joined)
    loo = replace(m.loo, r2=np.array([0.13, 0.9, 0.0]), r2_se=np.array([0.04, 0.01, 0.04]))
    m.assessment = replace(m.assessment, loo=loo)
    said = doubts.unseen(m, None)
    assert said.count("perhaps not beyond chance") == 1
    assert "0.03 to 0.23" in said  # 1.96 · √(2 (1 − 200/900)) · .04 either way
    assert "0.88 to 0.92" in said
    m.attrs["n"] = 200
    assert "another Φ" not in doubts.unseen(m, None)


def test_doubts_are_said_in_words():
    posterior, joined, _ = made_up(m=200)
    rng = np.random.default_rng(3)
    Y = np.array(joined.Y)
    Y[:, 2] = rng.standard_normal(len(Y))  # the fit knows nothing of it
    shared = rng.standard_normal(len(Y))
    Y[:, 0] += shared
    Y[:, 1] += shared
    posterior.tree["posterior"]["Sigma"].values[..., np.arange(3), np.arange(3)] = 1.3
    m = collect(posterior, joined=replace(joined, Y=Y))
    m.refits = {"replication": [{"features": ["f001"], "probability": [0.99, 0.55], "replicates": False}]}
    section = render(m).split('id="against"')[1].split("</section>")[0]
    assert "y2 is not predicted beyond chance: out-of-sample R²" in section
    assert "The residuals of y0 and y1 correlate at 0." in section
    assert "noise = &quot;correlated&quot;" in section
    assert "f001 does not replicate" in section


def with_twins():
    """A posterior with its rows, its draws to be changed, X with feature 7 nearly a copy of feature 6, and a generator."""
    posterior, joined, _ = made_up(P=20)
    draws = Draws(np.array(posterior.C.values), np.array(posterior.Sigma.values), {"tau": posterior.tau.values})
    rng = np.random.default_rng(0)
    X = np.array(joined.X)
    X[:, 7] = X[:, 6] + 0.02 * rng.standard_normal(len(X))
    return posterior, joined, draws, X, rng


def test_sets_and_covariates_have_their_tables():
    posterior, joined, draws, X, rng = with_twins()
    chains, number, _P, Q = draws.C.shape
    first = rng.random((chains, number, 1)) < 0.5
    draws.C[:, :, 6], draws.C[:, :, 7] = np.where(first, 0.9, 0.0), np.where(first, 0.0, 0.9)
    draws.C[:, :, 6:8] += 0.01 * rng.standard_normal((chains, number, 2, Q))
    effects = CovariateEffects(0.5 + 0.01 * rng.standard_normal((chains, number, 1, Q)), ("<age>",), ("clinic",))
    made = Posterior.from_draws(draws, Names(posterior.features, posterior.responses), effects=effects)
    keep(made, assess(made, Rows.of(X, joined.Y, rng.standard_normal((len(X), 1))), X=X))
    page = render(collect(made))
    assert "out-of-sample R² (leave-one-out)" in page  # kept with the draws, so it needs no sketches
    assert "Sets of interchangeable features" in page
    # Only a row's heading never wraps, and a set has many members: its heading is a number.
    assert '<th scope="row">1</th><td data-label="one of"><bdi>f006</bdi> (data), <bdi>f007</bdi> (data)</td>' in page
    assert "Everything on this page is adjusted for &lt;age&gt;" in page
    assert re.search(r'<td data-label="[^"]+">0\.500<br><small class="note">0\.4\d\d to 0\.5\d\d</small></td>', page)


def test_a_set_stands_beside_the_selected_features_in_forests_and_in_the_table_for_a_paper(tmp_path, capsys):
    """None of its members is selected by itself, so that it would be missing where a paper looks."""
    posterior, joined, draws, X, rng = with_twins()
    chains, number, _P, Q = draws.C.shape
    first = rng.random((chains, number)) < 0.5
    draws.C[:, :, 6:8] = 0.1 * rng.standard_normal((chains, number, 2, Q)) * np.array([0.1, 1.0, 1.0])
    draws.C[:, :, 6, 0] += np.where(first, 0.9, 0.0)
    draws.C[:, :, 7, 0] += np.where(first, 0.0, 0.9)
    draws.C[:, :, 6:8, 1] += 0.15  # the sum is two standard deviations from zero: an interval without zero, and no finding
    made = Posterior.from_draws(draws, Names(posterior.features, posterior.responses))
    keep(made, assess(made, Rows.of(X, joined.Y), X=X))
    page = render(collect(made))
    forests = re.findall(r"<h3><bdi>(y\d)</bdi> <small>([^<]*)</small></h3>(.*?)</figure>", page, flags=re.DOTALL)
    assert [name for name, _, _ in forests] == ["y0", "y1", "y2"]
    assert all("one of set 1: " in drawn for _, _, drawn in forests)
    assert [", 1 set" in said for _, said, _ in forests] == [True, False, False]
    made.save(tmp_path / "posterior.nc")
    assert main(["report", str(tmp_path / "posterior.nc"), "--table", str(tmp_path / "t.csv"), "--selected"]) == 0
    assert "coefficients of selected features, and 1 common effect of sets of interchangeable" in capsys.readouterr().out
    with open(tmp_path / "t.csv") as file:
        rows = list(csv.DictReader(file))
    (of_set,) = [row for row in rows if row["role"] == "set"]
    assert (of_set["feature"], of_set["response"], of_set["set"]) == ("one of f006, f007", "y0", "1")
    assert (of_set["selected"], of_set["selected_here"]) == ("True", "True")
    assert float(of_set["effect"]) == pytest.approx(0.9, abs=0.15)
    assert float(of_set["local_fdr"]) < 0.001
    assert main(["report", str(tmp_path / "posterior.nc"), "--table", str(tmp_path / "all.csv")]) == 0
    with open(tmp_path / "all.csv") as file:
        assert {row["role"] for row in csv.DictReader(file)} == {"feature"}


def test_the_report_reads_the_assessment_that_was_kept(monkeypatch):
    """A fit is diagnosed and selected from once; the report does neither."""
    from intarsia.server.assess import assessment as module

    posterior, joined, _ = made_up()
    keep(posterior, assess(posterior, Rows.of(joined.X, joined.Y), X=joined.X))
    for name in ("diagnose", "select", "leave_one_out"):
        monkeypatch.setattr(module, name, None)
    assert "Selected features" in render(collect(posterior, joined=joined))


def test_the_monitor_names_every_absent_site_outside_the_pill():
    """A pill holds one word; five long names below it."""
    from intarsia.report.monitor_page import page

    names = [f"hospital-of-the-district-{i}" for i in range(5)]
    steps = [{"step": "alignment", "done": False, "missing": names}]
    study = {"name": "s", "title": "", "id": "s", "run": "ab" * 16, "hash": "cd" * 32, "steps": steps, "aligned": None, "m": 9}
    study |= {"fit": None, "chains": [], "looks": True, "sites": [], "events": [], "report": False, "left_out": {"mri": 1200}}
    met = page({"studies": ["s"], "study": study | {"aligned": 300}}, part=True)
    assert "300 subjects are at all sites; m = 9 sketch rows. Left out, because not all sites have them: 1,200 of mri." in met
    made = page({"studies": ["s"], "study": study}, part=True)
    assert f"waiting for {', '.join(names)}" in made
    pills = re.findall(r'<span class="tag[^"]*">([^<]*)</span>', made)
    assert pills == ["now"]


def test_a_pipe_is_written_to_and_not_put_aside(tmp_path):
    """`-o` of a device or a pipe: as root, a rename would take its place for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    posterior, joined, _ = made_up(P=8, Q=2, draws=30)
    report.write(posterior, pipe, joined=joined)
    reader.join(timeout=30)
    assert read[0].startswith(b"<!doctype html>")
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
