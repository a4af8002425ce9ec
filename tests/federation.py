"""Three small sites for the tests of the federation."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from intarsia.carriers.files import fit_files
from intarsia.cli import main
from intarsia.server.assess.assessment import kept
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.release import rounded
from intarsia.site.identity import Identity
from intarsia.site.key import SketchKey
from intarsia.site.site import Site
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study
from intarsia.wire.study_parts import SERVER

NAMES = ("clinic", "mri", "lab")
RUN = "0123456789abcdef0123456789abcdef"
KEY = SketchKey(bytes(range(32)))
# Rules of a site whose parts of a prediction leave as they are, not rounded.
NOT_ROUNDED = {"one_column": "allow", "digits": 12, "max_bits": 1000}
FIT = {"draws": 60, "warmup": 40, "chains": 2, "thin": 1, "seed": 7}


def frames(n: int = 400, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Tables of the same subjects in different orders; two responses at the clinic, one at the lab."""
    rng = np.random.default_rng(seed)
    ids = [f"S{i:04d}" for i in range(n)]
    X = {name: rng.standard_normal((n, 6)) * (1 + k) + 10 * k for k, name in enumerate(NAMES)}
    signal = 2.0 * X["clinic"][:, 0] - 1.5 * (X["mri"][:, 1] - 10) / 2 + (X["lab"][:, 2] - 20) / 3
    out = {}
    for k, name in enumerate(NAMES):
        frame = pd.DataFrame(X[name], columns=[f"{name}_{j}" for j in range(6)])
        frame.insert(0, "id", ids)
        if name == "clinic":
            frame["alt"] = 50 + 5 * signal + rng.standard_normal(n)
            frame["ast"] = -3 * signal + rng.standard_normal(n)
        if name == "lab":
            frame["hdl"] = 100 + X["lab"][:, 0] + rng.standard_normal(n)
        out[name] = frame.sample(frac=1.0, random_state=k).reset_index(drop=True)
    return out


RESPONSES: dict[str, list[str]] = {"clinic": ["alt", "ast"], "mri": [], "lab": ["hdl"]}


def sites(tables: dict[str, Any], *, identities: bool = False, key: SketchKey | None = KEY, **options: Any) -> list[Site]:
    return [
        Site(
            name,
            tables[name],
            id="id",
            responses=RESPONSES[name],
            predict={"one_column": "allow"},  # each site has one strong feature here
            key=None if identities else key,
            identity=Identity.new(name) if identities else None,
            **options,
        )
        for name in NAMES
    ]


def fingerprints(folder: Path, source: Path) -> Path:
    """The list an operator would have made by telephone, for a study file nobody has tampered with."""
    found = SiteFolder.load(folder).review(source).to_compare
    path = folder / "fingerprints.txt"
    path.write_text("".join(f"{name} {words}\n" for name, words in found.items()), encoding="utf-8")
    return path


def study(parties: list[Site] | None = None, *, m: int = 60, **tables: Any) -> Study:
    roster = []
    for k, name in enumerate(NAMES):
        entry: dict[str, Any] = {"name": name, "features": [f"{name}_*"], "responses": RESPONSES[name]}
        if not entry["responses"]:
            del entry["responses"]
        identity = None if parties is None else parties[k].identity
        if identity is not None:
            entry |= {"exchange_key": identity.exchange_key, "signing_key": identity.signing_key}
        roster.append(entry)
    content = {"id": "liver", "run": RUN, "sketch": {"m": m}, "fit": FIT, "site": roster}
    return Study.from_dict(content | tables)


def fixed_identity(name: str) -> Identity:
    """The same keys every time: what rests on chance must not rest on a key of this moment."""
    exchange, signing = (hashlib.sha256(f"{name} {what}".encode()).digest() for what in ("exchange", "signing"))
    return Identity(name, X25519PrivateKey.from_private_bytes(exchange), Ed25519PrivateKey.from_private_bytes(signing))


def predicts_with(posterior: Posterior) -> np.ndarray:
    """Coefficients (feature, response) that sites predict with, from what the server keeps."""
    draws, weighed = posterior.draws, kept(posterior).weighed
    assert weighed is not None
    added = weighed.coefficients
    if draws.background is not None:
        added = added + draws.background
        added = rounded(added, np.sqrt(np.square(added).mean(axis=0)))
    assert np.abs(added).max() > 1e-4  # the ridge has a part in it
    return np.asarray(draws.mean() + added)


