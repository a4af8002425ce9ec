"""What leaves a site, in the open: every byte of its connection is recorded and searched for what must not be in it."""

import base64
import json
import re
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from io import BytesIO
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="the networked carrier needs intarsia[federation]")

from tests.federation import FIT, NAMES, RESPONSES, frames
from tests.network import PATIENCE_S, Network, server_files
from tests.tap import Tap

from intarsia.carriers.flare.engine import server_command
from intarsia.site.identity import Identity
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.messages import Sketch
from intarsia.wire.study import Study

pytestmark = pytest.mark.network
STRACE = shutil.which("strace")


class Audited:
    """A finished study with key agreement, everything recorded."""

    def __init__(self, root: Path):
        self.tables = {name: frame.assign(id="CANARY" + frame["id"]) for name, frame in frames().items()}
        self.network = network = Network(root, self.tables, preshared=False)
        roster = []
        for name in NAMES:
            own = Identity.load(root / name)
            entry = {"name": name, "features": [f"{name}_*"], "exchange_key": own.exchange_key}
            entry["signing_key"] = own.signing_key
            if RESPONSES[name]:
                entry["responses"] = RESPONSES[name]
            roster.append(entry)
        self.study = Study.from_dict({"id": "audit", "run": "f" * 32, "sketch": {"m": 60}, "fit": FIT, "site": roster})
        path = network.accept(self.study)
        self.taps = {}
        for name in NAMES:
            startup = root / name / "network" / "startup"
            config = json.loads((startup / "fed_client.json").read_text())
            port = int(config["servers"][0]["service"]["target"].split(":")[1])
            self.taps[name] = Tap(network.server / "server" / "startup", startup, port)
            config["servers"][0]["service"]["target"] = f"localhost:{self.taps[name].port}"
            (startup / "fed_client.json").write_text(json.dumps(config))
        self.trace = root / "server.trace"
        self.trace_run = root / "run.trace"
        watch = [STRACE, "-f", "-qq", "-e", "trace=open,openat,openat2", "-o"] if STRACE else []
        command, env = server_command(network.server)
        command = [*watch, str(self.trace), *command] if watch else command
        network.processes["server"] = subprocess.Popen(
            command, env=env, stdout=(root / "server.log").open("wb"), stderr=subprocess.STDOUT, start_new_session=True
        )
        began = time.monotonic()
        network.start(*NAMES)
        words = [sys.executable, "-m", "intarsia", "study", "run", str(path), "--server", str(network.server)]
        words += ["--wait", str(PATIENCE_S), "--workers", "1", "--provisional"]
        done = subprocess.run(
            [*watch, str(self.trace_run), *words] if watch else words,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.printed = (done.stdout + done.stderr).encode()
        network.stop()
        self.seconds = time.monotonic() - began

    def sent(self) -> bytes:
        return b"".join(chunk for tap in self.taps.values() for chunk in tap.up)

    def at_server(self) -> bytes:
        """Every file below the server's folder, its log and what the command printed; archives are opened."""
        parts = [self.printed, (self.network.root / "server.log").read_bytes()]
        for path in server_files(self.network.server):
            raw = path.read_bytes()
            parts.append(raw)
            if zipfile.is_zipfile(BytesIO(raw)):
                with zipfile.ZipFile(BytesIO(raw)) as archive:
                    parts += [archive.read(name) for name in archive.namelist()]
        return b"\n".join(parts)

    def secrets(self) -> dict[str, list[bytes]]:
        out: dict[str, list[bytes]] = {"key": [], "id": [], "value": [], "mean": []}
        for name, frame in self.tables.items():
            site = SiteFolder.load(self.network.root / name).site()
            store = site.run_store(self.study)
            own = site.identity
            assert own is not None
            # The keys of the run and the shares are gone once the study key is sealed.
            assert not [name for name in ("run-key.secret", "share.secret", "pending.secret") if store.get(name) is not None]
            pairs = json.loads(store.need("pairs.secret", ""))
            keys = [store.get("study.secret"), *(bytes.fromhex(text) for text in pairs.values())]
            keys += [own.exchange.private_bytes_raw(), own.signing.private_bytes_raw()]
            for raw in keys:
                assert raw is not None
                assert len(raw) == 32
                out["key"] += [raw, raw.hex().encode(), base64.b64encode(raw)]
            out["id"] += [text.encode() for text in frame["id"]]
            numbers = frame.drop(columns="id")
            for column in numbers:
                values = numbers[column]
                scaled = (values - values.mean()) / values.std()
                out["value"] += [struct.pack("<d", v) for v in (*values[::4], *scaled[::4])]
                out["value"] += [repr(v).encode() for v in values[::4]]
                for summary in (values.mean(), values.std(), values.sum()):
                    out["mean"] += [struct.pack("<d", summary), repr(summary).encode(), f"{summary:.6f}".encode()]
        return out


@pytest.fixture(scope="module")
def audited(tmp_path_factory):  # type: ignore[no-untyped-def]
    made = Audited(tmp_path_factory.mktemp("audit"))
    yield made
    made.network.stop()
    for tap in made.taps.values():
        tap.close()


def test_the_recording_sees_through_the_encryption(audited: Audited) -> None:
    """Without this, finding nothing would mean nothing: the sketch itself must be in what was recorded."""
    for name in NAMES:
        sketch = Sketch.load(audited.network.folder(audited.study) / "sketch" / f"{name}.sketch")
        wire = b"".join(audited.taps[name].up)
        found = sum(struct.pack("<d", v) in wire for v in sketch.X[:, 0])
        assert found >= 0.9 * sketch.m
    assert b"CANARY" + b"S0001" in "\n".join(audited.tables["mri"]["id"]).encode()


@pytest.mark.parametrize("what", ["key", "id", "value", "mean"])
def test_nothing_secret_is_sent_stored_or_logged(audited: Audited, what: str) -> None:
    sent, kept = audited.sent(), audited.at_server()
    assert len(sent) > 8 * 60 * 18
    canaries = audited.secrets()[what]
    assert len(canaries) > 10
    assert not [c for c in canaries if len(c) >= 6 and c in sent]
    assert not [c for c in canaries if len(c) >= 6 and c in kept]


def test_what_a_site_sends_is_hardly_more_than_its_sketch(audited: Audited) -> None:
    """All bytes of the connection, the engine's heartbeats and headers included, against our messages."""
    for name in NAMES:
        site = SiteFolder.load(audited.network.root / name).site()
        log = site.run_store(audited.study).path("sent.jsonl")
        assert log is not None
        ours = sum(json.loads(line)["bytes"] for line in log.read_text().splitlines())
        assert {json.loads(line)["step"] for line in log.read_text().splitlines()} == {
            "offer", "share", "confirmation", "announcement", "alignment", "sketch", "receipt",
        }  # fmt: skip
        # The engine asks for news all the time: the longer a machine takes, the more of that there is.
        assert sum(map(len, audited.taps[name].up)) < ours + 150_000 + 3_000 * audited.seconds


@pytest.mark.skipif(STRACE is None, reason="strace is not installed (make system-packages): opened files cannot be watched")
def test_no_process_but_the_sites_opens_the_key_or_the_table(audited: Audited) -> None:
    root = str(audited.network.root)
    for trace in (audited.trace, audited.trace_run):
        opened = set(re.findall(r'open(?:at2?)?\([^"]*"([^"]+)"', trace.read_text(errors="replace")))
        assert any("fed_server.json" in path or "study.toml" in path for path in opened)
        for name in NAMES:
            assert not [path for path in opened if path.startswith((f"{root}/{name}/", f"{root}/{name}.csv"))]
        assert not [path for path in opened if "study.secret" in path or path.endswith("identity.key")]
        # The engine lists the folders below the one it runs in; what counts is that no code of the site is read.
        code = (".py", ".pyc", ".nbi", ".nbc")
        assert not [path for path in opened if "/intarsia/site/" in path and path.endswith(code)]


def test_each_site_got_its_own_rows_only(audited: Audited) -> None:
    for name in NAMES:
        model = SiteFolder.load(audited.network.root / name).site().model(audited.study)
        assert all(label.startswith(f"{name}_") for label in model.coefficients.features)
        down = b"".join(audited.taps[name].down)
        for other in set(NAMES) - {name}:
            assert f'"{other}_0"'.encode() not in down
    assert isinstance(audited.tables["mri"], pd.DataFrame)
