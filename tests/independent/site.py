"""A site of a study by files that knows docs/protocol.md, docs/protocol-bytes.md and vectors/study.json, and nothing of intarsia.

    python tests/independent/site.py FOLDER offer|share|combine|announce|align|sketch [FILES]

FOLDER holds secret.json (name, exchange, signing in hexadecimal, table, id), study.toml and the table, a CSV file. Each step
reads the other sites' files, checks them, and writes NAME.STEP into FOLDER. It has no privacy gate and no ledger.
"""

import base64
import csv
import fnmatch
import hashlib
import hmac
import json
import secrets
import struct
import sys
import tomllib
import unicodedata
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy.special import ndtri

DEFAULTS = Path(__file__).parents[2] / "vectors" / "study.json"
SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
TABLES = ("sketch", "alignment", "fit", "deliver", "predict", "privacy", "model")
EXTENSION = {"announce": "announcement", "align": "alignment", "combine": "confirmation"}


class RefusedError(Exception):
    """What came does not fit."""


def sha(data):
    return hashlib.sha256(data).digest()


def mac(key, data):
    return hmac.digest(key, data, "sha256")


def expand(secret, info, salt=None):
    return HKDF(SHA256(), 32, salt=salt, info=info).derive(secret)


def b64(raw):
    return base64.b64encode(raw).decode()


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def subkey(key, label, study, context="", name="derive"):
    return expand(key, parts("intarsia/1", name, label, study["id"], study["run"], context), b"intarsia sketch key")


def parts(*texts):
    return b"".join(len(t.encode()).to_bytes(4, "big") + t.encode() for t in texts)


def read_study(text):
    """The content with defaults filled in, and its hash."""
    given = tomllib.loads(text)
    defaults = json.loads(json.loads(DEFAULTS.read_text())["canonical"])
    out = {"schema": 2, "id": given["id"], "run": given["run"].lower()}
    out |= {name: given[name] for name in ("title", "replaces", "reason") if given.get(name)}
    for table in TABLES:
        out[table] = defaults[table] | given.get(table, {})
        for entry, value in out[table].items():
            if isinstance(defaults[table].get(entry), float):
                out[table][entry] = float(value)
    out["site"] = [{"features": [], "responses": [], "covariates": []} | entry for entry in given["site"]]
    return out, hashlib.sha256(b"intarsia study 1\n" + canonical(out)).hexdigest()


def pack(kind, header, arrays):
    entries, chunks = [], []
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array)
        entries.append({"name": name, "dtype": f"{raw.dtype.kind}{raw.dtype.itemsize}", "shape": list(raw.shape)})
        data = raw.astype(raw.dtype.newbyteorder("<")).tobytes()
        chunks.append(data + bytes(-len(data) % 64))
    content = {"kind": kind, "header": header, "arrays": entries}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(16 + len(text)) % 64)
    whole = struct.pack("<8sII", b"INTARSIA", 1, len(text)) + text + b"".join(chunks)
    return whole + sha(whole)


def unpack(raw, kind):
    if len(raw) < 48 or raw[:8] != b"INTARSIA" or struct.unpack_from("<I", raw, 8) != (1,) or sha(raw[:-32]) != raw[-32:]:
        raise RefusedError("not a container, or damaged")
    length = struct.unpack_from("<I", raw, 12)[0]
    content = json.loads(raw[16 : 16 + length])
    if content["kind"] != kind:
        raise RefusedError(f"a {content['kind']}, not a {kind}")
    arrays, at = {}, 16 + length
    for entry in content["arrays"]:
        dtype = np.dtype(entry["dtype"]).newbyteorder("<")
        size = int(np.prod(entry["shape"])) * dtype.itemsize
        arrays[entry["name"]] = np.frombuffer(raw[at : at + size], dtype).reshape(entry["shape"])
        at += size + -size % 64
    if at + 32 != len(raw):
        raise RefusedError("the arrays do not fill the container")
    return content["header"], arrays


def columns_of_g(key, m, n):
    """G (m × n), column by column from its own block of the key stream."""
    G, blocks = np.empty((m, n)), -(-m // 8)
    for i in range(n):
        chunk, first = divmod(i, 4096)
        nonce = (first * blocks).to_bytes(4, "little") + chunk.to_bytes(12, "little")
        stream = Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(64 * blocks))
        w = np.frombuffer(stream, "<u8")[:m]
        q = ((w >> np.uint64(12)).astype(float) + (0.5 - 2.0**51)) * 2.0**-52  # exact: u − ½
        G[:, i] = np.where(q < 0, ndtri(q + 0.5), -ndtri(0.5 - q))
    return G


def design(key, study, n, order_mac):
    m, kind = study["sketch"]["m"], study["sketch"]["kind"]
    G = columns_of_g(subkey(key, "sketch", study, json.dumps([n, m, kind, order_mac])), m, n)
    if kind == "gaussian":
        return G / np.sqrt(n)
    G = G - G.mean(axis=1, keepdims=True)
    return np.linalg.solve(np.linalg.cholesky(G @ G.T), G)


