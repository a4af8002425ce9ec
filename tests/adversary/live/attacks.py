"""Attacks of a server that is not honest, over the live engine; each returns what it got out of the sites as plain values."""

import io
import json
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.lighter.utils import load_private_key_file, sign_folders
from tests.adversary.live.rogue_server import Rogue

from intarsia.carriers.flare.jobs import CLIENT_CONFIG
from intarsia.site import agreement
from intarsia.site.identity import Identity
from intarsia.site.masks import from_fixed
from intarsia.wire.coefficients import Coefficients, bind
from intarsia.wire.prediction import PredictionPart
from intarsia.wire.signed import KeyOffer
from intarsia.wire.study import Study

NAMES = ("clinic", "mri", "lab")
NO_DRAWS = {"draws": None, "sigma2": None}
NUMBER = "00000000-1111-4222-8333-444444444444"


def _texts(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, str) else f"<{len(value)} bytes>" for name, value in found.items()}


def several(rogue: Rogue, attacks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Many attacks in one job of the engine, which takes longer to start than most of them to run."""
    return {name: globals()[name](rogue, **options) for name, options in attacks.items()}


def unknown_hashes(rogue: Rogue, steps: list[str]) -> dict[str, Any]:
    """Errors: ask for studies the sites have never heard of, step by step."""
    found = {}
    for step in steps:
        for study_hash in ("ab" * 32, "../../accepted", "\x1b[2J"):
            found[f"{step} {study_hash}"] = _texts(rogue.ask(study_hash, step, {name: {} for name in NAMES}))
    return found


def every_step(rogue: Rogue, study_hash: str, steps: list[str]) -> dict[str, Any]:
    """Errors: every step of an accepted study out of turn, with an empty and with a nonsense payload."""
    found = {}
    for step in steps:
        for payload in ({}, {"request": b"june", "cohort": b"x", "coefficients": b"x", "sum": b"x", "clinic": b"x"}):
            found[f"{step} {len(payload)}"] = _texts(rogue.ask(study_hash, step, {name: dict(payload) for name in NAMES}))
    return found


def middle(rogue: Rogue, study: dict[str, Any]) -> dict[str, Any]:
    """Key agreement: put the server's own key in the laboratory's place, signed by whom it can."""
    s = Study.from_dict(study)
    offers = {name: KeyOffer.from_bytes(raw) for name, raw in rogue.ask(s.hash, "offer", {n: {} for n in NAMES}).items()}  # type: ignore
    run_key, eve = agreement.new_run_key(), Identity.new("lab")
    public = KeyOffer("lab", s.hash, agreement.public_half(run_key))
    forged = {
        "unsigned": KeyOffer("lab", s.hash, public.public, signature=bytes(64)),
        "own signature": KeyOffer("lab", s.hash, public.public, signature=eve.sign(public.body())),
        "old signature": KeyOffer("lab", s.hash, public.public, signature=offers["lab"].signature),
        "another site's": KeyOffer("lab", s.hash, offers["mri"].public, signature=offers["mri"].signature),
    }
    found: dict[str, Any] = {}
    for how, offer in forged.items():
        payload = {name: (offer if name == "lab" else genuine).to_bytes() for name, genuine in offers.items()}
        found[how] = _texts(rogue.ask(s.hash, "share", {"clinic": payload, "mri": payload}))
    genuine = {name: offer.to_bytes() for name, offer in offers.items()}
    found["genuine"] = _texts(rogue.ask(s.hash, "share", {"clinic": genuine}))
    return found


def commands(rogue: Rogue, secret: str, marker: str) -> dict[str, str]:
    """The engine's own commands, which a site's policy refuses only if the server's message asks it to."""
    logging = {"version": 1, "formatters": {"x": {"()": "builtins.open", "file": marker, "mode": "w"}}}
    found = {
        "cat": rogue.command("clinic", "sys.shell", f"cat {secret}"),
        "ls": rogue.command("clinic", "sys.shell", f"ls {secret}"),
        "super": rogue.command("clinic", "sys.shell", f"cat {secret}", user_role="super", require_authz="true"),
        "site log": rogue.command("clinic", "sys.configure_site_log", json.dumps(logging)),
        "job log": rogue.command("clinic", "train.configure_job_log", json.dumps(logging), job_id=NUMBER),
        "environment": rogue.command("clinic", "sys.report_env"),
        "errors": rogue.command("clinic", "info.show_errors"),
        "restart": rogue.command("clinic", "train.restart"),
        "shutdown": rogue.command("clinic", "train.shutdown"),
    }
    for name in ("local", "startup", "../predict"):
        found[f"delete {name}"] = rogue.command("clinic", "train.delete_run", job_id=name)
    return found


def _signed(files: dict[str, str], kit: Path) -> bytes:
    """An archive signed by the operator, whose key is the attacker's: the engine wants a signature and asks for no more."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(text)
        sign_folders(folder, load_private_key_file(str(kit / "client.key")), str(kit / "client.crt"))
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as made:
            for path in sorted(Path(folder).rglob("*")):
                made.write(path, path.relative_to(folder))
        return archive.getvalue()


def jobs(rogue: Rogue, marker: str, kit: str) -> dict[str, str]:
    """Jobs that bring code, other classes or a number that is a folder's name; by somebody who says he is super."""
    evil = f"open({marker!r}, 'w').write('code ran')\nfrom nvflare.apis.executor import Executor\nclass Evil(Executor): pass\n"
    ours = {"config/config_fed_client.json": json.dumps(CLIENT_CONFIG)}
    other = {**CLIENT_CONFIG, "executors": [{"tasks": ["*"], "executor": {"path": "evil.Evil", "args": {}}}]}
    code = {"config/config_fed_client.json": json.dumps(other), "custom/evil.py": evil, "custom/__init__.py": evil}
    meta = {"submitter_name": "x", "submitter_org": "x", "submitter_role": "super", "byoc": True, "job_id": NUMBER}
    found = {}
    for what, number, files in (
        ("local", "local", ours),
        ("startup", "startup", ours),
        ("up", "../predict", ours),
        ("code", NUMBER, code),
        ("class", NUMBER, {"config/config_fed_client.json": json.dumps(other)}),
    ):
        headers = {"job_id": number, "job_meta": meta | {"job_id": number}, "app_name": "app"}
        found[what] = rogue.command("clinic", "train.deploy", _signed(files, Path(kit)), **headers)
        started = rogue.command("clinic", "train.start_job", json.dumps({}), **headers)
        found[f"{what} started"] = started
    return found


def prediction(rogue: Rogue, folder: str, request: str) -> dict[str, Any]:
    """Altered owners and coefficients, and every sum of masked parts that the server can form from the answers."""
    where = Path(folder)
    s = Study.load(where / "study.toml")
    fitted = {name: Coefficients.from_bytes((where / "coefficients" / f"{name}.coefficients").read_bytes()) for name in NAMES}

    def hand_out(messages: dict[str, Coefficients]) -> dict[str, Any]:
        forged = bind(messages)
        return _texts(rogue.ask(s.hash, "receive", {name: {"coefficients": forged[name].to_bytes()} for name in NAMES}))

    def owned_by(sites: list[str]) -> dict[str, Coefficients]:
        out = {}
        for name, message in fitted.items():
            own = sum(site == name for site in sites)
            kept = {"sigma2_mean": np.ones(own), "noise_covariance": np.eye(own), "draws": None, "sigma2": None}
            out[name] = replace(message, response_sites=tuple(sites), **kept)
        return out

    found: dict[str, Any] = {
        "nobody": hand_out(owned_by(["nobody"] * 3)),
        "swapped": hand_out(owned_by(["lab", "lab", "clinic"])),
    }
    # Every feature counts one: the parts would be plain sums of the sites' columns. What a fit adds for predictions alone would
    # leave a second sum between the owner's two responses, in some fits nearly one column, which the site's gate refuses.
    ones = {
        name: replace(m, mean=np.ones_like(m.mean), to_predict=np.zeros_like(m.to_predict), sd=np.zeros_like(m.sd), **NO_DRAWS)
        for name, m in fitted.items()
    }
    found["altered"] = hand_out(ones)
    found["second"] = hand_out(fitted)
    asked = {name: {"request": request.encode()} for name in NAMES}
    first, again = rogue.ask(s.hash, "predict", asked), rogue.ask(s.hash, "predict", asked)
    found["same bytes"] = {name: first[name] == again[name] for name in NAMES}
    found["predict"] = _texts(first)
    parts = {name: PredictionPart.from_bytes(raw) for name, raw in first.items() if isinstance(raw, bytes)}
    sums: dict[str, Any] = {}
    for owner in ("clinic", "lab"):
        here = {name: part.parts[owner] for name, part in parts.items() if owner in part.parts}
        tries = {**here, "all": sum(here.values())}
        sums |= {f"{name} for {owner}": from_fixed(values, 40).tolist() for name, values in tries.items()}
    found["sums"] = sums
    return found
