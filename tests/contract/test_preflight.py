"""What a site checks before a sketch leaves, on real tables with the real Φ; the private sketch; the command."""

import json
from dataclasses import replace

import numpy as np
import pytest

from intarsia.cli import main
from intarsia.errors import InputError, PrivacyError
from intarsia.privacy.ledger import Ledger
from intarsia.site.data.columns import profile
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.preflight import SiteRules, preflight
from intarsia.site.self_attack import attack_as_server, real_phi
from intarsia.site.sketch.private import longest_column, private_sketch, public_bound
from intarsia.site.sketch.sketch import ClippedNoise, SketchTerms, sketch
from intarsia.wire.study import Study

N = 300


def columns(n=N, seed=0):
    rng = np.random.default_rng(seed)
    data = {f"x{j}": rng.standard_normal(n) for j in range(6)}
    data["y"] = data["x0"] + rng.standard_normal(n)
    data["id"] = np.array([f"s{i}" for i in range(n)])
    return data, rng


def table(**extra):
    data, _ = columns()
    return Table.open(data | extra, id="id", responses=["y"])


def study(m=30, kind="orthonormal", run="ab" * 16, **privacy):
    return Study.from_dict(
        {
            "id": "demo",
            "run": run,
            "sketch": {"m": m, "kind": kind, "precision": "float32"},
            "privacy": privacy,
            "site": [
                {"name": "clinic", "features": ["*"], "responses": ["y"]},
                {"name": "lab", "features": ["g1", "g2"]},
            ],
        }
    )


