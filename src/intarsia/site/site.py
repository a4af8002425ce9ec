"""`Site`: one party of a study, behind its own wall. Each step takes a message and gives a message, nothing else.

Which table, which key and which policy are the site's own decision; no message from outside can change them. Every step
may be repeated: it finds in the run folder what it made the first time and sends the same.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from intarsia.errors import FederationError, InputError, KeyFileError, MessageError
from intarsia.site import agreement, departed, joint_prediction, peers
from intarsia.site.align import Tokens, check_ids, report, settle, tokenise
from intarsia.site.data.covariate_checks import check_covariates
from intarsia.site.data.given_back import give_back
from intarsia.site.data.roles import check_roles
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.fingerprint import FILE as FINGERPRINT_FILE
from intarsia.site.fingerprint import Fingerprint
from intarsia.site.gram import gram_steps as gram
from intarsia.site.gram.desk import Desk
from intarsia.site.identity import Identity
from intarsia.site.key import SketchKey
from intarsia.site.predict_rules import PredictRules
from intarsia.site.prediction import Prediction, SiteModel
from intarsia.site.response_kinds import FILE as KINDS_FILE
from intarsia.site.response_kinds import Meaning, backs_of, kinds_of, leaving, prepared, published_scales, read_kinds
from intarsia.site.run_store import RunStore, one_at_a_time
from intarsia.site.screened import screen_steps as screened
from intarsia.site.union import has_responses, sketch_groups
from intarsia.site.units import Units
from intarsia.site.withdrawal import withdrawn
from intarsia.wire.alignment import Cohort
from intarsia.wire.announcement import Announcement, check_announcements
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.schema import check_name
from intarsia.wire.signed import Confirmation, FileSignature, KeyOffer, Receipt, ShareBundle
from intarsia.wire.study import Study

Missing = Literal["error", "mean", "regression"]
Constant = Literal["error", "drop"]
FOR_PEOPLE = (
    "name",
    "data",
    "roles",
    "kinds",
    "folder",
    "policy",
    "table",
    "whole_table",
    "model",
    "earlier_model",
    "predictions",
)


class Site:
    """An institution of a study: its name, its table, and which columns are what.

    Parameters
    ----------
    name : what the study calls it, 1 to 63 letters, digits, '-' or '_'.
    data : its table: a dict of columns, a frame of pandas, polars or Arrow, a NumPy or Dask array, a path of a CSV or Parquet
        file or of several, or a database (docs/tables.md).
    id : the column that identifies a person, the same ones at all sites; or the ids themselves, one for each row.
    features : columns, by name or pattern (`snp_*`), that may explain; by default all without another role.
    responses : columns to be explained.
    covariates : columns to adjust for: never shrunk, never selected.
    kinds : of responses that are no plain measurements, such as `{"asthma": "binary"}` (docs/outcomes.md).
    ignore : columns that stay here.
    missing : what is done about a missing value of a feature or covariate: "error", "mean" or "regression".
    constant : a column of one value: "error", or "drop".
    options : how the table is read, and rules of single columns, as `[table]` of site.toml has them (docs/tables.md).
    key : a sketch key, or its file, where the sites exchanged one; by default they agree on one, or share one in this process.
    identity : the keys with which this site signs and opens messages.
    folder : where the site keeps its runs and the ledger of what has left; None: in memory, without a ledger.
    policy : its own privacy limits where they are tighter than the study's, such as `{"max_ratio": 0.1}`, and its exceptions.
    predict : its own rules of joint predictions, such as `{"min_subjects": 50}`.

    Examples
    --------
    >>> clinic = intarsia.Site("clinic", visits, id="patient", responses=["fev1"], covariates=["age", "sex"])
    >>> clinic.table()
    Table(812 subjects, 14 features, 1 response, 2 covariates)

    `intarsia.check` and `intarsia.fit` take sites. A person needs `table()`, `whole_table()` and, after a fit, `model(study)`.
    All other methods are steps of the protocol, one message in and one out.
    """

    def __reduce__(self) -> NoReturn:
        raise TypeError("A Site is not pickled: it has ids, rows and keys. Make another from the same table.")

    def __copy__(self) -> "Site":
        """The same rows and keys, in this process."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __dir__(self) -> list[str]:
        """What a person types; the protocol's steps are found by their name."""
        return [name for name in super().__dir__() if name.startswith("__") or name in FOR_PEOPLE]

    def __init__(
        self,
        name: str,
        data: Any = None,
        *,
        id: Any = None,
        features: Sequence[str] | str | None = None,
        responses: Sequence[str] | str = (),
        covariates: Sequence[str] | str = (),
        kinds: Mapping[str, Any] | None = None,
        ignore: Sequence[str] | str = (),
        missing: Missing = "error",
        constant: Constant = "error",
        options: Mapping[str, Any] | None = None,
        key: SketchKey | str | Path | None = None,
        identity: Identity | None = None,
        folder: str | Path | None = None,
        policy: Mapping[str, Any] | None = None,
        predict: Mapping[str, Any] | None = None,
    ):
        if not check_name(name):
            raise InputError("A site name is 1 to 63 letters, digits, '-' or '_'.")
        self.name = name
        self.data = data
        self.roles: dict[str, Any] = {"id": id, "features": features, "responses": responses, "covariates": covariates}
        self.roles["ignore"] = ignore
        self.kinds = read_kinds(kinds)  # by response: "binary", or {"kind": "time", "event": "died", "horizon": 24}
        self.rules = TableRules.of(missing, constant, options or {})
        try:
            check_roles(data, self.roles, self.rules.names)
        except InputError as error:
            error.args = (f"Site {name!r}: {error}",)
            raise
        self.identity = identity
        self.folder = None if folder is None else Path(folder)
        self._runs: Path | None = None
        self.policy = dict(policy or {})
        self.predict_rules = PredictRules.of(predict or {})
        self.predictions: dict[tuple[str, str], Prediction] = {}
        self._key = SketchKey.load(key) if isinstance(key, str | Path) else key
        self._table: Table | None = None
        self._stores: dict[str, RunStore] = {}
        self._tokens: dict[str, Tokens] = {}

    def __repr__(self) -> str:
        return f"Site({self.name!r})"

    def table(self) -> Table:
        """The table as the study would have it, without those who withdrew; opened when it is first asked for."""
        if self._table is None:
            if self.data is None:
                raise InputError(f"Site {self.name!r} has no table; say where it is in its own site.toml.")
            self._table = Table.open(self.data, **self.roles, rules=replace(self.rules, without=withdrawn(self.folder)))
        return self._table

    def whole_table(self) -> Table:
        """The table with everybody in it, also those who withdrew: for counts and comparisons at this site, never to be sent."""
        return Table.open(self.data, **self.roles, rules=self.rules)

    def keep_runs(self, folder: Path | None) -> None:
        """Keep runs in this folder (None: in memory); of a site with a folder of its own they stay there."""
        self._runs = folder

    def remember_columns(self, store: RunStore, ledger: Any, rows: np.ndarray) -> None:
        """Keep what will show, at this site, whether a column was changed after it was sketched."""
        if ledger is not None:
            store.replace(FINGERPRINT_FILE, Fingerprint.of(self.table(), ledger, rows).to_bytes())

    def run_store(self, study: Study) -> RunStore:
        """Where this site keeps what belongs to this run of the study."""
        study.site(self.name)
        if study.hash not in self._stores:
            runs = self._runs if self.folder is None else self.folder / "studies"
            where = None if runs is None else runs / study.folder_name
            store = RunStore(where)
            if store.put("study.hash", study.hash.encode()) != study.hash.encode():
                raise FederationError(
                    f"The run folder {study.folder_name} belongs to another study file whose hash begins alike. Nothing is "
                    "mixed; ask for a new run of the study."
                )
            self._stores[study.hash] = store
        return self._stores[study.hash]

    # The study key: brought along, or agreed through a relay that learns nothing.

    def set_key(self, study: Study, key: SketchKey) -> None:
        self._save_key(self.run_store(study), key)

    def key(self, study: Study) -> SketchKey:
        store = self.run_store(study)
        secret = store.get("study.secret")
        if secret is not None:
            return SketchKey(secret)
        if study.agrees:
            raise KeyFileError(
                f"Site {self.name!r} has not agreed on a key for study {study.id!r} with the other sites yet. This study pins "
                "the sites' keys, so the study key comes from their agreement and never from a key file. By files: intarsia site "
                "offer, share, combine, seal, in this order."
            )
        study.check_pins()
        if self._key is None:
            raise KeyFileError(
                f"Site {self.name!r} has no key for study {study.id!r}. Agree on one with the other sites, or give the "
                "key file that they use."
            )
        return self._key

    def has_key(self, study: Study) -> bool:
        brought = self._key is not None and not study.agrees
        return brought or self.run_store(study).get("study.secret") is not None

    def _save_key(self, store: RunStore, key: SketchKey) -> None:
        kept = store.put("study.secret", key._secret)
        if SketchKey(kept) != key:
            raise KeyFileError("This site has already agreed on another key for this run of the study.")

    def own_identity(self) -> Identity:
        if self.identity is None:
            raise KeyFileError(f"Site {self.name!r} has no identity; make one with `intarsia site init`.")
        return self.identity

    def offer(self, study: Study) -> bytes:
        """Step 1 of the agreement: the public half of this site's key for this run, signed."""
        self._ready(study)
        store = self.run_store(study)
        message = store.get("offer")
        if message is None:
            run_key = store.put("run-key.secret", agreement.new_run_key())
            message = store.put("offer", agreement.offer(study, self.own_identity(), run_key).to_bytes())
        return self._send(study, "offer", message)

    def share(self, study: Study, offers: Mapping[str, bytes]) -> bytes:
        """Step 2: this site's share of the study key, sealed to the peers' keys of this run. Made once."""
        store = self.run_store(study)
        message = store.get("share")
        if message is None:
            run_key = store.need("run-key.secret", "Run the first step of the key agreement.")
            read = {name: _named(name, KeyOffer.from_bytes, raw) for name, raw in offers.items()}
            secret = store.put("share.secret", agreement.new_share())
            bundle = agreement.share(study, self.own_identity(), secret, read)
            store.replace("curves.secret", _in_hex(agreement.curve_secrets(study, self.own_identity(), run_key, read)))
            message = store.put("share", bundle.to_bytes())
        return self._send(study, "share", message)

    def combine(self, study: Study, bundles: Mapping[str, bytes]) -> bytes:
        """Step 3: open the peers' shares, make the key, prove that it was made. Done once."""
        store = self.run_store(study)
        message = store.get("confirmation")
        if message is None:
            own = ShareBundle.from_bytes(store.need("share", "Run the second step of the key agreement."))
            remedy = "Run the key agreement from its start."
            opened_by = (store.need("run-key.secret", remedy), store.need("share.secret", remedy))
            read = {name: _named(name, ShareBundle.from_bytes, raw) for name, raw in bundles.items()}
            secret, transcript = agreement.combine(study, self.own_identity(), own, opened_by, read)
            curves = {name: bytes.fromhex(raw) for name, raw in json.loads(store.need("curves.secret", remedy)).items()}
            store.replace("pairs.secret", _in_hex(agreement.pair_secrets(study, self.name, curves, opened_by, read)))
            store.replace("pending.secret", secret + transcript)
            fingerprint = SketchKey(secret).study_fingerprint(study.hash)
            message = store.put("confirmation", agreement.confirm(study, self.name, secret, transcript, fingerprint).to_bytes())
        return self._send(study, "confirmation", message)

    def seal(self, study: Study, confirmations: Mapping[str, bytes]) -> None:
        """Step 4: every site proved the same key; from here on it is the study key, and what could open it again is deleted."""
        store = self.run_store(study)
        if store.get("study.secret") is not None:
            return
        pending = store.need("pending.secret", "Run the third step of the key agreement.")
        secret, transcript = pending[:32], pending[32:]
        read = {name: _named(name, Confirmation.from_bytes, raw) for name, raw in confirmations.items()}
        agreement.check_confirmations(study, secret, transcript, read)
        self._save_key(store, SketchKey(secret))
        for name in ("run-key.secret", "share.secret", "curves.secret", "pending.secret"):
            store.forget(name)

    # Alignment and sketch.

    def tokens(self, study: Study) -> Tokens:
        if study.hash not in self._tokens:
            self._tokens[study.hash] = tokenise(self.table().id_column, self.key(study), study)
        return self._tokens[study.hash]

    def announce(self, study: Study) -> bytes:
        """How many subjects and columns this site brings: shown to the other sites before anything else about subjects."""
        self._ready(study)
        store = self.run_store(study)
        message = store.get("announcement")
        if message is None:
            table = self.table()
            responses = leaving(table, kinds_of(study, self.name, self.kinds))
            columns = len(table.features) + len(responses) + len(table.covariates)
            n, lines = self.tokens(study).n, None if self.folder is None else self._ledger_head()[0]
            counts = Announcement(self.name, study.hash, n, columns, covariates=len(table.covariates), ledger=lines)
            message = store.put("announcement", counts.signed(self._announcement_key(study)).to_bytes())
        return self._send(study, "announcement", message)

    def hear(self, study: Study, announcements: Mapping[str, bytes]) -> dict[str, Announcement]:
        """The other sites' counts, checked and kept; what was heard first holds for the run."""
        heard = check_announcements(study, self.name, self._announcement_key(study), announcements)
        counts = {
            name: {"subjects": told.n, "columns": told.columns, "covariates": told.covariates, "ledger": told.ledger}
            for name, told in heard.items()
        }
        if self.run_store(study).get("announcements.json") is None:
            peers.check(self.folder, study, {name: told.ledger for name, told in heard.items() if name != self.name})
        text = json.dumps(counts, sort_keys=True, indent=1).encode()
        if self.run_store(study).put("announcements.json", text) != text:
            raise FederationError("Other counts were announced before in this run. Refused; start a new run of the study.")
        return heard

    def heard(self, study: Study) -> dict[str, dict[str, Any]]:
        """The counts every site announced in this run, by site; empty where nothing was announced (a strict study by files)."""
        raw = self.run_store(study).get("announcements.json")
        return {} if raw is None else dict(json.loads(raw))

    def _announcement_key(self, study: Study) -> bytes:
        return self.key(study).derive("announce", study.id, study.run)

    def align(self, study: Study, announcements: Mapping[str, bytes] | None = None) -> bytes:
        """This site's cohort: a keyed digest (strict) or, once all lists' lengths are known, keyed tokens (intersect, union)."""
        store = self.run_store(study)
        if announcements:
            self.hear(study, announcements)
        if study.alignment.mode != "strict" and len(study.names) > 1 and not self.heard(study):
            raise FederationError("No tokens leave before every site has announced how long its list of subjects is.")
        message = store.get("alignment")
        if message is None:
            told = report(self.name, study, self.tokens(study))
            if study.alignment.mode == "union":
                has = has_responses(self, study)
                told = replace(told, responses=has.labels, has=has.rows[self.tokens(study).rows])
            message = store.put("alignment", told.to_bytes())
        return self._send(study, "alignment", message)

    def sketch(self, study: Study, cohort: bytes | None = None) -> bytes:
        """This site's sketch over the agreed cohort, after its own privacy gate. Made once; repeated byte for byte.

        `cohort` is the server's answer to `align`; None means a strict study by files, where the order's MAC decides.
        """
        store = self.run_store(study)
        # One at a time, whatever the runs: two at the same moment would each not know of the other's noise, nor of its Σm and Σε.
        with one_at_a_time(self.folder):
            message = store.get("sketch")
            if message is None:
                message = self._sketch(study, store, cohort)
        return self._send(study, "sketch", message)

    def _send(self, study: Study, step: str, message: bytes) -> bytes:
        self.run_store(study).sent(step, message)
        return message

    def _ready(self, study: Study) -> None:
        """Under differential privacy a refusal that depends on the data is an answer: such checks come before any message.

        So does the trial of responses of other kinds: what cannot be prepared is found before anything leaves.
        """
        kinds, store = kinds_of(study, self.name, self.kinds), self.run_store(study)
        if study.privacy.epsilon is not None:
            table = self.table()
            self.claimed(study, table)
            if store.get("looked-through") is None:
                check_ids(table.ids(), study)
                for _ in table.raw_blocks():  # a cell that cannot be read is found here
                    pass
                store.put("looked-through", b"")
        elif kinds:
            prepared(self.table(), kinds)

    def _sketch(self, study: Study, store: RunStore, cohort: bytes | None) -> bytes:
        from intarsia.site.own_card import card_files
        from intarsia.site.preflight import SiteRules, preflight
        from intarsia.site.rank_normal import FILE as SCORES_FILE
        from intarsia.site.rank_normal import ScoredTable, as_the_study_asks
        from intarsia.site.site_ledger import open_ledger

        self._ready(study)
        if study.alignment.mode == "union":
            return sketch_groups(self, study, store, cohort)
        tokens = self.tokens(study)
        if cohort is not None:
            agreed = Cohort.from_bytes(cohort)
        elif study.alignment.mode == "strict":
            agreed = Cohort(self.name, study.hash, "strict", tokens.n)
        else:
            raise FederationError("An intersecting study needs the server's answer to the alignment first.")
        order, mac = settle(self.name, study, tokens, agreed)
        if study.sketch.screened and len(study.names) > 1 and not self.heard(study):
            from intarsia.privacy.screened_leakage import NOBODY_SAID

            raise FederationError(NOBODY_SAID)
        if study.sketch.gram:
            order = gram.by_folds(self, study, order, slice(None) if agreed.keep is None else agreed.keep)
        del tokens
        self._tokens.pop(study.hash, None)  # what is as long as the cohort is not kept while it is sketched
        # One cohort per run, also when the gate refuses it: cohorts of the server's choosing would turn refusals into answers.
        if store.put("cohort", mac.encode()) != mac.encode():
            raise FederationError("Another cohort was asked for before in this run. Refused; start a new run of the study.")
        table, key = self.table(), self.key(study)
        self.claimed(study, table)
        if study.privacy.epsilon is None:
            check_covariates(table, order)
        table = as_the_study_asks(table, study.site(self.name).transform, order)
        if isinstance(table, ScoredTable):
            store.replace(SCORES_FILE, table.scores.to_bytes())
        table = prepared(table, kinds_of(study, self.name, self.kinds), order)
        ledger = None if self.folder is None else open_ledger(self.folder)
        announced = {name: counts["columns"] for name, counts in self.heard(study).items()}
        own = SiteRules(self.policy, ledger, announced, self.heard(study))
        check = preflight(table, key, study, site=self.name, order=order, order_mac=mac, own=own)
        store.replace("preflight.json", json.dumps(check.verdict.as_dict(), indent=1, default=str).encode())
        check.verdict.check()
        claim = check.reserve()
        # Bound to the values it was made of: after a crash and a repair of the table it is made anew, under the new booking.
        waiting = f"sketch.pending-{'' if check.claim is None else check.claim.content[:16]}"
        pending = store.get(waiting)
        if pending is None:
            result = self.make(study, key, table, order, mac, check)
            shared = published_scales(backs_of(table), result.units) if study.deliver.share_scales else ()
            more = {"response_scales": shared, "most_told": check.facts.most_told}
            message = result.message if study.sketch.shares else replace(result.message, **more)
            pending = message.to_bytes()
            store.replace("units.secret", result.units.to_bytes())
            skewness = {c.name: c.skewness for c in check.facts.own_columns}
            store.replace(KINDS_FILE, Meaning.of(table, skewness, study.kinds).to_bytes())
            store.replace("columns.json", json.dumps({"levels": table.levels, "reference": table.layout.reference}).encode())
            listed = {name: counts["subjects"] for name, counts in self.heard(study).items()}
            longest = getattr(result, "longest", None)
            for name, content in card_files(check, pending, self.identity, longest, table.imputed, listed).items():
                store.replace(name, content)
            self.remember_columns(store, ledger, order)
            store.replace(waiting, pending)
        # The ledger fixes these bytes before they may leave; killed in between, the same bytes are fixed next time.
        if ledger is not None and claim is not None:
            ledger.release(claim, pending)
        store.rename(waiting, "sketch")
        return pending

    def deal(self, study: Study, payload: Mapping[str, bytes]) -> bytes:
        """A Gram study: this site's masked columns for another site, one block of subjects."""
        self._only_shares(study)
        if study.sketch.screened:
            return screened.deal(self, study, payload)
        return gram.deal(Desk(self, study, self.run_store(study)), payload)

    def multiply(self, study: Study, payload: Mapping[str, bytes]) -> bytes:
        """A Gram study: one block more in this site's sums; after the last, its shares of the products."""
        self._only_shares(study)
        if study.sketch.screened:
            return screened.multiply(self, study, payload)
        return gram.multiply(Desk(self, study, self.run_store(study)), payload)

    def screen(self, study: Study, step: str, payload: Mapping[str, bytes]) -> bytes:
        """A screened study: keep shares of the others' features, agree to a list of features to keep, or answer a look."""
        if not study.sketch.screened:
            raise FederationError("Only a study of kind 'screened' has this step. Refused.")
        return {"hold": screened.hold, "keep": screened.keep, "look": screened.look}[step](self, study, payload)

    def _only_shares(self, study: Study) -> None:
        if not study.sketch.shares:
            raise FederationError("Only a study of kind 'gram' or 'screened' multiplies columns between sites. Refused.")

    def make(self, study: Study, key: SketchKey, table: Table, order: np.ndarray, mac: str, check: Any) -> Any:
        """The sketch of a table's rows in this order, as the gate lets it pass."""
        if study.sketch.gram:
            return gram.own_block(self, study, table, order, mac, check.facts.most_told)
        if study.sketch.screened:
            from intarsia.privacy.screened_leakage import most

            may = screened.Allowed(most(check.facts, check.verdict.policy), check.facts.most_told)
            return screened.own_columns(self, study, table, order, mac, may)
        from intarsia.site.sketch.sketch import ClippedNoise, SketchTerms, factor, sketch

        terms = SketchTerms.of(study, self.name, mac)
        if check.noise is not None:
            from intarsia.site.sketch.private import private_sketch

            return private_sketch(table, key, terms, ClippedNoise(check.clip, check.noise.w), order=order)
        if terms.kind == "orthonormal":
            # L from the key and n alone, in the same blocks everywhere: the same at all sites to the last bit.
            factor(terms.design(key, len(order)))
            give_back()
        return sketch(table, key, terms, order=order)

    def signature(self, study: Study, message: bytes) -> bytes | None:
        """A detached signature over a message sent by file; None for a site without an identity."""
        if self.identity is None:
            return None
        unsigned = FileSignature(self.name, study.hash, hashlib.sha256(message).hexdigest())
        return replace(unsigned, signature=self.identity.sign(unsigned.body())).to_bytes()

    def claimed(self, study: Study, table: Table) -> None:
        responses = leaving(table, kinds_of(study, self.name, self.kinds))
        entry = study.site(self.name)
        foreign = entry.foreign(table.features, responses, table.covariates)
        if foreign is not None:
            what, labels = foreign
            column = labels[0].partition("=")[0]  # a label may hold a category's text
            if column != labels[0] and column in getattr(entry, f"{what}s"):
                raise InputError(
                    f"study.toml lists the {what} {column!r} for site {self.name!r}, but here it has categories, and each leaves "
                    f"as a column of its own, {column}=…: list {f'{column}=*'!r} in study.toml."
                )
            raise InputError(
                f"study.toml does not list the {what} {column!r} ({len(labels)} in all) for site {self.name!r}. "
                "Leave it out at the site, or list it in study.toml."
            )
        if study.privacy.epsilon is not None:
            self._levels_stated(table)

    def _levels_stated(self, table: Table) -> None:
        """Labels that leave tell which levels a column has. Under differential privacy that must not rest on the data."""
        rules = self.rules.by_column
        read = [name for name in table.levels if rules.at(name).levels is None]
        if read:
            raise InputError(
                f"Column {read[0]!r} ({len(read)} in all) has categories that were read from the table. Their names leave as "
                "labels, and whether one is there would tell of a person what no ε covers. State all that could occur: "
                f'levels = ["…"] under [table.columns.{read[0]}] of site.toml, or leave the column out.'
            )

    # After the fit.

    def leave(self, study: Study) -> bytes:
        """This site's signed notice that it leaves the run after it has sent; from now on it answers no step of it."""
        return self._send(study, "leave", departed.leave(self, study))

    def remaining(self, study: Study) -> tuple[str, ...]:
        """The sites of the roster that have not left, as far as this site knows from their own notices."""
        left = departed.left(self, study)
        return tuple(name for name in study.names if name not in left)

    def receive(self, study: Study, message: bytes, notices: Mapping[str, bytes] | None = None) -> SiteModel:
        """Take this site's coefficients and map them to its own units: once per run, and once more when a site has left."""
        departed.heed(self, study, notices or {})
        store = self.run_store(study)
        coefficients = Coefficients.from_bytes(message)
        if coefficients.site != self.name:
            raise MessageError(
                f"These coefficients are for site {coefficients.site!r}, not for {self.name!r}. Ask the server for the file of "
                f"{self.name}."
            )
        if coefficients.study_hash != study.hash:
            raise MessageError(
                f"These coefficients are of another study, run or text of study.toml than {study.id}-{study.hash[:8]}. Say which "
                "accepted study they are of with --study."
            )
        remaining = set(self.remaining(study))
        named = set(coefficients.fit_parts) == remaining
        if not named or coefficients.fit_parts[self.name] != coefficients.own_digest():
            raise MessageError("The coefficients do not carry the digests of one fit of all sites that take part. Refused.")
        for response, owner in zip(coefficients.responses, coefficients.response_sites, strict=True):
            if owner not in remaining or not study.site(owner).claims_response(response):
                raise MessageError("The coefficients give a response to another site than study.toml does. Refused.")
        if bool(coefficients.response_scales) != study.deliver.share_scales:
            raise MessageError("The coefficients do not keep to [deliver] share_scales of study.toml. Refused.")
        shared = set(study.yes_or_no) & set(coefficients.responses) if study.deliver.share_scales else set()
        if set(coefficients.noise_variances) != shared:
            raise MessageError("The coefficients have noise variances of other responses than the study's yes/no ones. Refused.")
        model = self._model(store, coefficients)
        if store.put(departed.item(self, study, "coefficients"), message) != message:
            raise FederationError(
                f"Site {self.name!r} holds other coefficients of this run already; they are taken once. "
                "Another fit needs a new run of the study (`intarsia study again`)."
            )
        gram.forget(store)
        if study.sketch.screened:
            screened.forget(self, study)
        others = {name: counts.get("ledger") for name, counts in self.heard(study).items() if name != self.name}
        peers.released(self.folder, study, others)
        return model

    def receipt(self, study: Study) -> bytes:
        """What this site acknowledges: the fit it holds and where its ledger stands; signed with its identity."""
        store = self.run_store(study)
        name = departed.item(self, study, "receipt")
        made = store.get(name)
        if made is not None:
            return self._send(study, "receipt", made)
        entries, head = self._ledger_head()
        unsigned = Receipt(self.name, study.hash, self.model(study).coefficients.fit_digest, entries, head)
        receipt = unsigned if self.identity is None else replace(unsigned, signature=self.identity.sign(unsigned.body()))
        return self._send(study, "receipt", store.put(name, receipt.to_bytes()))

    def _ledger_head(self) -> tuple[int, str]:
        if self.folder is None:
            return 0, ""
        from intarsia.site.site_ledger import open_ledger

        return open_ledger(self.folder).head

    def model(self, study: Study) -> SiteModel:
        """What this site was told of a fitted study, in its own units; `.table()` has all of it."""
        store = self.run_store(study)
        name = departed.item(self, study, "coefficients")
        return self._model(store, Coefficients.from_bytes(store.need(name, "Coefficients come after the fit.")))

    def earlier_model(self, study: Study) -> SiteModel | None:
        """The model of this run before the last site left, where there was one."""
        raw = departed.superseded(self, study)
        return None if raw is None else self._model(self.run_store(study), Coefficients.from_bytes(raw))

    def _model(self, store: RunStore, coefficients: Coefficients) -> SiteModel:
        units = screened.of_the_kept(store, Units.from_bytes(store.need("units.secret", "Coefficients come after the sketch.")))
        return SiteModel(coefficients, units, Meaning.from_bytes(store.get(KINDS_FILE)))

    def predict_part(self, study: Study, request: str, data: Any, *, id: Any = None) -> bytes:
        """This site's masked part of the prediction of new subjects (the rows of `data`)."""
        return joint_prediction.part(self, study, request, data, id)

    def predict_finish(self, study: Study, request: str, data: Any, total: bytes, *, id: Any = None) -> Prediction:
        """Lift this site's masks from the others' sum, add its own part, and return its responses in their units."""
        prediction = joint_prediction.finish(self, study, request, data, total, id)
        self.predictions[study.hash, request] = prediction
        return prediction


def _in_hex(secrets: Mapping[str, bytes]) -> bytes:
    return json.dumps({name: raw.hex() for name, raw in secrets.items()}).encode()


def _named(name: str, read: Any, raw: bytes) -> Any:
    try:
        return read(raw)
    except MessageError as error:
        raise FederationError(f"The key agreement message of site {name!r} is refused: {error}") from None
