"""The lab from its command line: run, tables, figures, at the smallest size."""

import json

from experiments.paper.runner import read_rows

from intarsia.cli import main


def test_simulation_1_from_run_to_table(tmp_path, capsys):
    where = ["--size", "smoke", "--results", str(tmp_path)]
    assert main(["lab", "run", "sim1", *where, "--workers", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = read_rows(told["file"])
    assert told["rows"] == len(rows) == 9  # both models pooled and at two m, the default at two m, and MBSP
    sketched = [row for row in rows if row["m"]]
    assert {row["method"] for row in sketched} == {"intarsia", "horseshoe", "BayesVFLReg"}
    for row in sketched:
        if row["method"] == "intarsia":  # there is no pooled fit of the same model to be compared with
            continue
        # the printed formula flatters; the exact affinities are affinities
        assert float(row["acc_paper_nz"]) > 0.9
        assert 0 < float(row["acc_gauss_nz"]) < 1
        assert 0 < float(row["acc_draws_nz"]) <= 1
        assert float(row["ess_coda"]) > 0
    assert main(["lab", "tables", "sim1", *where]) == 0
    assert "Table 1" in capsys.readouterr().out


def test_simulation_2_has_every_competitor(tmp_path, capsys):
    where = ["--size", "smoke", "--results", str(tmp_path)]
    assert main(["lab", "run", "sim2", *where, "--workers", "1"]) == 0
    rows = {row["method"]: row for row in read_rows(tmp_path / "sim2" / "smoke.csv")}
    assert set(rows) == {"intarsia", "horseshoe", "BayesVFLReg", "dRidge", "locus", "srrr", "ridge", "elasticnet", "MBSP"}
    assert all(float(row["mse_nz"]) < 1 for row in rows.values())
    assert all(rows[method]["coverage"] for method in ("intarsia", "horseshoe", "BayesVFLReg", "dRidge", "locus", "MBSP"))
    capsys.readouterr()


def test_brain_study_from_run_to_figures(tmp_path, capsys):
    where = ["--size", "smoke", "--results", str(tmp_path)]
    assert main(["lab", "run", "brain", *where, "--workers", "1", "--methods", "horseshoe,ridge"]) == 0
    assert main(["lab", "figures", *where, "--out", str(tmp_path / "figures"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = {path.rsplit("/", 1)[-1] for path in told["figures"]}
    assert names == {"figure5-connectome-small.png", "figure6-connectome-small.html"}