def standardised(values):
    return (values - values.mean(axis=0)) / values.std(axis=0, ddof=1)


def clean(text, rules):
    for rule in rules:
        text = {
            "strip": str.strip, "nfc": lambda t: unicodedata.normalize("NFC", t), "lower": str.lower, "upper": str.upper,
            "collapse": lambda t: " ".join(t.split()), "no-leading-zeros": lambda t: t.lstrip("0") or "0",
        }[rule](text)  # fmt: skip
    return text


def order_of(key, study, ids):
    """Tokens in ascending order, the rows they belong to, and the order's MAC."""
    token_key = subkey(key, "align-cohort", study)
    texts = [clean(text, study["alignment"]["canonical"]) for text in ids]
    tokens = [mac(token_key, text.encode())[:16] for text in texts]
    if len(set(tokens)) != len(tokens):
        raise RefusedError("two rows have one id")
    rows = sorted(range(len(tokens)), key=tokens.__getitem__)
    proof = len(rows).to_bytes(8, "big") + b"".join(tokens[i] for i in rows)
    return [tokens[i] for i in rows], rows, mac(subkey(key, "order-cohort", study), proof).hex()


class Site:
    """One site's folder and what it has agreed on so far."""

    def __init__(self, folder):
        self.folder, self.state = Path(folder), {}
        own = json.loads((self.folder / "secret.json").read_text())
        self.own, self.name = own, own["name"]
        self.study, self.hash = read_study((self.folder / "study.toml").read_text())
        self.roster = {entry["name"]: entry for entry in self.study["site"]}
        if (self.folder / "state.json").exists():
            self.state = {k: bytes.fromhex(v) for k, v in json.loads((self.folder / "state.json").read_text()).items()}

    @property
    def names(self):
        return list(self.roster)

    def keep(self, **secrets_):
        self.state |= secrets_
        text = json.dumps({k: v.hex() for k, v in self.state.items()})
        (self.folder / "state.json").touch(mode=0o600)
        (self.folder / "state.json").write_text(text)

    # Signed messages.

    def body(self, kind, entries):
        return canonical({"kind": kind, "site": self.name, "study_hash": self.hash} | entries)

    def signed(self, kind, entries):
        body = self.body(kind, entries)
        signature = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.own["signing"])).sign(body)
        return canonical({"body": body.decode(), "signature": b64(signature)})

    def checked(self, raw, kind):
        """The entries of a signed message of another site of this run, and its body."""
        outer = json.loads(raw)
        body = json.loads(outer["body"])
        if canonical(outer) != raw or canonical(body) != outer["body"].encode() or body["kind"] != kind:
            raise RefusedError(f"not a {kind} in its one form")
        if body["study_hash"] != self.hash or body["site"] not in self.roster:
            raise RefusedError(f"the {kind} of {body['site']} is of another study")
        key = base64.b64decode(self.roster[body["site"]]["signing_key"])
        Ed25519PublicKey.from_public_bytes(key).verify(base64.b64decode(outer["signature"]), outer["body"].encode())
        return body, outer["body"].encode()

    def all_of(self, files, kind):
        found = {}
        for raw in files:
            body, signed_bytes = self.checked(raw, kind)
            found[body["site"]] = (body, signed_bytes, raw)
        if set(found) != set(self.names):
            raise RefusedError(f"not every site's {kind} is here")
        return {name: found[name] for name in self.names}

    # The study key.

    def run_key(self):
        raw = self.state["run_key"]
        return MLKEM768PrivateKey.from_seed_bytes(raw[:64]), X25519PrivateKey.from_private_bytes(raw[64:])

    def offer(self, files):
        self.keep(run_key=secrets.token_bytes(96), secret=secrets.token_bytes(64))
        lattice, curve = self.run_key()
        public = lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()
        return self.signed("offer", {"public": b64(public), "suite": "X25519+ML-KEM-768"})

    def share(self, files):
        offers = self.all_of(files, "offer")
        digest = hashlib.sha256(b"intarsia offers 2|" + self.hash.encode())
        for _, body, _ in offers.values():
            digest.update(sha(body))
        own, sealed = self.state["secret"], {}
        for peer in self.names:
            if offers[peer][0]["suite"] != "X25519+ML-KEM-768":
                raise RefusedError("a weaker suite")
            if peer != self.name:
                public = base64.b64decode(offers[peer][0]["public"])
                lattice = MLKEM768PublicKey.from_public_bytes(public[:1184])
                key = MLKEM768X25519PublicKey(lattice, X25519PublicKey.from_public_bytes(public[1184:]))
                content = own[:32] + mac(own[32:], f"intarsia pair part 1|{self.hash}|{peer}".encode())
                sealed[peer] = b64(SUITE.encrypt(content, key, self.context(self.name, peer)))
        self.keep(offers=digest.digest())
        commitment = self.committed(self.name, own[:32])
        entries = {"commitment": b64(commitment), "offers": b64(digest.digest()), "sealed": sealed}
        message = self.signed("share", entries)
        self.keep(share=message)
        return message

    def context(self, sender, receiver):
        return f"intarsia share 3|{self.hash}|{sender}|{receiver}".encode()

    def committed(self, site, share):
        return mac(share, f"intarsia commitment 3|{self.hash}|{site}".encode())

    def combine(self, files):
        shares, transcript = [], hashlib.sha256(b"intarsia transcript 3|" + self.hash.encode())
        for name, (body, _, raw) in self.all_of(files, "share").items():
            transcript.update(sha(raw))
            if base64.b64decode(body["offers"]) != self.state["offers"]:
                raise RefusedError(f"{name} was shown other offers")
            if name == self.name:
                if raw != self.state["share"]:
                    raise RefusedError("the own share was changed")
                shares.append(self.state["secret"][:32])
                continue
            sealed, key = base64.b64decode(body["sealed"][self.name]), MLKEM768X25519PrivateKey(*self.run_key())
            share = SUITE.decrypt(sealed, key, self.context(name, self.name))[:32]
            if self.committed(name, share) != base64.b64decode(body["commitment"]):
                raise RefusedError(f"{name} gave another share than it committed to")
            shares.append(share)
        seen = transcript.digest()
        self.keep(key=expand(b"".join(shares), f"intarsia study key 3|{self.hash}".encode(), seen), transcript=seen)
        return self.confirmation(self.name)

    @property
    def fingerprint(self):
        info = parts("intarsia/1", "fingerprint", self.hash)
        return expand(self.state["key"], info, b"intarsia sketch key")[:16].hex()

    def confirmation(self, site):
        """The one that a site which has the same key must make."""
        key = expand(self.state["key"], b"intarsia confirm 3", self.state["transcript"])
        body = {"kind": "confirmation", "site": site, "study_hash": self.hash, "fingerprint": self.fingerprint}
        body["mac"] = b64(mac(key, f"{self.hash}|{site}".encode()))
        return canonical(body | {"sha256": sha(canonical(body)).hex()})

    # Subjects and sketch.

    def announce(self, files):
        if sorted(files) != sorted(self.confirmation(name) for name in self.names):
            raise RefusedError("not every site proved the same key")
        self.keep(sealed=b"1")
        ids, own = self.table()
        counts = [len(ids), sum(len(labels) for labels in own.values()), len(own["covariates"]), None]
        told = ["announcement", self.name, self.hash, *counts]
        proof = mac(subkey(self.state["key"], "announce", self.study), json.dumps(told).encode()).hex()
        header = dict(zip(("n", "columns", "covariates", "ledger"), counts, strict=True))
        return pack("announcement", header | {"site": self.name, "study_hash": self.hash, "mac": proof}, {})

    def table(self):
        """Ids, and by role the labels with their values."""
        with (self.folder / self.own["table"]).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        entry, out = self.roster[self.name], {}
        labels = [label for label in rows[0] if label != self.own["id"]]
        for role in ("responses", "covariates", "features"):
            taken = {label for some in out.values() for label in some}
            chosen = [a for a in labels if a not in taken and any(fnmatch.fnmatchcase(a, p) for p in entry[role])]
            out[role] = {label: [float(row[label]) for row in rows] for label in chosen}
        return [row[self.own["id"]] for row in rows], out

    def align(self, files):
        ids, _ = self.table()
        order_mac = order_of(self.state["key"], self.study, ids)[2]
        header = {"site": self.name, "study_hash": self.hash, "mode": "strict", "n": len(ids), "mac": order_mac}
        return pack("alignment", header, {})

    def sketch(self, files):
        if "sealed" not in self.state:
            raise RefusedError("the key is not confirmed")
        ids, own = self.table()
        _, rows, order_mac = order_of(self.state["key"], self.study, ids)
        plan, arrays = self.study["sketch"], {}
        Phi = design(self.state["key"], self.study, len(ids), order_mac)
        for letter, role in (("X", "features"), ("Y", "responses"), ("Z", "covariates")):
            values = np.array([own[role][label] for label in own[role]]).reshape(len(own[role]), len(ids)).T[rows]
            product = Phi @ standardised(values) if own[role] else np.empty((plan["m"], 0))
            arrays[letter] = product.astype(plan["precision"])
        header = {role: list(labels) for role, labels in own.items()}
        header |= {"schema": 3, "site": self.name, "n": len(ids), "m": plan["m"], "kind": plan["kind"]}
        header |= {"precision": plan["precision"], "study_hash": self.hash, "key_fingerprint": self.fingerprint}
        header |= {"order_mac": order_mac, "noise": 0.0, "response_scales": [], "most_told": None}
        return pack("sketch", header, arrays)

    def step(self, step, files):
        """One step: the message, in a file, and its signature beside it where that counts."""
        message = getattr(self, step)([Path(file).read_bytes() for file in files])
        path = self.folder / f"{self.name}.{EXTENSION.get(step, step)}"
        path.write_bytes(message)
        if step in ("align", "sketch"):
            signature = self.signed("file", {"digest": sha(message).hex()})
            path.with_name(path.name + ".sig").write_bytes(signature)
        return path


if __name__ == "__main__":
    print(Site(sys.argv[1]).step(sys.argv[2], sys.argv[3:]))
