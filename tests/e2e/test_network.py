"""A study over the real engine: the whole way, interruptions, adversaries."""

import json
import shutil
import socket
import ssl
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="the networked carrier needs intarsia[federation]")

from tests.federation import NAMES, RESPONSES, sites
from tests.federation import frames as plain_frames
from tests.federation import study as any_study
from tests.network import PATIENCE_S, Network, wait_until

from intarsia.carriers.flare.hardening import harden_server
from intarsia.carriers.in_process import carrier, fit
from intarsia.server.study import gram, protocol
from intarsia.server.study.departure import leave
from intarsia.server.study.fit import fit as run_fit
from intarsia.server.study.folder import StudyFolder, dump
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.messages import Sketch
from intarsia.wire.study import Study

pytestmark = pytest.mark.network


def frames(n: int = 400, seed: int = 0) -> dict[str, pd.DataFrame]:
    """The laboratory's response is a yes/no one here."""
    tables = plain_frames(n, seed)
    tables["lab"]["hdl"] = np.where(tables["lab"]["hdl"] > 120, "high", "low")
    return tables


def study(m: int = 20, **tables):  # type: ignore[no-untyped-def]
    """Few rows per study, and a new run each: the sites keep count of what they gave away about the same subjects."""
    content = any_study(m=m, **tables).to_dict()
    content["site"][NAMES.index("lab")]["kinds"] = {"hdl": {"kind": "binary", "yes": "high"}}
    return Study.from_dict(content)


@pytest.fixture(scope="module")
def network(tmp_path_factory):  # type: ignore[no-untyped-def]
    made = Network(tmp_path_factory.mktemp("network"), frames())
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def local():  # type: ignore[no-untyped-def]
    return fit(sites(frames()), study())


def rows(network: Network, name: str, s) -> list[dict[str, object]]:  # type: ignore[no-untyped-def]
    return SiteFolder.load(network.root / name).site().model(s).rows()


def test_a_study_and_a_prediction_over_the_network(network: Network, local) -> None:  # type: ignore[no-untyped-def]
    s = study()
    path = network.accept(s)
    # The chains are short: a fit that has not converged stays at the server until somebody says that it may go.
    words = ("study", "run", path, "--server", network.server, "--json")
    held = json.loads(network.background(*words, "--wait", PATIENCE_S).communicate()[0])
    assert held["held"]
    assert not (network.folder(s) / "receipt").exists()
    result = json.loads(network.command(*words).stdout)
    assert not result["held"]
    assert result["selected"] == local.selected
    for name in NAMES:
        # The same as in one process, to the last bit.
        assert rows(network, name, s) == local.models[name].rows()
        received = held["jobs"][0]["received"][name]
        columns = 6 + len(RESPONSES[name])
        assert ("odds_ratio" in rows(network, name, s)[0]) == (name == "lab")  # its own response is a yes/no one
        assert received <= 8 * s.sketch.m * columns + 4096
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in frames(20, seed=8).items()}
    for name, frame in new.items():
        where = network.root / name / "predict" / s.folder_name
        where.mkdir(parents=True, exist_ok=True)
        frame.to_csv(where / "june.csv", index=False)
    network.command("predict", "run", network.folder(s), "june", "--server", network.server)
    expected = local.predict(new, "june")
    for name in ("clinic", "lab"):
        store = SiteFolder.load(network.root / name).site().run_store(s)
        table = pd.read_csv(store.path("prediction-june.csv"))
        ours = pd.DataFrame(expected[name].rows())
        pd.testing.assert_frame_equal(table, ours, check_dtype=False, rtol=0, atol=1e-12)
    # The command again changes nothing and asks nobody.
    again = json.loads(network.command(*words).stdout)
    assert again["jobs"] == []


@pytest.mark.slow
@pytest.mark.parametrize("names", [NAMES, ("clinic", "lab")], ids=["three sites", "two sites and the server"])
def test_a_gram_study_over_the_network(network: Network, names: tuple[str, ...]) -> None:
    """The joint matrix is that of one process, to the last bit, though keys, masks and order of subjects are others."""
    identities = {name: SiteFolder.load(network.root / name).identity() for name in names}
    holders = list(names) if len(names) == 3 else [*names, "server"]
    content = study(run=str(len(names)) * 32).to_dict() | {"sketch": {"kind": "gram", "rows": 150, "holders": holders}}
    content["site"] = [entry for entry in content["site"] if entry["name"] in names]
    for entry in content["site"]:
        keys = identities[entry["name"]]
        entry |= {"exchange_key": keys.exchange_key, "signing_key": keys.signing_key}
    s = Study.from_dict(content)
    with network.agreeing():
        words = ("study", "run", network.accept(s), "--server", network.server, "--until", "collect")
        network.command(*words)
    parties = [site for site in sites({name: network.root / f"{name}.csv" for name in NAMES}, key=None) if site.name in names]
    for site in parties:
        site.identity = identities[site.name]
    folder = StudyFolder.create(network.root / f"gram-here-{len(names)}", s)
    protocol.collect(folder, carrier(parties, s))
    assert np.array_equal(gram.joint(StudyFolder.open(network.folder(s))), gram.joint(folder))


