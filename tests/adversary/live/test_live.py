"""A server with altered software against real sites on loopback. One federation for all attacks.

What must hold: refused in fixed words, nothing of the site's in the answer, settings in place, and the honest study still runs.
"""

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the networked carrier needs intarsia[federation]")

from tests.federation import FIT, NAMES, RESPONSES, frames
from tests.network import PATIENCE_S, Network, wait_until

from intarsia.carriers.flare.engine import session, wait_for_sites
from intarsia.carriers.flare.jobs import write_job
from intarsia.errors import FederationError, InputError, MessageError, StudyError
from intarsia.server.study.folder import dump
from intarsia.site.answer import REFUSALS, REFUSED
from intarsia.site.identity import Identity
from intarsia.wire.steps import STEPS
from intarsia.wire.study import Study

pytestmark = pytest.mark.network
CANARY = "CANARYrarediagnosis"
REPOSITORY = Path(__file__).parents[3]


class Rogue(Network):
    """A federation whose server is the attacker's: its own engine process, any class allowed, any right granted."""

    def __init__(self, root: Path):
        self.tables = frames()
        # A column outside the study, with a text that nobody else may read.
        levels = ["none", CANARY]
        self.tables["mri"]["finding"] = [levels[i % 40 == 0] for i in range(len(self.tables["mri"]))]
        super().__init__(root, self.tables, preshared=False)
        self.study = self.new_study("a")
        self.accept(self.study)
        self.take_over()
        self.start(*NAMES)

    def new_study(self, run: str, **more: Any) -> Study:
        roster = []
        for name in NAMES:
            own = Identity.load(self.root / name)
            entry = {"name": name, "features": [f"{name}_*"], "exchange_key": own.exchange_key, "signing_key": own.signing_key}
            roster.append(entry | ({"responses": RESPONSES[name]} if RESPONSES[name] else {}))
        content = {"id": "liver", "run": run * 32, "sketch": {"m": 20}, "fit": FIT, "site": roster}
        return Study.from_dict(content | more)

    def attack(self, name: str, **options: Any) -> dict[str, Any]:
        """Run one attack inside the server and read what it got."""
        out = self.root / f"{name}-{uuid.uuid4().hex[:8]}.json"
        job = write_job(self.root / f"job-{out.stem}", NAMES, {"study": "x", "action": "collect", "ticket": "t"})
        config = job / "app" / "config" / "config_fed_server.json"
        content = json.loads(config.read_text())
        arguments = {"attack": name, "out": str(out), "options": options}
        content["workflows"] = [{"id": "rogue", "path": "tests.adversary.live.rogue_server.RogueController", "args": arguments}]
        config.write_text(json.dumps(content))
        with session(self.server, PATIENCE_S) as opened:
            wait_for_sites(opened, NAMES, PATIENCE_S)
            number = opened.submit_job(str(job))
            wait_until(out.exists, 300)
            wait_until(lambda: str(opened.get_job_meta(number).get("status", "")).startswith("FINISHED"))
        found: dict[str, Any] = json.loads(out.read_text())
        assert "failed" not in found, found["failed"]
        return found


