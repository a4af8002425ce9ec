"""`Site`: one party of a study, behind its own wall. Each step takes a message and gives a message, nothing else.

Which table, which key and which policy are the site's own decision; no message from outside can change them. Every step
may be repeated: it finds in the run folder what it made the first time and sends the same.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.errors import FederationError, InputError, KeyFileError, MessageError, StudyError
from intarsia.site import agreement
from intarsia.site.align import Tokens, report, settle, tokenise
from intarsia.site.data.table import Table
from intarsia.site.identity import Identity
from intarsia.site.key import SketchKey
from intarsia.site.masks import from_fixed, to_fixed, total_mask
from intarsia.site.prediction import Prediction, SiteModel, Units
from intarsia.site.run_store import RunStore
from intarsia.wire.alignment import Cohort
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.messages import Sketch
from intarsia.wire.prediction import PartialPrediction
from intarsia.wire.schema import check_name
from intarsia.wire.signed import Confirmation, FileSignature, ShareBundle
from intarsia.wire.study import Study

# Parts of a prediction are in standard deviations: 2⁻⁴⁰ ≈ 1e-12 apart, up to ± 2 million.
_BITS = 40
ABORTED = "stopped.json"


class Site:
    """A party: its name, its table and the roles of the columns, its identity and its folder (None: in memory)."""

    def __init__(
        self,
        name: str,
        data: Any = None,
        *,
        id: Any = None,
        features: Sequence[str] | str | None = None,
        responses: Sequence[str] | str = (),
        covariates: Sequence[str] | str = (),
        ignore: Sequence[str] | str = (),
        missing: str = "error",
        constant: str = "error",
        options: Mapping[str, Any] | None = None,
        key: SketchKey | str | Path | None = None,
        identity: Identity | None = None,
        folder: str | Path | None = None,
        policy: Mapping[str, Any] | None = None,
    ):
        if not check_name(name):
            raise InputError("A site name is 1 to 63 letters, digits, '-' or '_'.")
        self.name = name
        self.data = data
        self.roles: dict[str, Any] = {"id": id, "features": features, "responses": responses, "covariates": covariates}
        self.roles |= {"ignore": ignore, "missing": missing, "constant": constant}
        self.options = dict(options or {})  # further arguments of Table.open: columns, missing_codes, reading
        self.identity = identity
        self.folder = None if folder is None else Path(folder)
        self.policy = dict(policy or {})
        self._key = SketchKey.load(key) if isinstance(key, str | Path) else key
        self._table: Table | None = None
        self._stores: dict[str, RunStore] = {}
        self._tokens: dict[str, Tokens] = {}

    def __repr__(self) -> str:
        return f"Site({self.name!r})"

    def table(self) -> Table:
        if self._table is None:
            if self.data is None:
                raise InputError(f"Site {self.name!r} has no table; say where it is in its own site.toml.")
            self._table = Table.open(self.data, **self.roles, **self.options)
        return self._table

    def run_store(self, study: Study) -> RunStore:
        """Where this site keeps what belongs to this run of the study."""
        study.site(self.name)
        if study.hash not in self._stores:
            where = None if self.folder is None else self.folder / "studies" / f"{study.id}-{study.hash[:16]}"
            self._stores[study.hash] = RunStore(where)
        return self._stores[study.hash]

    # The study key: brought along, or agreed through a relay that learns nothing.

    def set_key(self, study: Study, key: SketchKey) -> None:
        self._save_key(self.run_store(study), key)

    def key(self, study: Study) -> SketchKey:
        store = self.run_store(study)
        secret = store.get("study.secret")
        if secret is not None:
            return SketchKey(secret)
        if self._key is None:
            raise KeyFileError(
                f"Site {self.name!r} has no key for study {study.id!r}. Agree on one with the other sites, or give the "
                "key file that they use."
            )
        return self._key

    def has_key(self, study: Study) -> bool:
        return self._key is not None or self.run_store(study).get("study.secret") is not None

    def _save_key(self, store: RunStore, key: SketchKey) -> None:
        kept = store.put("study.secret", key._secret)
        if SketchKey(kept) != key:
            raise KeyFileError("This site has already agreed on another key for this run of the study.")

    def _identity(self) -> Identity:
        if self.identity is None:
            raise KeyFileError(f"Site {self.name!r} has no identity; make one with `intarsia site init`.")
        return self.identity

    def offer(self, study: Study) -> bytes:
        """Step 1 of the agreement: this site's sealed and signed share."""
        store = self.run_store(study)
        bundle = store.get("offer")
        if bundle is None:
            share = store.put("share.secret", agreement.new_share())
            bundle = store.put("offer", agreement.offer(study, self._identity(), share).to_bytes())
        store.sent("share", bundle)
        return bundle

    def combine(self, study: Study, bundles: Mapping[str, bytes]) -> bytes:
        """Step 2: open the peers' shares, make the key, prove that it was made."""
        store = self.run_store(study)
        share = store.need("share.secret", "Run the first step of the key agreement.")
        read = {name: _named(name, ShareBundle.from_bytes, raw) for name, raw in bundles.items()}
        secret, transcript = agreement.combine(study, self._identity(), share, read)
        key = SketchKey(secret)
        store.replace("pending.secret", secret + transcript)
        confirmation = agreement.confirm(study, self.name, secret, transcript, key.fingerprint).to_bytes()
        store.sent("confirmation", confirmation)
        return confirmation

    def seal(self, study: Study, confirmations: Mapping[str, bytes]) -> None:
        """Step 3: every site proved the same key; from here on it is the study key."""
        store = self.run_store(study)
        pending = store.need("pending.secret", "Run the second step of the key agreement.")
        secret, transcript = pending[:32], pending[32:]
        read = {name: _named(name, Confirmation.from_bytes, raw) for name, raw in confirmations.items()}
        agreement.check_confirmations(study, secret, transcript, read)
        self._save_key(store, SketchKey(secret))

    # Alignment and sketch.

    def tokens(self, study: Study) -> Tokens:
        if study.hash not in self._tokens:
            self._tokens[study.hash] = tokenise(self.table().ids(), self.key(study), study)
        return self._tokens[study.hash]

    def align(self, study: Study) -> bytes:
        """This site's cohort: a keyed digest (strict) or keyed tokens (intersect)."""
        store = self.run_store(study)
        message = store.get("alignment")
        if message is None:
            message = store.put("alignment", report(self.name, study, self.tokens(study)).to_bytes())
        store.sent("alignment", message)
        return message

    def sketch(self, study: Study, cohort: bytes | None = None, *, send: bool = True) -> bytes:
        """This site's sketch over the agreed cohort, after its own privacy gate. Made once; repeated byte for byte.

        `cohort` is the server's answer to `align`; None means a strict study by files, where the order's MAC decides.
        """
        store = self.run_store(study)
        message = store.get("sketch")
        if message is None:
            message = self._sketch(study, store, cohort)
        if send:
            store.sent("sketch", message)
        return message

    def _sketch(self, study: Study, store: RunStore, cohort: bytes | None) -> bytes:
        from intarsia.privacy.ledger import Ledger
        from intarsia.site.card import card_files
        from intarsia.site.preflight import preflight

        tokens = self.tokens(study)
        if cohort is not None:
            agreed = Cohort.from_bytes(cohort)
        elif study.alignment.mode == "strict":
            agreed = Cohort(self.name, study.hash, "strict", tokens.n)
        else:
            raise FederationError("An intersecting study needs the server's answer to the alignment first.")
        order, mac = settle(self.name, study, tokens, agreed)
        table, key = self.table(), self.key(study)
        self._claimed(study, table)
        ledger = None if self.folder is None else Ledger(self.folder / "ledger")
        check = preflight(table, key, study, site=self.name, order=order, order_mac=mac, own_policy=self.policy, ledger=ledger)
        store.replace("preflight.json", json.dumps(check.verdict.as_dict(), indent=1, default=str).encode())
        check.verdict.check()
        claim = check.reserve()
        pending = store.get("sketch.pending")
        if pending is None:
            result = self._make(study, table, key, order, mac, check)
            pending = result.message.to_bytes()
            store.replace("units.secret", Units.from_local(result.local).to_bytes())
            store.replace("columns.json", json.dumps({"levels": {k: list(v) for k, v in table.levels.items()}}).encode())
            for name, content in card_files(check, pending, self.identity, getattr(result, "longest", None)).items():
                store.replace(name, content)
            store.replace("sketch.pending", pending)
        # The ledger fixes these bytes before they may leave; killed in between, the same bytes are fixed next time.
        if ledger is not None and claim is not None:
            ledger.release(claim, pending)
        store.rename("sketch.pending", "sketch")
        return pending

    def _make(self, study: Study, table: Table, key: SketchKey, order: np.ndarray, mac: str, check: Any) -> Any:
        from intarsia.site.sketch.sketch import design, factor, sketch

        plan: dict[str, Any] = {"study": study.id, "run": study.run, "m": study.sketch.m}
        marks: dict[str, Any] = {"order": order, "order_mac": mac, "site": self.name, "study_hash": study.hash}
        marks["precision"] = study.sketch.precision
        if check.noise is not None:
            from intarsia.site.sketch.private import private_sketch

            return private_sketch(table, key, w=check.noise.w, clip=check.clip, **plan, **marks)
        plan["kind"] = study.sketch.kind
        if study.sketch.kind == "orthonormal":
            # L from the key and n alone, in the same blocks everywhere: the same at all sites to the last bit.
            factor(design(key, n=len(order), cohort=mac, **plan))
        return sketch(table, key, **plan, **marks)

    def signature(self, study: Study, message: bytes) -> bytes | None:
        """A detached signature over a message sent by file; None for a site without an identity."""
        if self.identity is None:
            return None
        unsigned = FileSignature(self.name, study.hash, hashlib.sha256(message).hexdigest())
        return replace(unsigned, signature=self.identity.sign(unsigned.body())).to_bytes()

    def _claimed(self, study: Study, table: Table) -> None:
        entry = study.site(self.name)
        for what, labels, claims in (
            ("feature", table.features, entry.claims_feature),
            ("response", table.responses, entry.claims_response),
        ):
            foreign = [label for label in labels if not claims(label)]
            if foreign:
                raise StudyError(
                    f"study.toml does not list the {what} {foreign[0]!r} ({len(foreign)} in all) for site "
                    f"{self.name!r}. Leave it out at the site, or list it in study.toml."
                )

    # After the fit.

    def receive(self, study: Study, message: bytes) -> SiteModel:
        """Take this site's coefficients and map them to its own units."""
        store = self.run_store(study)
        coefficients = Coefficients.from_bytes(message)
        if coefficients.site != self.name or coefficients.study_hash != study.hash:
            raise MessageError(f"These coefficients are not for site {self.name!r} in this run of study {study.id!r}.")
        units = Units.from_bytes(store.need("units.secret", "Coefficients come after the sketch."))
        model = SiteModel(coefficients, units)
        store.replace("coefficients", message)
        return model

    def model(self, study: Study) -> SiteModel:
        store = self.run_store(study)
        raw = store.need("coefficients", "Coefficients come after the fit.")
        units = store.need("units.secret", "Coefficients come after the sketch.")
        return SiteModel(Coefficients.from_bytes(raw), Units.from_bytes(units))

    def predict_part(self, study: Study, request: str, data: Any, *, id: Any = None) -> bytes:
        """This site's masked part of the prediction of new subjects (the rows of `data`)."""
        store = self.run_store(study)
        if not check_name(request):
            raise InputError("The name of a prediction is 1 to 63 letters, digits, '-' or '_'.")
        model = self.model(study)
        X, tokens = self._new(study, request, data, id)
        part, order_mac = model.part(X), tokens.mac()
        digest = _digest(part)
        if store.put(f"request-{request}", digest) != digest:
            raise FederationError(
                f"Prediction {request!r} was made with other data before. Masks are used once: choose another name."
            )
        owners: dict[str, Any] = {}
        for owner in dict.fromkeys(model.coefficients.response_sites):
            if owner == self.name:
                continue
            at = [q for q, site in enumerate(model.coefficients.response_sites) if site == owner]
            fixed = to_fixed(part[:, :, at], _BITS)
            secrets = self._pair_secrets(study, request, owner, order_mac)
            owners[owner] = fixed + total_mask(self.name, secrets, fixed.shape)
        message = PartialPrediction(self.name, study.hash, request, tokens.n, order_mac, owners).to_bytes()
        store.sent(f"prediction {request}", message)
        return message

    def predict_finish(self, study: Study, request: str, data: Any, total: bytes, *, id: Any = None) -> Prediction:
        """Lift this site's masks from the others' sum, add its own part, and return its responses in their units."""
        model = self.model(study)
        message = PartialPrediction.from_bytes(total)
        if message.site != self.name or message.study_hash != study.hash or message.request != request:
            raise MessageError(f"This sum is not for site {self.name!r} and prediction {request!r}.")
        X, tokens = self._new(study, request, data, id)
        order_mac = tokens.mac()
        if message.order_mac != order_mac or message.n != tokens.n:
            raise FederationError(f"The other sites predicted {request!r} for other subjects than site {self.name!r}.")
        at = [q for q, site in enumerate(model.coefficients.response_sites) if site == self.name]
        own = model.part(X)[:, :, at]
        others = message.parts.get(self.name)
        if others is None or others.shape != own.shape:
            raise MessageError("The sum of the other sites' parts has the wrong shape.")
        secrets = self._pair_secrets(study, request, self.name, order_mac)
        sum_others = from_fixed(others + total_mask(self.name, secrets, others.shape), _BITS)
        seed = int.from_bytes(bytes.fromhex(order_mac)[:8], "big")
        finished = model.finish(own + sum_others, seed)
        back = np.argsort(tokens.rows, kind="stable")  # from token order to the order of the site's own table
        ordered = {
            name: None if getattr(finished, name) is None else getattr(finished, name)[back]
            for name in ("mean", "sd", "lower", "upper")
        }
        ids = self._open_new(study, data, id).ids()
        return Prediction(finished.responses, finished.interval, **ordered, ids=ids)  # type: ignore[arg-type]

    def _open_new(self, study: Study, data: Any, id: Any) -> Table:
        levels = json.loads(self.run_store(study).need("columns.json", "Predict after the sketch."))["levels"]
        labels = self.model(study).units.features
        column = {f"{name}={text}": name for name, texts in levels.items() for text in texts}
        names = list(dict.fromkeys(column.get(label, label) for label in labels))
        missing = self.roles["missing"] if self.roles["missing"] == "error" else "mean"
        role_id = id if id is not None else self.roles["id"]
        if not names:  # a site with responses only: nothing is read but the ids
            return Table.open(data, id=role_id, missing="mean")
        return Table.open(data, id=role_id, features=names, levels=levels, missing=missing, constant="drop")

    def _new(self, study: Study, request: str, data: Any, id: Any) -> tuple[np.ndarray, Tokens]:
        """The new subjects' features in token order, and their tokens."""
        table = self._open_new(study, data, id)
        tokens = tokenise(table.ids(), self.key(study), study, purpose=f"predict-{request}")
        labels = list(self.model(study).units.features)
        if not labels:
            return np.empty((tokens.n, 0)), tokens
        at = [table.features.index(label) for label in labels]
        X = np.concatenate([block[:, at] for block, *_ in table.blocks(order=tokens.rows)])
        return X, tokens

    def _pair_secrets(self, study: Study, request: str, owner: str, order_mac: str) -> dict[str, bytes]:
        """One secret a peer, for this one message. From the pinned keys; else from the study key all sites share."""
        out = {}
        for peer in study.sites:
            if peer.name == self.name:
                continue
            pair = "|".join(sorted((self.name, peer.name)))
            context = f"predict|{study.hash}|{request}|{owner}|{order_mac}|{pair}"
            if self.identity is not None and peer.exchange_key is not None:
                out[peer.name] = self.identity.pair_secret(peer.exchange_key, context.encode())
            else:
                out[peer.name] = self.key(study).derive("mask", study.id, study.run, context=context)
        return out

    def own_sketch(self, study: Study) -> Sketch:
        return Sketch.load(self.run_store(study).need("sketch", "Make it first."))


def _named(name: str, read: Any, raw: bytes) -> Any:
    try:
        return read(raw)
    except MessageError as error:
        raise FederationError(f"The key agreement message of site {name!r} is refused: {error}") from None


def _digest(values: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest().encode()