@pytest.mark.slow
def test_kill_9_anywhere_then_the_same_command(network: Network) -> None:
    """Site, server and the fitting process are killed in turn; the study still ends with the same numbers."""
    s = study(run="a" * 32)
    path, folder = network.accept(s), network.folder(s)
    words = ("study", "run", path, "--server", network.server, "--timeout", 10, "--wait", 8)

    running = network.background(*words)
    wait_until((folder / "alignment").exists)
    network.kill("mri")
    _, told = running.communicate(timeout=120)
    assert running.returncode == 9
    assert "mri" in told
    collected = {p.name: p.read_bytes() for p in (folder / "alignment").iterdir()}
    # Still away: fails closed and says who.
    away = network.command(*words, check=False)
    assert away.returncode == 9
    assert "mri" in away.stderr
    network.start("mri")

    running = network.background(*words[:-1], 40)
    wait_until(lambda: any(e.get("event") == "job submitted" for e in events(folder)[-1:]))
    network.kill("server")
    running.kill()
    running.communicate()
    network.start("server")
    network.command(*words[:-1], 60, "--until", "collect")
    for name, raw in collected.items():
        assert (folder / "alignment" / name).read_bytes() == raw

    running = network.background(*words, "--until", "fit")
    wait_until(lambda: (folder / "checkpoint").exists() or (folder / "fit.json").exists())
    running.kill()
    running.communicate()
    network.command(*words[:-1], 60)
    same = fit(sites(frames()), s)
    for name in NAMES:
        assert rows(network, name, s) == same.models[name].rows()


@pytest.mark.slow
def test_a_site_leaves_and_the_others_go_on_without_it(network: Network, tmp_path: Path) -> None:
    """It is not even connected any more: refit, delivery and prediction are those of the two that stay."""
    s = study(run="b" * 32)
    path, folder = network.accept(s), network.folder(s)
    network.command("study", "run", path, "--server", network.server)
    row = np.ascontiguousarray(Sketch.load(folder / "sketch" / "mri.sketch").X[5]).tobytes()
    network.command("site", "leave", network.root / "mri", "--study", f"liver-{s.hash[:8]}", "-o", tmp_path / "mri.leave")
    network.kill("mri")
    told = network.command("study", "leave", folder, tmp_path / "mri.leave", "--json", "--workers", 1)
    assert json.loads(told.stdout)["left"] == ["mri"]
    # Nothing of its sketch is left at the server, in the study's folder or in the engine's own files.
    assert not any(row in path.read_bytes() for path in network.server.rglob("*") if path.is_file())
    network.command("deliver", "send", folder, "--server", network.server)
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in frames(20, seed=8).items()}
    for name in ("clinic", "lab"):
        where = network.root / name / "predict" / s.folder_name
        where.mkdir(parents=True, exist_ok=True)
        new[name].to_csv(where / "july.csv", index=False)
    network.command("predict", "run", folder, "july", "--server", network.server)
    # The same in one process.
    parties, here = sites(frames()), StudyFolder.create(tmp_path / "here", s)
    ask = carrier(parties, s, lambda site: new[site])
    protocol.collect(here, ask)
    run_fit(here, workers=1)
    protocol.deliver(here, ask)
    leave(here, parties[1].leave(s), workers=1)
    protocol.deliver(here, ask)
    protocol.predict(here, "july", ask)
    for site in (parties[0], parties[2]):
        assert rows(network, site.name, s) == site.model(s).rows()
        store = SiteFolder.load(network.root / site.name).site().run_store(s)
        ours = pd.DataFrame(site.predictions[s.hash, "july"].rows())
        table = pd.read_csv(store.path("prediction-july.csv"))
        pd.testing.assert_frame_equal(table, ours, check_dtype=False, rtol=0, atol=1e-12)
    network.start("mri")