def gram_sites(tables: dict[str, Any], **options: Any) -> list[Site]:
    """The three sites with identities, as a Gram study needs them."""
    parties = sites(tables, key=None, **options)
    for site in parties:
        site.identity = fixed_identity(site.name)
    return parties


def gram_study(parties: list[Site], **tables: Any) -> Study:
    return study(parties, sketch={"kind": "gram", "rows": 128}, **tables)


def screened_study(parties: list[Site], *, again: int = 0, keep: int = 5, m: int = 0, **tables: Any) -> Study:
    plan = {"kind": "screened", "rows": 128, "keep": keep} | ({"again": again} if again else {}) | ({"m": m} if m else {})
    return study(parties, sketch=plan, **tables)


def gram_parties(number: int, n: int = 240, seed: int = 0) -> tuple[list[Site], dict[str, pd.DataFrame]]:
    """Two, four or more sites with identities; the first two bring a response each. Also their tables."""
    rng = np.random.default_rng(seed)
    names = [f"site{k}" for k in range(number)]
    X = {name: rng.standard_normal((n, 3 + k % 2)) for k, name in enumerate(names)}
    tables, parties = {}, []
    for k, name in enumerate(names):
        frame = pd.DataFrame(X[name], columns=[f"{name}_{j}" for j in range(X[name].shape[1])])
        frame.insert(0, "id", [f"S{i:04d}" for i in range(n)])
        if k < 2:
            frame[f"y{k}"] = X[names[-1]][:, 0] - X[names[0]][:, 1] + rng.standard_normal(n)
        tables[name] = frame.sample(frac=1.0, random_state=k).reset_index(drop=True)
        responses = [f"y{k}"] if k < 2 else []
        parties.append(Site(name, tables[name], id="id", responses=responses, identity=fixed_identity(name)))
    return parties, tables


def gram_study_of(parties: list[Site], holders: list[str], **sketch: Any) -> Study:
    """A Gram study of any number of sites; `holders` hold the shares."""
    return study_of_shares(parties, {"kind": "gram", "rows": 100, "holders": holders} | sketch)


def screened_study_of(parties: list[Site], holders: list[str], *, keep: int = 4, again: int = 0, **sketch: Any) -> Study:
    """A screened study of any number of sites."""
    return study_of_shares(parties, {"kind": "screened", "rows": 100, "holders": holders, "keep": keep, "again": again} | sketch)


def study_of_shares(parties: list[Site], plan: dict[str, Any]) -> Study:
    roster = [
        {"name": site.name, "features": [f"{site.name}_*"], "responses": list(site.roles["responses"]),
         "exchange_key": site.own_identity().exchange_key, "signing_key": site.own_identity().signing_key}
        for site in parties
    ]  # fmt: skip
    return Study.from_dict({"id": "liver", "run": RUN, "sketch": plan, "fit": FIT, "site": roster})


def pooled_columns(parties: list[Site], tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """All columns of the same subjects, standardised, in the order of the joint matrix."""
    parts = []
    for site in parties:
        frame = tables[site.name].set_index("id").sort_index()
        last = list(site.roles["responses"])
        parts.append(frame[[c for c in frame if c not in last] + last])
    whole = pd.concat(parts, axis=1)
    return (whole - whole.mean()) / whole.std(ddof=1)


def gram_by_files(folders: Sequence[Path], study: Study, where: Path, monkeypatch: Any) -> StudyFolder:
    """The steps of docs/gram.md in the current folder `where`, by sites that have accepted the study: the folder at the server,
    with nothing fitted."""

    def each(step: str, *files: Path, out: str = "", more: tuple[str, ...] = ()) -> None:
        for folder in folders:
            to = ("-o", f"{folder.name}.{out}") if out else ()
            assert main(["site", step, str(folder), *map(str, files), *more, *to]) == 0

    def all_of(kind: str) -> list[Path]:
        return sorted(where.glob(f"*.{kind}"))

    each("offer", out="offer")
    each("share", *all_of("offer"), out="share")
    each("combine", *all_of("share"), out="confirmation")
    each("seal", *all_of("confirmation"))
    each("sketch", out="gram", more=("--yes",))
    each("deal", *all_of("gram"), out="deal")
    each("multiply", *all_of("deal"), out="product")
    monkeypatch.setattr("intarsia.carriers.files.fit", lambda *_args, **_more: {"verdict": "not asked for"})
    held_by_server = SERVER in study.sketch.holders
    fit_files([*all_of("gram"), *all_of("product"), *(all_of("deal") if held_by_server else ())], study, where / "out")
    return StudyFolder.open(where / "out")