@pytest.fixture(scope="module")
def rogue(tmp_path_factory):  # type: ignore[no-untyped-def]
    made = Rogue(tmp_path_factory.mktemp("rogue"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def got(rogue: Rogue, tmp_path_factory) -> dict[str, Any]:  # type: ignore[no-untyped-def]
    """What the attacks that need no fit got out of the sites; all in one job, with the clinic's settings before it."""
    (rogue.root / "clinic" / "predict").mkdir(exist_ok=True)
    before, marker = settings_of(rogue), tmp_path_factory.mktemp("marker") / "marker"
    kit = next((rogue.server / "admin").rglob("client.key")).parent
    found = rogue.attack(
        "several",
        attacks={
            "unknown_hashes": {"steps": ["offer", "sketch", "receive"]},
            "middle": {"study": rogue.study.to_dict()},
            "every_step": {"study_hash": rogue.study.hash, "steps": list(STEPS)},
            "commands": {"secret": str(rogue.root / "clinic" / "identity.key"), "marker": str(marker)},
            "jobs": {"marker": str(marker), "kit": str(kit)},
        },
    )
    return found | {"before": before, "marker": marker}


def secrets_of(rogue: Rogue) -> list[str]:
    """Texts that must be in no answer: keys, ids, cells, labels outside the study, what else was accepted."""
    own = [json.loads((rogue.root / name / "identity.key").read_text()) for name in NAMES]
    ids = list(rogue.tables["mri"]["id"][:50])
    return [CANARY, "finding", *(o["exchange"] for o in own), *(o["signing"] for o in own), *ids, str(rogue.root)]


def assert_tells_nothing(rogue: Rogue, found: object) -> None:
    text = json.dumps(found)
    assert not [secret for secret in secrets_of(rogue) if secret in text]


def test_an_unknown_study_gets_one_fixed_answer(rogue: Rogue, got: dict[str, Any]) -> None:
    found = got["unknown_hashes"]
    answers = {text for row in found.values() for text in row.values()}
    assert answers == {REFUSALS[StudyError]}
    assert_tells_nothing(rogue, found)


def test_a_server_in_the_middle_of_the_key_agreement_is_refused(rogue: Rogue, got: dict[str, Any]) -> None:
    found = got["middle"]
    for how in ("unsigned", "own signature", "old signature", "another site's"):
        assert all("bytes>" not in text for text in found[how].values()), how
        assert set(found[how]) == {"clinic", "mri"}
    # The refusals changed nothing: the genuine offers still get the clinic's share.
    assert "bytes>" in found["genuine"]["clinic"]
    assert_tells_nothing(rogue, found)


def test_a_key_put_into_the_study_file_is_found_at_the_desk(rogue: Rogue) -> None:
    """The file the server hands out pins its own key as the laboratory's; the clinic's list was made by telephone."""
    own = {name: Identity.load(rogue.root / name).words for name in NAMES}
    evil = rogue.new_study("b").to_dict()
    eve = Identity.new("lab")
    evil["site"][2] |= {"exchange_key": eve.exchange_key, "signing_key": eve.signing_key}
    path = rogue.root / "evil.toml"
    path.write_text(dump(Study.from_dict(evil)))
    shown = rogue.here("study", "check", path).stdout.split()
    hash_words = [word for word in shown if len(word) == 5 and word.isalpha() and word.islower()][-16:]
    told = rogue.root / "told-by-telephone.txt"
    told.write_text("".join(f"{name} {words}\n" for name, words in own.items()) + f"study.toml {'-'.join(hash_words)}\n")
    done = rogue.here("site", "accept", rogue.root / "clinic", path, "--fingerprints", told, check=False)
    assert done.returncode == InputError.exit_code
    assert "The fingerprint of lab" in done.stderr
    assert not list((rogue.root / "clinic" / "accepted").glob(f"*{Study.from_dict(evil).hash[:16]}*"))


def test_a_sites_request_becomes_nobody_elses_certificate(rogue: Rogue, tmp_path: Path) -> None:
    """The genuine kit of the clinic, asking to be the operator, the server and a second laboratory."""
    from tests.contract.test_certificates import OTHER, csr, request

    approved = sorted(path.name for path in (rogue.server / "approved").iterdir())
    for file, name, inside, meta in (
        ("newsite", "newsite", csr("newsite", "lead", OTHER), {"kind": "user", "cert_type": "lead", "cert_role": "lead"}),
        ("newsite", "operator@intarsia.local", csr("operator@intarsia.local", "lead", OTHER), {}),
        ("localhost", "localhost", csr("localhost", "server", OTHER), {"kind": "server", "cert_type": "server"}),
        ("newsite", "newsite", csr("lab", "client", OTHER), {}),
        ("lab", "lab", csr("lab", "client", OTHER), {}),
        ("LAB", "LAB", csr("LAB", "client", OTHER), {}),
    ):
        path = request(tmp_path, file, name=name, inside=inside, **meta)
        told = tmp_path / "told.txt"
        told.write_text("\n".join(f"{n} {'lusab ' * 8}" for n in ("newsite", "lab", "LAB", "localhost")))
        for more in (("--fingerprints", told), ()):
            done = rogue.here("server", "approve", rogue.server, path, *more, check=False)
            assert done.returncode != 0, done.stdout
    assert sorted(path.name for path in (rogue.server / "approved").iterdir()) == approved


def test_the_engines_commands_read_and_delete_nothing(rogue: Rogue, got: dict[str, Any]) -> None:
    found = got["commands"]
    assert len(found) == 12
    assert all("does not take that command" in text for text in found.values()), found
    assert_tells_nothing(rogue, found)
    assert settings_of(rogue) == got["before"]
    assert (rogue.root / "clinic" / "predict").is_dir()
    assert not got["marker"].exists()


def test_jobs_that_are_not_ours_are_not_run(rogue: Rogue, got: dict[str, Any]) -> None:
    found = got["jobs"]
    for what in ("local", "startup", "up", "code", "class"):
        assert "runs only jobs of intarsia" in found[what], found
    assert settings_of(rogue) == got["before"]
    assert not got["marker"].exists()
    assert_tells_nothing(rogue, found)


def settings_of(rogue: Rogue) -> dict[str, bytes]:
    kit = rogue.root / "clinic" / "network"
    return {str(p): p.read_bytes() for name in ("local", "startup") for p in sorted((kit / name).rglob("*")) if p.is_file()}


def test_no_refusal_carries_a_cell(rogue: Rogue, got: dict[str, Any]) -> None:
    """Every step out of turn; and the sketch of a site whose table has a text column that the study does not list."""
    found = got["every_step"]
    assert set(found) >= {f"{step} 0" for step in STEPS}
    fixed = {REFUSED, REFUSALS[MessageError], REFUSALS[FederationError]}
    answers = {text for row in found.values() for text in row.values() if "bytes>" not in text}
    assert answers <= fixed, answers - fixed
    assert_tells_nothing(rogue, found)


def test_altered_coefficients_and_owners_tell_the_server_nothing(rogue: Rogue) -> None:
    """After all of the above the honest study still collects; then its coefficients are altered before they are delivered."""
    toml = rogue.root / "mri" / "site.toml"
    toml.write_text(toml.read_text().replace("ignore = []", 'ignore = ["finding"]'))
    s = rogue.new_study("c")
    path = rogue.accept(s)
    rogue.command("study", "run", path, "--server", rogue.server, "--until", "fit")
    new = {name: frame.drop(columns=RESPONSES[name]).sort_values("id") for name, frame in frames(60, seed=8).items()}
    for name, frame in new.items():
        where = rogue.root / name / "predict" / s.folder_name
        where.mkdir(parents=True, exist_ok=True)
        frame.to_csv(where / "june.csv", index=False)
    found = rogue.attack("prediction", folder=str(rogue.folder(s)), request="june")
    for how in ("nobody", "swapped", "second"):
        assert not [text for text in found[how].values() if "bytes>" in text], how
    run = rogue.root / "mri" / "studies" / s.folder_name
    assert (run / "problems.jsonl").read_text().count("give a response to another site than study.toml does") == 1
    counts = json.loads((run / "problems.counts.json").read_text())  # twice, for the right reason
    assert [kind["times"] for name, kind in counts.items() if name.startswith("MessageError")] == [2]
    assert all("bytes>" in text for text in found["altered"].values())  # a fit is the server's word; it is taken once
    assert all(found["same bytes"].values())
    assert all("bytes>" in text for text in found["predict"].values()), found["predict"]
    # What the server can form: each part and all sums. None has to do with the rows: not one, not their plain sums.
    columns = np.column_stack([frame.drop(columns="id") for frame in new.values()])
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    plain = np.column_stack([columns, *(columns[:, 6 * k : 6 * k + 6].sum(axis=1) for k in range(3)), columns.sum(axis=1)])
    assert len(found["sums"]) == 6
    for values in found["sums"].values():
        for row in np.asarray(values).transpose(0, 2, 1).reshape(-1, len(plain)):
            assert np.abs(row).max() > 1e3  # in standard deviations a part is below 10: these are masked
            order = np.argsort(np.argsort(row))
            for column in plain.T:
                # The rows' order at the server is that of secret tokens, so also look at the values without their order.
                assert abs(np.corrcoef(np.sort(row), np.sort(column))[0, 1]) < 1 - 1e-6  # 1 to rounding if they were the same
                assert abs(np.corrcoef(order, column)[0, 1]) < 0.7
    assert_tells_nothing(rogue, {name: rows for name, rows in found.items() if name != "sums"})
    # The honest operator's own command now says at which sites other coefficients lie.
    done = rogue.command("study", "run", path, "--server", rogue.server, check=False)
    assert done.returncode == 9
    assert "protocol: the step does not fit" in done.stderr