@pytest.mark.slow
def test_a_site_joins_subjects_withdraw_and_a_response_is_corrected(network: Network, tmp_path: Path) -> None:
    """Each is a new run over the same network; the table of the last is that of one process."""
    content = study(m=6, run="d" * 32, alignment={"mode": "intersect"}).to_dict()
    content["site"] = [entry for entry in content["site"] if entry["name"] != "mri"]
    first = Study.from_dict(content)
    clinic, table = network.root / "clinic", network.root / "clinic.csv"
    kept, gone = table.read_text(), ["S0003", "S0041"]

    def run(source: Path) -> Study:
        s = Study.load(source)
        for name in s.names:
            SiteFolder.load(network.root / name).accept(source)
        network.command("study", "run", source, "--server", network.server)
        return s

    try:
        sources = [tmp_path / f"study-{k}.toml" for k in range(4)]
        sources[0].write_text(dump(first))
        run(sources[0])
        network.command("study", "join", sources[0], "--site", "mri", "--features", "mri_*", "-o", sources[1])
        joined = run(sources[1])
        assert (joined.reason, joined.names) == ("join", ("clinic", "lab", "mri"))
        (tmp_path / "gone.txt").write_text("\n".join(gone))
        which = ("--study", f"liver-{joined.hash[:8]}")
        network.command("site", "withdraw", clinic, *which, "--subjects", tmp_path / "gone.txt", "-o", sources[2])
        without = run(sources[2])
        assert without.reason == "withdrawal"
        assert json.loads((network.folder(without) / "fit.json").read_text())["subjects"] == 398
        frame = pd.read_csv(table)
        frame.loc[frame["id"] == "S0007", "alt"] += 1.5
        frame.to_csv(table, index=False)
        which = ("--study", f"liver-{without.hash[:8]}")
        network.command("site", "correct", clinic, *which, "-o", sources[3])
        corrected = run(sources[3])
        folders = [network.folder(s) for s in (without, corrected)]
        said = network.command("study", "changes", folders[1], "--before", folders[0]).stdout
        assert "because of correction" in said
        # The same in one process, without the two who withdrew.
        tables = {name: pd.read_csv(network.root / f"{name}.csv") for name in NAMES}
        tables["clinic"] = tables["clinic"][~tables["clinic"]["id"].isin(gone)]
        parties = [site for name in corrected.names for site in sites(tables) if site.name == name]
        here = fit(parties, corrected)
        for name in corrected.names:
            assert rows(network, name, corrected) == here.models[name].rows()
    finally:
        table.write_text(kept)
        (clinic / "withdrawn.txt").unlink(missing_ok=True)


@pytest.mark.slow
def test_a_union_with_a_yes_no_response_over_the_network(tmp_path: Path) -> None:
    """180 of 400 subjects lack the laboratory's response: the groups' sketches are those of one process, to the last bit.

    On a network of its own: the ledgers of the other one have counted too many sketches for so small a group.
    """
    s, tables = study(m=24, run="e" * 32, alignment={"mode": "union"}), frames()
    tables["lab"].loc[tables["lab"].index[:180], "hdl"] = None
    network = Network(tmp_path / "network", tables)
    network.start()
    try:
        network.command("study", "run", network.accept(s), "--server", network.server)
    finally:
        network.stop()
    here = StudyFolder.create(tmp_path / "here", s)
    parties = sites({name: network.root / f"{name}.csv" for name in NAMES})
    ask = carrier(parties, s)
    protocol.collect(here, ask)
    there = StudyFolder.open(network.folder(s))
    assert [(group.n, group.m) for group in there.groups()[0]] == [(220, 13), (180, 10)]
    for name in NAMES:
        assert there.read("sketch", name) == here.read("sketch", name)
    run_fit(here, workers=1)
    protocol.deliver(here, ask)
    for site in parties:
        assert rows(network, site.name, s) == site.model(s).rows()


def events(folder: Path) -> list[dict[str, object]]:
    file = folder / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_changed_study_file_is_refused_by_the_sites(network: Network) -> None:
    s = study(run="b" * 32)
    network.accept(s)
    tampered = study(run="b" * 32, m=99)
    path = network.root / "tampered.toml"
    from intarsia.server.study.folder import dump

    path.write_text(dump(tampered))
    done = network.command("study", "run", path, "--server", network.server, check=False)
    assert done.returncode == 9
    assert f"{', '.join(NAMES)}: study: the site has not accepted this study" in " ".join(done.stderr.split())
    assert not list((network.folder(tampered)).glob("sketch/*"))