def test_profile_finds_what_is_dangerous():
    data, rng = columns()
    extra = {
        "sex": np.tile([0.0, 1.0], N // 2),
        "rare": np.r_[np.ones(4), np.zeros(N - 4)],
        "mostly_zero": np.r_[rng.gamma(2, size=20), np.zeros(N - 20)],
        "outlier": np.r_[1e4, rng.standard_normal(N - 1)],
        "copy": 3 - 2 * data["x1"],
        "again": data["x2"] * 1e-3,
        "twice": 5 * data["x3"] + 1,
        "dose": rng.integers(0, 3, N).astype(float),
    }
    found = profile(table(**extra))
    facts = {f.name: f for f in found.facts}
    assert facts["sex"].distinct == 2
    assert facts["sex"].smallest_level == N // 2
    assert facts["rare"].off_mode == 4
    assert facts["mostly_zero"].off_mode == 20
    assert facts["mostly_zero"].distinct > 12
    assert facts["outlier"].dominance > 0.99
    twins = {name: f.duplicate_of for name, f in facts.items() if f.duplicate_of}
    assert twins == {"copy": "x1", "again": "x2", "twice": "x3"}
    assert facts["dose"].distinct == 3
    assert facts["x0"].dominance < 0.1
    assert set(found.laws) == {"sex", "rare", "mostly_zero", "dose"}
    assert found.laws["mostly_zero"].slab == pytest.approx(20 / N)


def test_the_gate_reads_a_table_once_where_it_fits_and_judges_the_same_where_it_does_not(monkeypatch, tmp_path):
    data, rng = columns()
    near = data["x1"].copy()
    near[5] += 3
    extra = {"rare": np.r_[np.ones(15), np.zeros(N - 15)], "near": near, "skewed": rng.gamma(0.5, size=N)}
    order, passes, found = rng.permutation(N)[: N - 40], [], {}
    read = Table._clean_blocks

    def counted(self, rows):
        passes.append(1)
        return read(self, rows)

    monkeypatch.setattr(Table, "_clean_blocks", counted)
    key = SketchKey(bytes(32))
    for name, values in (("whole", 1 << 25), ("in pieces", 700)):
        monkeypatch.setattr("intarsia.site.data.table._PASS_VALUES", values)
        monkeypatch.setattr("intarsia.site.data.table.block_rows", lambda _columns: 64)
        passes.clear()
        ledger = Ledger(tmp_path / "ledger")
        check = preflight(table(**extra), key, study(), site="clinic", order=order, own=SiteRules(ledger=ledger, dry=True))
        found[name] = (check.facts, check.verdict, check.claim.content, len(passes))
    whole, pieces = found["whole"], found["in pieces"]
    assert whole[3] == 1
    assert pieces[3] > 3  # each look at the cohort is several passes, and nothing is kept
    assert whole[:3] == pieces[:3]  # to the last bit
    assert {f.rule for f in whole[1].refused} == {"near-duplicate"}
    assert {c.name for c in whole[0].own_columns if c.attacked} == {"rare"}


def test_what_the_gate_read_is_not_kept_after_it():
    data = table()
    with data.reading_once():
        first = [np.hstack(parts) for parts in data.blocks(order=np.arange(9, -1, -1))]
        data.source = None  # nothing is read again
        again = [np.hstack(parts) for parts in data.blocks(order=np.arange(9, -1, -1))]
        assert np.array_equal(first, again)
        with pytest.raises(AttributeError):
            list(data.blocks(order=np.arange(10)))  # other rows are other rows
    with pytest.raises(AttributeError):
        list(data.blocks(order=np.arange(9, -1, -1)))


def test_profile_does_not_depend_on_the_blocks(monkeypatch):
    extra = {"rare": np.r_[np.ones(4), np.zeros(N - 4)], "dose": np.arange(N) % 5.0}
    whole = profile(table(**extra))
    small = table(**extra)
    inner = small.whole_blocks
    monkeypatch.setattr(small, "whole_blocks", lambda rows=None, order=None: inner(7, order))
    for a, b in zip(whole.facts, profile(small).facts):
        assert (a.name, a.distinct, a.smallest_level, a.off_mode, a.duplicate_of) == (
            b.name, b.distinct, b.smallest_level, b.off_mode, b.duplicate_of,
        )  # fmt: skip
        assert a.dominance == pytest.approx(b.dominance)


def test_refuses_and_passes():
    key = SketchKey.new()
    clean = preflight(table(), key, study(), site="clinic")
    clean.verdict.check()
    assert clean.facts.columns == 9  # seven of ours, two that the study lists for the lab
    rare = preflight(table(rare=np.r_[np.ones(4), np.zeros(N - 4)]), key, study(), site="clinic")
    with pytest.raises(PrivacyError, match="rare-level: rare"):
        rare.verdict.check()
    with pytest.raises(PrivacyError, match="ratio"):
        preflight(table(), key, study(m=80), site="clinic").verdict.check()
    with pytest.raises(PrivacyError, match="ratio"):
        preflight(table(), key, study(), site="clinic", own=SiteRules({"max_ratio": 0.05})).verdict.check()
    with pytest.raises(InputError, match="below n"):
        preflight(table(), key, study(m=N), site="clinic")


def test_columns_at_the_other_sites_are_counted_or_unknown():
    key = SketchKey.new()
    patterns = replace(study(), sites=(study().sites[0], replace(study().sites[1], features=("g*",))))
    unknown = preflight(table(), key, patterns, site="clinic")
    assert not unknown.facts.columns_known
    assert unknown.verdict.membership is None
    told = preflight(table(), key, patterns, site="clinic", own=SiteRules(announced={"lab": 2000, "clinic": 7}))
    assert told.facts.columns == 2007
    assert told.verdict.membership > 0.99
    stated = replace(patterns, sites=(patterns.sites[0], replace(patterns.sites[1], columns=2000)))
    assert preflight(table(), key, stated, site="clinic").verdict.membership == told.verdict.membership
    with pytest.raises(InputError, match="announced 1999 columns"):
        preflight(table(), key, stated, site="clinic", own=SiteRules(announced={"lab": 1999}))
    own = replace(study(), sites=(replace(study().sites[0], columns=6), study().sites[1]))
    with pytest.raises(InputError, match="states columns = 6"):
        preflight(table(), key, own, site="clinic")


def near_pairs(n, pairs, rng, people=1):
    """Pairs of 0/1, of genotype and of continuous columns that differ in `people` subjects."""
    out = {}
    for j in range(pairs):
        if j % 3 == 0:
            a = (rng.random(n) < 0.3).astype(float)
        elif j % 3 == 1:
            a = rng.binomial(2, 0.3, n).astype(float)
        else:
            a = rng.standard_normal(n)
        b = a.copy()
        who = rng.choice(n, people, replace=False)
        b[who] = 1 - a[who] if j % 3 == 0 else (a[who] + 1) % 3 if j % 3 == 1 else a[who] + 1 + rng.random(people)
        out[f"a{j}"], out[f"b{j}"] = a, b if j % 2 else 5 - 3 * b  # a scaled and mirrored copy is no disguise
    return out


@pytest.mark.parametrize(("n", "people"), [(1000, 1), (1000, 4), (1000, 9), (300, 3)])
def test_near_duplicates_are_found(n, people):
    rng = np.random.default_rng(8)
    data = near_pairs(n, 30, rng, people) | {f"x{j}": rng.standard_normal(n) for j in range(300)}
    data |= {f"s{j}": (rng.random(n) < rng.uniform(0.1, 0.5)).astype(float) for j in range(300)}
    facts = {f.name: f for f in profile(Table.open(data)).facts}
    found = {name for name, f in facts.items() if f.near_duplicate_of}
    assert found == {f"b{j}" for j in range(30)}
    assert all(facts[f"b{j}"].near_duplicate_of == f"a{j}" for j in range(30))
    assert {facts[name].near_people for name in found if int(name[1:]) % 3 == 0} == {people}


def test_a_pair_that_differs_in_enough_people_passes():
    rng = np.random.default_rng(9)
    data = near_pairs(1000, 9, rng, people=10)
    binary = {name: column for name, column in data.items() if int(name[1:]) % 3 == 0}
    assert not any(f.near_duplicate_of for f in profile(Table.open(binary)).facts)


def test_heavy_tails_alone_make_no_pair():
    rng = np.random.default_rng(13)
    data = {f"c{j}": np.exp(1.3 * rng.standard_normal(200)) for j in range(1500)}
    assert not any(f.near_duplicate_of for f in profile(Table.open(data)).facts)


def test_noise_does_not_hide_a_person():
    """A column with a little noise everywhere and one person who differs by a standard deviation is that person's φ still."""
    rng = np.random.default_rng(10)
    a = rng.standard_normal(1000)
    b = a + 1e-3 * rng.standard_normal(1000)
    b[17] += 1.5
    facts = profile(Table.open({"a": a, "b": b, "c": a + 0.1 * rng.standard_normal(1000)})).facts
    assert [(f.near_duplicate_of, f.near_people) for f in facts] == [(None, None), ("a", 1), (None, None)]


def test_under_differential_privacy_the_gate_looks_at_no_value():
    private = study(kind="gaussian", **PRIVATE)
    refused = preflight(table(rare=np.r_[1.0, np.zeros(N - 1)]), SketchKey.new(), private, site="clinic")
    assert not refused.verdict.refused
    assert not any(c.exposed or c.near_duplicate_of for c in refused.facts.own_columns)
    assert preflight(unreadable(), SketchKey.new(), private, site="clinic").verdict == preflight(
        table(), SketchKey.new(), private, site="clinic"
    ).verdict  # fmt: skip


def test_a_private_sketch_never_refuses_for_what_a_cell_holds():
    """A missing or infinite cell and a constant column leave like any other: an error would tell that they are there."""
    data, _ = columns()
    data["x1"][3], data["x2"][4], data["x3"][:] = np.nan, np.inf, 0.0  # at the public centre: constant after clipping too
    opened = Table.open(data, id="id", responses=["y"])
    plan = study(kind="gaussian", **PRIVATE)
    check = preflight(opened, SketchKey.new(), plan, site="clinic")
    result = private_sketch(opened, SketchKey.new(), SketchTerms.of(plan, "clinic"), ClippedNoise(check.clip, check.noise.w))
    assert list(result.message.features) == list(opened.features)


def test_self_attack_uses_the_real_phi():
    rng = np.random.default_rng(1)
    status = (rng.permutation(N) < 15).astype(float)
    opened, key, plan = table(status=status), SketchKey.new(), study(m=75)
    order = rng.permutation(N)
    check = preflight(opened, key, plan, site="clinic", order=order, order_mac="ab" * 16)
    fact = next(f for f in check.facts.own_columns if f.name == "status")
    assert fact.attacked == "exact"
    assert any(f.rule == "decodable" for f in check.verdict.warnings)
    # The Φ it attacked is the one the sketch uses.
    terms = SketchTerms("demo", plan.run, 75, order_mac="ab" * 16)
    phi = terms.design(key, N)
    sent = sketch(opened, key, terms, order=order).message
    x = status[order]
    np.testing.assert_allclose(sent.X[:, list(sent.features).index("status")], real_phi(phi) @ x / x.std(ddof=1), atol=1e-9)


@pytest.mark.parametrize("kind", ["orthonormal", "gaussian"])
def test_attacks_as_the_server(kind):
    opened = Table.open(np.random.default_rng(0).standard_normal((N, 40)))
    keys = [SketchKey(bytes([k]) * 32) for k in range(4)]
    found = [attack_as_server(opened, SketchTerms("demo", "r", 60, kind).design(key, N), None, "float32") for key in keys]
    assert {one.singletons for one in found} == {0}
    theory = found[0].membership_theory
    assert theory > 0.7  # far from the .5 of a guess
    assert np.mean([one.membership_known_sigma for one in found]) == pytest.approx(theory, abs=0.08)  # each is ± .04
    assert found[0].known_rows_theory == pytest.approx(60 / N * 39 / (N + 39))


def test_rare_columns_are_found_in_what_really_leaves():
    """The attack must scale columns as a site does: else it finds nothing and reassures for nothing."""
    rng = np.random.default_rng(12)
    n, m = 120, 30
    X = (rng.random((n, 900)) < 0.02).astype(float)
    X = X[:, X.sum(axis=0) > 0]
    opened = Table.open({f"c{j}": X[:, j] for j in range(X.shape[1])})
    phi = SketchTerms("demo", "r", m).design(SketchKey(bytes(range(32))), n)
    found = attack_as_server(opened, phi, None, "float32")
    assert found.singletons > 40
    assert found.singleton_precision > 0.9


def test_time_is_bounded():
    rng = np.random.default_rng(2)
    many = {f"b{j}": (rng.random(N) < 0.1).astype(float) for j in range(40)}
    check = preflight(table(**many), SketchKey.new(), study(m=75), site="clinic", own=SiteRules({"attack_seconds": 0.0}))
    assert not check.facts.attack_complete
    assert any("stopped after" in f.text for f in check.verdict.findings)


def unreadable():
    """The same people, in a table whose values nobody may read."""
    opened = table()
    opened.blocks = opened.raw_blocks = None
    return opened


def test_refusals_are_booked_and_dry_runs_are_not(tmp_path):
    ledger, key = Ledger(tmp_path), SketchKey.new()
    rare = table(rare=np.r_[np.ones(4), np.zeros(N - 4)])
    assert preflight(rare, key, study(), site="clinic", own=SiteRules(ledger=ledger, dry=True)).verdict.refused
    assert ledger.entries() == []
    preflight(rare, key, study(), site="clinic", own=SiteRules(ledger=ledger))
    assert [(e.state, e.note) for e in ledger.entries()] == [("tried", ""), ("refused", "rare-level")]
    repaired = preflight(table(), key, study(), site="clinic", own=SiteRules(ledger=ledger))  # the same people
    assert repaired.reserve().state == "reserved"


def test_ledger_in_the_flow(tmp_path):
    ledger, key = Ledger(tmp_path), SketchKey.new()
    check = preflight(table(), key, study(), site="clinic", own=SiteRules(ledger=ledger))
    entry = check.reserve()
    ledger.release(entry, b"sketch")
    again = preflight(table(), key, study(), site="clinic", own=SiteRules(ledger=ledger))
    assert again.reserve().hash == ledger.entries()[-1].hash
    data, _ = columns()
    data["x3"] = data["x3"] + 1e-9  # other values, same people
    changed = preflight(Table.open(data, id="id", responses=["y"]), key, study(), site="clinic", own=SiteRules(ledger=ledger))
    with pytest.raises(PrivacyError, match="one-time"):
        changed.reserve()
    with pytest.raises(PrivacyError, match="another cohort"):  # before any value is looked at
        preflight(unreadable(), key, study(), site="clinic", own=SiteRules(ledger=ledger), order=np.arange(N - 1))
    second = preflight(table(), key, study(run="cd" * 16), site="clinic", own=SiteRules(ledger=ledger))
    assert second.facts.history_m == 30
    assert second.verdict.ratio == pytest.approx(60 / N)


# --- differential privacy ---------------------------------------------------------------------------------------------

PRIVATE = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "row_bound": {"clinic": 3.0, "lab": 1.0},
    "centres": {"clinic": {"*": 0.0}, "lab": {"*": 0.0}},
    "scales": {"clinic": {"*": 1.0, "x0": 2.0}, "lab": {"*": 1.0}},
}


