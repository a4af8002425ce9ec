"""A site that was written from the protocol pages alone takes part in a study by files, beside two sites of this program."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.federation import FIT, RESPONSES, RUN, fixed_identity, frames

from intarsia.carriers.files import fit_files
from intarsia.errors import IntarsiaError
from intarsia.server.study.folder import StudyFolder
from intarsia.site.key import SketchKey
from intarsia.site.site import Site
from intarsia.site.sketch.sketch import SketchTerms, sketch
from intarsia.wire.messages import Sketch
from intarsia.wire.study import Study

PROGRAM = Path(__file__).with_name("site.py")
OURS, NAMES = ("clinic", "mri"), ("clinic", "mri", "lab")
Messages = dict[str, bytes]


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("independent_site", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def toml(kind: str) -> str:
    lines = ['id = "two-programs"', f'run = "{RUN}"', 'title = "Zwei Programme, größer"', "", "[sketch]", "m = 20"]
    lines += [f'kind = "{kind}"', "", "[fit]", *(f"{name} = {value}" for name, value in FIT.items()), "power = 1"]
    for name in NAMES:
        lines += ["", "[[site]]", f'features = ["{name}_*"]', f"responses = {json.dumps(RESPONSES[name])}"]
        lines += fixed_identity(name).toml().splitlines()
    return "\n".join(lines) + "\n"


class Parties:
    """Two sites of this program, one of the other, and a server that hands files on."""

    def __init__(self, where: Path, kind: str = "orthonormal"):
        self.tables = frames(200, seed=4)
        self.where, text = where, toml(kind)
        self.study = Study.parse(text)
        (where / "lab").mkdir()
        (where / "lab" / "study.toml").write_text(text, encoding="utf-8")
        self.tables["lab"].to_csv(where / "lab" / "table.csv", index=False)
        lab = fixed_identity("lab")
        private = {"exchange": lab.exchange.private_bytes_raw().hex(), "signing": lab.signing.private_bytes_raw().hex()}
        (where / "lab" / "secret.json").write_text(json.dumps(private | {"name": "lab", "table": "table.csv", "id": "id"}))
        self.ours = {
            name: Site(name, self.tables[name], id="id", responses=RESPONSES[name], identity=fixed_identity(name))
            for name in OURS
        }
        other = program()
        self.other, self.other_refuses = other.Site(where / "lab"), other.RefusedError

    def step(self, step: str, given: Messages | None = None) -> Messages:
        """The three messages of a step, in the order of the roster; each site reads those of the step before."""
        given = given or {}
        made = {name: getattr(site, step)(self.study, *([given] if given else [])) for name, site in self.ours.items()}
        return made | {"lab": self.step_of_the_other(step, given)}

    def step_of_the_other(self, step: str, given: Messages) -> bytes:
        files = [self.where / f"{name}.given" for name in given]
        for path, raw in zip(files, given.values(), strict=True):
            path.write_bytes(raw)
        return bytes(self.other.step(step, files).read_bytes())

    def agree(self) -> Messages:
        """The study key; the announcements."""
        shares = self.step("share", self.step("offer"))
        confirmations = self.step("combine", shares)
        for site in self.ours.values():
            site.seal(self.study, confirmations)
        announced = {name: site.announce(self.study) for name, site in self.ours.items()}
        announced["lab"] = self.step_of_the_other("announce", confirmations)
        for site in self.ours.values():
            site.hear(self.study, announced)
        return announced


@pytest.mark.parametrize("kind", ["orthonormal", "gaussian"])
def test_another_program_gets_the_same_sketch_and_the_server_takes_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = Parties(tmp_path, kind)
    study = parties.study
    parties.agree()
    paths = []
    for name, site in parties.ours.items():
        raw = site.sketch(study)
        paths.append(tmp_path / f"{name}.sketch")
        paths[-1].write_bytes(raw)
        signature = site.signature(study, raw)
        assert signature is not None
        paths[-1].with_name(f"{name}.sketch.sig").write_bytes(signature)
    paths.append(parties.other.step("sketch", []))
    theirs = Sketch.load(paths[-1])
    key = SketchKey(parties.other.state["key"])
    assert {site.key(study) for site in parties.ours.values()} == {key}
    # The same rows in the agreed order, by this program.
    twin = Site("lab", parties.tables["lab"], id="id", responses=["hdl"], identity=fixed_identity("lab"))
    twin.set_key(study, key)
    order = twin.tokens(study)
    ours = sketch(twin.table(), key, SketchTerms.of(study, "lab", order.mac()), order=order.rows).message
    for letter in "XYZ":
        np.testing.assert_allclose(getattr(theirs, letter), getattr(ours, letter), atol=1e-11 * study.sketch.m)
    for field in ("features", "responses", "n", "m", "kind", "precision", "study_hash", "key_fingerprint", "order_mac"):
        assert getattr(theirs, field) == getattr(ours, field), field
    monkeypatch.setattr("intarsia.carriers.files.fit", lambda *_args, **_more: {"verdict": "not asked for"})
    fit_files(paths, study, tmp_path / "server")
    assert sorted(StudyFolder.open(tmp_path / "server").present("sketch")) == sorted(NAMES)


def test_the_server_compares_the_subjects_of_both_programs(tmp_path: Path) -> None:
    from intarsia.wire.alignment import AlignmentReport

    parties = Parties(tmp_path)
    parties.agree()
    reports = {name: AlignmentReport.from_bytes(site.align(parties.study)) for name, site in parties.ours.items()}
    reports["lab"] = AlignmentReport.from_bytes(parties.other.step("align", []).read_bytes())
    assert len({report.mac for report in reports.values()}) == 1
    table = parties.where / "lab" / "table.csv"
    table.write_text(table.read_text().replace("S0003,", "S9999,"))
    other = AlignmentReport.from_bytes(parties.other.step("align", []).read_bytes())
    assert other.mac != reports["clinic"].mac


def test_both_programs_refuse_what_somebody_on_the_way_changed(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    offers = parties.step("offer")
    spoilt = offers | {"lab": offers["lab"].replace(b"X25519+ML-KEM-768", b"X25519")}
    with pytest.raises(IntarsiaError):
        parties.ours["clinic"].share(parties.study, spoilt)
    spoilt = offers | {"clinic": offers["clinic"].replace(b"X25519+ML-KEM-768", b"X25519")}
    with pytest.raises(Exception, match=r"^$|weaker"):  # the library's InvalidSignature says nothing
        parties.step_of_the_other("share", spoilt)
    shares = parties.step("share", offers)
    anew = {name: site.share(parties.study, offers) for name, site in parties.ours.items()}
    assert anew == {name: shares[name] for name in OURS}
    with pytest.raises(parties.other_refuses, match="not every site's share"):
        parties.step_of_the_other("combine", {name: shares[name] for name in OURS})
    before = parties.other.state["share"]
    parties.step_of_the_other("share", offers)  # a second share of the lab's, which the others were not shown
    assert parties.other.state["share"] != before
    with pytest.raises(parties.other_refuses, match="own share was changed"):
        parties.step_of_the_other("combine", shares)


def test_the_independent_site_is_independent_and_short() -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    imported: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        imported |= {alias.name.split(".")[0] for alias in node.names} if isinstance(node, ast.Import) else set()
        imported |= {str(node.module).split(".")[0]} if isinstance(node, ast.ImportFrom) else set()
    assert not imported & {"intarsia", "tests", "experiments"}


def test_it_runs_by_itself(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    command = [sys.executable, "-I", str(PROGRAM), str(tmp_path / "lab"), "offer"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert made.stdout.strip() == str(tmp_path / "lab" / "lab.offer")
    fields: dict[str, Any] = json.loads((tmp_path / "lab" / "lab.offer").read_bytes())
    assert json.loads(fields["body"])["study_hash"] == parties.study.hash