def greeted(network: Network, kit: Path) -> bool:
    """Does the server answer whoever comes with this kit's certificate?"""
    startup = network.root / "mri" / "network" / "startup"
    address = json.loads((startup / "fed_client.json").read_text())["servers"][0]["service"]["target"]
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.load_cert_chain(kit / "client.crt", kit / "client.key")
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", int(address.split(":")[1])), timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
            )  # HTTP/2: preface, no settings
            return bool(secure.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False


def test_a_site_without_a_certificate_of_ours_does_not_get_in(network: Network, tmp_path: Path) -> None:
    """The genuine address, authority and name, but a certificate that this authority never signed."""
    certificate, key = self_signed("mri")
    (tmp_path / "client.crt").write_bytes(certificate)
    (tmp_path / "client.key").write_bytes(key)
    assert greeted(network, network.root / "mri" / "network" / "startup")
    assert not greeted(network, tmp_path)


def self_signed(name: str) -> tuple[bytes, bytes]:
    """What somebody with a text book can make in a minute."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=9))
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    return built.sign(key, hashes.SHA256()).public_bytes(pem), private


def test_a_site_with_its_own_certificate_cannot_pose_as_another(network: Network, tmp_path: Path) -> None:
    """The lab's certificate under the name of the clinic: the engine compares the two."""
    poser = tmp_path / "poser"
    shutil.copytree(network.root / "lab", poser, ignore=shutil.ignore_patterns("pid.fl", "daemon_pid.fl", "*.log"))
    toml = (poser / "site.toml").read_text().replace('name = "lab"', 'name = "clinic"')
    (poser / "site.toml").write_text(toml)
    note, noted = "authenticated as 'lab' but claimed endpoint 'clinic'", network.server / "server" / "start.log"
    for patience in (12, 60):  # a busy machine may need longer than that to start it
        told = serve_and_listen(network, poser, patience)
        assert "does not accept this site" in told
        if note in noted.read_text(errors="replace"):
            return
    raise AssertionError("the server never compared the two names")


def serve_and_listen(network: Network, folder: Path, patience: int) -> str:
    """What a site says that gives up after so many seconds."""
    serving = network.background("site", "serve", folder, "--yes", "--patience", patience)
    try:
        _, told = serving.communicate(timeout=PATIENCE_S)
    finally:
        serving.kill()
    assert serving.returncode == 9
    return str(told)


def evil_job(where: Path, marker: Path, *, code: bool) -> Path:
    """A job whose client part runs something else than our class: shipped code, or a class that is merely installed."""
    from intarsia.carriers.flare.jobs import write_job

    arguments = {"study": "x", "action": "collect", "ticket": "t", "request": "", "timeout": 5}
    job = write_job(where, NAMES, arguments)
    config = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    path = "evil.Evil" if code else "nvflare.app_common.np.np_trainer.NPTrainer"
    content["executors"][0]["executor"] = {"path": path, "args": {}}
    config.write_text(json.dumps(content))
    if code:
        custom = job / "app" / "custom"
        custom.mkdir()
        lines = [
            "from nvflare.apis.executor import Executor",
            f"open({str(marker)!r}, 'w').write('read everything')",
            "class Evil(Executor):",
            "    def execute(self, *args): pass",
        ]
        (custom / "evil.py").write_text("\n".join(lines))
    return job


def test_a_job_that_carries_code_is_refused_by_server_and_sites(network: Network, tmp_path: Path) -> None:
    from intarsia.carriers.flare.engine import session, wait_for_sites

    marker = tmp_path / "marker"
    job = evil_job(tmp_path / "a", marker, code=True)
    with session(network.server, PATIENCE_S) as opened:
        wait_for_sites(opened, NAMES, PATIENCE_S)
        submitted = opened.submit_job(str(job))
        wait_until(lambda: refused(opened, submitted))
    assert not marker.exists()

    # A server that has been taken over and allows everything: the sites refuse on their own.
    network.kill("server")
    network.take_over()
    try:
        with session(network.server, PATIENCE_S) as opened:
            wait_for_sites(opened, NAMES, PATIENCE_S)
            for number, code in enumerate((True, False)):
                submitted = opened.submit_job(str(evil_job(tmp_path / f"b{number}", marker, code=code)))
                wait_until(lambda j=submitted: refused(opened, j))  # type: ignore[misc]
                told = " ".join(opened.get_job_meta(submitted)["job_deploy_detail"])
                assert all(f"{name}: NVFLARE_ERROR: This site runs only jobs of intarsia" in told for name in NAMES)
                assert not marker.exists()
    finally:
        network.kill("server")
        harden_server(network.server)
        network.start("server")


def refused(opened, job: str) -> bool:  # type: ignore[no-untyped-def]
    meta = opened.get_job_meta(job)
    status = str(meta.get("status", ""))
    assert status != "FINISHED:COMPLETED"
    return status.startswith("FINISHED")