def test_private_preflight_and_sketch():
    opened, key = table(), SketchKey.new()
    plan = study(kind="gaussian", **PRIVATE)
    check = preflight(opened, key, plan, site="clinic")
    assert check.guarantee.t == pytest.approx(sum((s.row_bound / s.w) ** 2 for s in check.guarantee.sites.values()))
    result = private_sketch(opened, key, SketchTerms.of(plan, "clinic"), ClippedNoise(check.clip, check.noise.w))
    assert result.message.noise == check.noise.w
    phi = SketchTerms("demo", plan.run, 30, "gaussian").design(key, N)
    Phi = real_phi(phi)
    assert result.longest == pytest.approx(np.linalg.norm(Phi, axis=0).max())
    assert longest_column(phi) == pytest.approx(result.longest)
    data, _ = columns()
    Z = np.column_stack([data[name] for name in (*opened.features, *opened.responses)])
    Z[:, 0] /= 2
    Z *= np.minimum(1, 3.0 / np.linalg.norm(Z, axis=1))[:, None]
    sent = np.hstack([result.message.X, result.message.Y])
    noise = (sent - Phi @ Z) * np.sqrt(N) / check.noise.w
    assert abs(noise.mean()) < 0.3
    assert noise.std() == pytest.approx(1, abs=0.2)
    again = private_sketch(opened, key, SketchTerms.of(plan, "clinic"), ClippedNoise(check.clip, check.noise.w))
    assert not np.allclose(again.message.X, result.message.X)  # the noise does not come from the key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"row_bound": {"lab": 1.0}}, "row_bound|row bound"),
        ({"centres": {"clinic": {"x0": 0.0}}}, "public centres for 6 columns"),
        ({"scales": {}}, "public scales"),
    ],
)
def test_missing_public_constants_are_named(changes, words):
    given = PRIVATE | changes
    with pytest.raises(InputError, match=words):
        public_bound(["x0", "x1", "x2", "x3", "x4", "x5", "y"], "clinic", given["row_bound"], given["centres"], given["scales"])


