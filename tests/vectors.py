"""Test vectors of the protocol: fixed inputs and what an implementation must make of them, for those who write their own.

    python -m tests.vectors            # writes vectors/*.json anew

`tests/exact/test_vectors.py` holds the program against the files, `tests/independent/` takes part in a study knowing them and
the protocol pages alone. All keys here are public. Bytes are hexadecimal; numbers that must be right to the last bit are IEEE
doubles, little-endian, in hexadecimal. Seals are made with fresh randomness, so those in the file are kept as long as they open.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from intarsia.errors import FederationError
from intarsia.site import agreement, hybrid_seal
from intarsia.site.align import canonical, tokenise
from intarsia.site.gram.shares import Splitting
from intarsia.site.identity import Identity
from intarsia.site.key import SketchKey
from intarsia.site.sketch.partial import Design
from intarsia.site.sketch.sketch import SketchTerms, factor, gaussian_columns, sketch
from intarsia.site.sketch.stream import gaussianise
from intarsia.wire.announcement import Announcement
from intarsia.wire.container import pack
from intarsia.wire.gram_packets import Packet
from intarsia.wire.gram_sharing import Sharing, opening_weights, stream, terms
from intarsia.wire.leave import Leave
from intarsia.wire.ring import encode, fraction_bits, product
from intarsia.wire.signed import FileSignature, Receipt, ShareBundle
from intarsia.wire.study import Study

FOLDER = Path(__file__).parents[1] / "vectors"
NAMES = ("clinic", "mri", "lab")
KEY = SketchKey(bytes(range(32)))
Vector = dict[str, Any]


def secret(words: str, size: int = 32) -> bytes:
    """A secret of the vectors, which everybody knows."""
    return hashlib.shake_256(b"intarsia vectors|" + words.encode()).digest(size)


def doubles(array: Any) -> str:
    return np.ascontiguousarray(array, dtype="<f8").tobytes().hex()


def words64(array: Any) -> str:
    return np.ascontiguousarray(array, dtype="<u8").tobytes().hex()


def identity(name: str) -> Identity:
    exchange = X25519PrivateKey.from_private_bytes(secret(f"{name} exchange"))
    return Identity(name, exchange, Ed25519PrivateKey.from_private_bytes(secret(f"{name} signing")))


def study_toml() -> str:
    lines = ['id = "vectors"', 'run = "0123456789abcdef0123456789abcdef"', "", "[sketch]", "m = 12"]
    for name in NAMES:
        lines += ["", "[[site]]", f'features = ["{name}_*"]', *identity(name).toml().splitlines()]
        lines += ['responses = ["hdl"]'] if name == "lab" else []
    return "\n".join(lines) + "\n"


def the_study() -> Study:
    return Study.parse(study_toml())


def study() -> Vector:
    found = the_study()
    text = json.dumps(found.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return {"toml": study_toml(), "canonical": text, "hash": found.hash}


def keyed_stream() -> Vector:
    subkey, m = secret("stream"), 11
    columns = {str(i): doubles(gaussian_columns(subkey, m, i, i + 1)[:, 0]) for i in (0, 1, 4095, 4096, 1_000_000)}
    w = np.array([0, 2**63, 2**64 - 1, 2**60, 2**45, 2**12, 7 * 2**61, 0x0123456789ABCDEF], dtype=np.uint64)
    out = np.empty(len(w))
    gaussianise(w.copy(), out)
    return {"subkey": subkey.hex(), "m": m, "columns": columns, "words": words64(w), "normals": doubles(out)}


def derived_keys() -> Vector:
    asked = [("align-cohort", ""), ("order-cohort", ""), ("announce", ""), ("sketch", '[20, 5, "orthonormal", ""]')]
    rows = [{"label": a, "context": c, "subkey": KEY.derive(a, "vectors", "ab" * 16, context=c).hex()} for a, c in asked]
    return {
        "key": KEY._secret.hex(), "study": "vectors", "run": "ab" * 16, "subkeys": rows, "fingerprint": KEY.fingerprint,
        "study_hash": "cd" * 32, "study_fingerprint": KEY.study_fingerprint("cd" * 32),
    }  # fmt: skip


def phi() -> Vector:
    out: Vector = {"key": KEY._secret.hex(), "study": "vectors", "run": "ab" * 16, "n": 20, "m": 5, "order_mac": "", "kinds": {}}
    rng = np.random.default_rng(0)
    table = {"x": rng.standard_normal(20).round(3), "z": np.arange(20.0) ** 2, "y": rng.standard_normal(20).round(3) + 10}
    out["table"] = {name: values.tolist() for name, values in table.items()}
    for kind in ("gaussian", "orthonormal"):
        given = SketchTerms("vectors", "ab" * 16, 5, kind, site="clinic")
        design: Design = given.design(KEY, 20)
        G = gaussian_columns(design.subkey, 5, 0, 20)
        Phi = G / np.sqrt(20) if kind == "gaussian" else np.linalg.solve(factor(design), G - G.mean(axis=1, keepdims=True))
        X = sketch(table, KEY, given).message.X
        out["kinds"][kind] = {"subkey": design.subkey.hex(), "phi": Phi.tolist(), "sketch": X.tolist()}
    return out


def tokens() -> Vector:
    found, ids = the_study(), ["S03", " S01 ", "S02", "17", "A\u030angstro\u0308m"]
    made = tokenise(ids, KEY, found)
    return {
        "key": KEY._secret.hex(), "ids": ids, "rules": list(found.alignment.canonical),
        "canonical": canonical(ids, found.alignment.canonical), "tokens": [t.tobytes().hex() for t in made.tokens],
        "rows": made.rows.tolist(), "order_mac": made.mac(), "without_the_second": made.mac(np.arange(5) != 1),
    }  # fmt: skip


class Parties:
    """What the three sites of the vectors make of their secrets."""

    def __init__(self, kept: Vector | None = None):
        self.study, self.ids = the_study(), {name: identity(name) for name in NAMES}
        self.run_keys = {name: secret(f"{name} run key", hybrid_seal.PRIVATE_BYTES) for name in NAMES}
        self.secrets = {name: secret(f"{name} share", 64) for name in NAMES}
        self.offers = {name: agreement.offer(self.study, self.ids[name], self.run_keys[name]) for name in NAMES}
        made = {n: agreement.share(self.study, self.ids[n], self.secrets[n], self.offers) for n in NAMES}
        self.bundles = self._still_good(kept) or made

    def _still_good(self, kept: Vector | None) -> dict[str, ShareBundle]:
        try:
            found = {} if kept is None else {name: ShareBundle.from_bytes(kept["shares"][name].encode()) for name in NAMES}
            for name in NAMES if found else ():
                self.key(name, found)
        except (FederationError, ValueError, KeyError):
            return {}
        return found

    def key(self, name: str, bundles: dict[str, ShareBundle]) -> tuple[bytes, bytes]:
        opened_by = (self.run_keys[name], self.secrets[name])
        return agreement.combine(self.study, self.ids[name], bundles[name], opened_by, bundles)

    def pairs(self, name: str) -> dict[str, bytes]:
        curves = agreement.curve_secrets(self.study, self.ids[name], self.run_keys[name], self.offers)
        opened_by = (self.run_keys[name], self.secrets[name])
        return agreement.pair_secrets(self.study, name, curves, opened_by, self.bundles)


def key_agreement(kept: Vector | None = None) -> Vector:
    p = Parties(kept)
    key, transcript = p.key("clinic", p.bundles)
    fingerprint = SketchKey(key).study_fingerprint(p.study.hash)
    confirmations = {n: agreement.confirm(p.study, n, key, transcript, fingerprint).to_bytes().decode() for n in NAMES}
    private = {
        name: {
            "exchange": secret(f"{name} exchange").hex(), "signing": secret(f"{name} signing").hex(),
            "run_key": p.run_keys[name].hex(), "secret": p.secrets[name].hex(),
        }
        for name in NAMES
    }  # fmt: skip
    return {
        "study_hash": p.study.hash, "private": private,
        "offers": {name: offer.to_bytes().decode() for name, offer in p.offers.items()},
        "shares": {name: bundle.to_bytes().decode() for name, bundle in p.bundles.items()},
        "key": key.hex(), "transcript": transcript.hex(), "confirmations": confirmations,
        "pairs": {a: {b: raw.hex() for b, raw in p.pairs(a).items()} for a in NAMES},
        "fingerprints": {name: p.ids[name].fingerprint for name in NAMES},
        "words": {name: p.ids[name].words for name in NAMES},
    }  # fmt: skip


def signed_messages() -> Vector:
    here, lab = the_study(), identity("lab")
    leave = Leave("lab", here.hash).proved(KEY.derive("leave", here.id, here.run))
    told = (FileSignature("lab", here.hash, "ef" * 32), Receipt("lab", here.hash, "ef" * 32, 3, "12" * 32), leave)
    made = {one.kind: replace(one, signature=lab.sign(one.body())).to_bytes().decode() for one in told}
    keys = {"signing": secret("lab signing").hex(), "signing_key": lab.signing_key, "leave_key": KEY._secret.hex()}
    return keys | {"messages": made}


def proved(content: bytes) -> bytes:
    """With a digest that fits."""
    return content + hashlib.sha256(content).digest()


def containers() -> Vector:
    array = np.array([[1.5, -2.0], [0.25, 4.0]])
    good = pack("example", {"site": "lab", "größe": [1, None, True]}, {"values": array, "counts": np.array([3, 4], dtype="<i4")})
    changed = bytearray(good)
    changed[30] ^= 1
    key = KEY.derive("announce", the_study().id, the_study().run)
    announced = Announcement("lab", the_study().hash, 40, 4, covariates=1, ledger=2).signed(key).to_bytes()
    padded = pack("example", {}, {"values": np.zeros(2)})
    return {
        "good": {"kind": "example", "bytes": good.hex(), "values": array.tolist(), "counts": [3, 4]},
        "announcement": {"bytes": announced.hex(), "key": key.hex(), "n": 40, "columns": 4, "covariates": 1, "ledger": 2},
        "refused": {
            "a byte changed": bytes(changed).hex(), "cut": good[:-7].hex(),
            "another version": proved(good[:8] + b"\2" + good[9:-32]).hex(),
            "another mark": proved(b"INTARSIB" + good[8:-32]).hex(),
            "more than it claims": proved(padded[:-32] + bytes(64)).hex(),
        },
    }  # fmt: skip


def three_shares() -> Vector:
    """Products of the columns of three sites that hold shares themselves: two subjects' worth of everything that leaves."""
    sharing, rng, bits = Sharing(NAMES, NAMES), np.random.default_rng(1), fraction_bits(6)
    columns = {name: encode(rng.standard_normal((6, 2)).round(2), bits, np.zeros((6, 2))) for name in NAMES}
    made = {name: Splitting(sharing, name, secret(f"{name} gram")) for name in NAMES}
    wide = {name: made[name].wide(columns[name]) for name in NAMES}
    packets: dict[str, dict[str, Packet]] = {holder: {} for holder in NAMES}
    for name in NAMES:
        sent = made[name].shares(0, wide[name])[sharing.sent(name)]
        for holder in set(NAMES) - {name}:
            packets[holder][name] = made[name].packet(holder, sent, None)
    total: dict[str, Any] = {}
    for holder in NAMES:
        own = {name: p.shares(sharing, name, 0, wide[name].shape) for name, p in packets[holder].items()}
        held = set(sharing.held(holder))
        own[holder] = {k: v for k, v in made[holder].shares(0, wide[holder]).items() if k in held}
        for pair, term in terms(sharing, holder, own).items():
            total[pair] = total.get(pair, 0) + term
    truth = {pair: product(wide[a], wide[b]) for pair, (a, b) in sharing.pairs.items()}
    assert all((total[pair] == truth[pair]).all() for pair in truth)
    coins = {name: made[name].coin for name in NAMES}
    return {
        "order": list(NAMES), "bits": bits, "secrets": {name: secret(f"{name} gram").hex() for name in NAMES},
        "columns": {name: [words64(row) for row in columns[name]] for name in NAMES},
        "check_seeds": {name: made[name].check_seed.hex() for name in NAMES},
        "packets": {holder: {name: p.raw().hex() for name, p in sorted(some.items())} for holder, some in packets.items()},
        "products": {pair: [words64(row) for row in value] for pair, value in truth.items()},
        "opening_weights": {name: words64(opening_weights(coins, name, 2)[0]) for name in NAMES},
        "stream": {"secret": secret("ring").hex(), "number": 7, "first": words64(stream(secret("ring"), 7, (8,)))},
    }  # fmt: skip


MADE: dict[str, Callable[[], Vector]] = {
    "study": study, "stream": keyed_stream, "keys": derived_keys, "phi": phi, "tokens": tokens, "signed": signed_messages,
    "container": containers, "three_shares": three_shares,
}  # fmt: skip


def read(name: str) -> Vector:
    return dict(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    kept = read("agreement") if (FOLDER / "agreement.json").is_file() else None
    for name, made in {**{name: make() for name, make in MADE.items()}, "agreement": key_agreement(kept)}.items():
        text = json.dumps(made, indent=1, ensure_ascii=True, sort_keys=True)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