def test_no_noise_no_private_sketch():
    bound = public_bound(["x0"], "clinic", {"clinic": 1.0}, PRIVATE["centres"], PRIVATE["scales"])
    with pytest.raises(PrivacyError, match="noise"):
        private_sketch(table(), SketchKey.new(), SketchTerms("s", "r", 10, "gaussian"), ClippedNoise(bound, 0.0))


# --- the command ------------------------------------------------------------------------------------------------------


def test_plan_command(capsys, tmp_path):
    assert main(["privacy", "plan", "--n", "500", "--features", "300", "--responses", "5"]) == 0
    text = capsys.readouterr().out
    assert "recommended m = 58" in text
    assert "∞" in text
    assert main(["privacy", "plan", "--n", "500", "--features", "300", "--responses", "5", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    rows = plan["rows"]
    assert rows[-1]["upper_bits_per_subject"] == "infinite"
    finite = [r for r in rows if r["upper_bits_per_subject"] != "infinite"]
    for name, sign in (("membership_auc", 1), ("known_phi_r2", 1), ("rate", -1), ("upper_bits_per_subject", 1)):
        values = [sign * r[name] for r in finite]
        assert values == sorted(values)
    picture = tmp_path / "plan.png"
    assert main(["privacy", "plan", "--n", "5000", "--features", "30", "--responses", "2", "--plot", str(picture)]) == 0
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    "wrong",
    [
        ["--n", "100", "--features", "10", "--responses", "1", "--m", "200"],
        ["--n", "100", "--features", "0", "--responses", "1"],
        ["--n", "100", "--features", "10", "--responses", "1", "--epsilon", "1"],
        [
            "--n",
            "100",
            "--features",
            "10",
            "--responses",
            "1",
            "--epsilon",
            "-1",
            "--delta",
            "1e-6",
            "--kind",
            "gaussian",
        ],
        ["--n", "100", "--features", "10", "--responses", "1", "--history", "30"],
        ["--n", "100", "--features", "10", "--responses", "1", "--rank", "2"],
    ],
)
def test_plan_refuses_nonsense(wrong, capsys):
    assert main(["privacy", "plan", *wrong]) == 2
    assert "unexpected" not in capsys.readouterr().err


def test_attack_command(capsys, tmp_path):
    rng = np.random.default_rng(4)
    data, _ = columns(200)
    data["status"] = (rng.permutation(200) < 12).astype(float)
    names = list(data)
    lines = [",".join(names)] + [",".join(str(data[c][i]) for c in names) for i in range(200)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    common = ["privacy", "attack", str(path), "--id", "id", "--responses", "y"]
    assert main([*common, "--m", "60", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["columns"][0]["name"] == "status"
    assert report["columns"][0]["attacked"] == "exact"
    assert main([*common, "--m", "60"]) == 0
    assert "status" in capsys.readouterr().out
    assert main(common) == 2
    assert "--m" in capsys.readouterr().err
    assert main([*common, "--m", "60", "--transform", "rank-normal", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert scored["blind_danger"] < report["blind_danger"]


def test_attack_on_a_sites_folder_and_a_database(capsys, tmp_path):
    """What site.toml says of the columns holds; a wrong or missing site of the study is refused, not passed over."""
    import sqlite3

    import pandas as pd

    data, _ = columns(200)
    with sqlite3.connect(tmp_path / "t.sqlite") as base:
        pd.DataFrame(data).to_sql("visits", base, index=False)
    common = ["privacy", "attack", str(tmp_path / "t.sqlite"), "--id", "id", "--m", "40"]
    assert main(common) == 2
    said = capsys.readouterr().err
    assert "--query of a command" in said
    assert "There are: visits." in said
    assert main([*common, "--query", "visits", "--seconds", "1"]) == 0
    said = capsys.readouterr().out
    assert "rest on 40 subjects held back: by chance they are off by up to 0.10" in said
    assert "All this is of the table's 7 columns alone." in said
    folder = tmp_path / "clinic"
    main(["site", "init", str(folder), "--name", "clinic", "--table", str(tmp_path / "t.sqlite"), "--query", "visits",
          "--id", "id", "--responses", "y", "--ignore", "x0"])  # fmt: skip
    plan = tmp_path / "study.toml"
    main(["study", "new", str(plan), "--id", "s", "--m", "40", "--site", "clinic", "--responses", "clinic=y"])
    capsys.readouterr()
    assert main(["privacy", "attack", str(folder), "--study", str(plan), "--seconds", "1", "--json"]) == 0
    named = {row["name"] for row in json.loads(capsys.readouterr().out)["columns"]}
    assert "y" in named
    assert not named & {"x0", "id"}
    assert main(["privacy", "attack", str(folder), "--study", str(plan), "--id", "id"]) == 2
    assert "Leave out --id" in capsys.readouterr().err
    assert main([*common, "--query", "visits", "--study", str(plan)]) == 2
    assert "Which site of the study is it? Give --site: clinic." in capsys.readouterr().err
    assert main([*common, "--query", "visits", "--study", str(plan), "--site", "clinik"]) == 2
    assert "The study has no site 'clinik'" in capsys.readouterr().err


def test_ledger_command(capsys, tmp_path):
    assert main(["privacy", "ledger", str(tmp_path)]) == 2
    ledger = Ledger(tmp_path)
    preflight(table(), SketchKey.new(), study(), site="clinic", own=SiteRules(ledger=ledger)).reserve()
    assert main(["privacy", "ledger", str(tmp_path), "--json"]) == 0
    capsys.readouterr()
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"m":30', b'"m":10'))
    assert main(["privacy", "ledger", str(tmp_path)]) == 6
    assert "chain" in capsys.readouterr().err
