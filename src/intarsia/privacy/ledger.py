"""A site's ledger of sketches: one line each, chained by hash, written before anything leaves.

It keeps three promises. Φ is used once: a study's run is bound to one cohort at the first try, before any value is looked
at, and to one set of values when its sketch is released; anything else under the same run is refused. A refusal is booked
too, so that nobody learns from a series of them unnoticed. And independent sketches of one cohort add up: Σm and Σε are
counted over every run that shares subjects with the new one, so a cohort that lost one subject does not start from zero.

`ledger.jsonl` holds the entries (each with the hash of the one before), `ledger.key` 32 secret bytes that key all
digests, `cohorts/` the keyed tokens of each cohort, so that overlaps can be counted without any id. A line is
appended under a lock and flushed to disk before `reserve` or `release` returns; a line cut short by a crash was never
acted upon and is dropped. Cutting whole lines off the end leaves a valid chain; the heads kept elsewhere (on signed cards,
in the anchor file) are what exposes that (`verify`).
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia import files
from intarsia.errors import PrivacyError
from intarsia.privacy.subject_ids import canonical_id

START = "0" * 64
TOKEN_BYTES = 8  # bytes per token: a chance match among 10⁷ subjects has probability below 1e-5
MAX_LINE_BYTES = 1 << 16
_TOKENS_AT_A_TIME = 1 << 16  # subjects


@dataclass(frozen=True)
class Entry:
    """One line. `state` is "tried" (the run is bound to its cohort), "refused" (the gate said no; `note` names the rules),
    "reserved" (a sketch may be made), "released" (its digest is fixed, it may leave) or "step" (a later step of a screened study
    leaves; the note says which). Of those reserved and released the note says whether exact scales of responses leave
    too, and how many effects on a response other sites get.
    """

    sequence: int
    time: str
    state: str
    study: str
    run: str
    cohort: str
    content: str
    n: int
    m: int
    kind: str
    columns: int
    epsilon: float | None
    delta: float | None
    sketch: str
    previous: str
    hash: str = ""
    note: str = ""

    def sealed(self, key: bytes) -> "Entry":
        body = asdict(self)
        del body["hash"]
        if not self.note:
            del body["note"]  # entries of version 0.1 have none
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return replace(self, hash=hmac.digest(key, b"entry|" + text.encode(), "sha256").hex())


@dataclass(frozen=True)
class Claim:
    """What a site asks the ledger for: this run of this study, over these people, with these values (by keyed digest)."""

    study: str
    run: str
    tokens: NDArray[np.uint64]
    n: int
    m: int
    kind: str
    columns: int
    content: str = ""
    epsilon: float | None = None
    delta: float | None = None
    responses: str = ""  # items of the responses whose exact scales leave beside the sketch (`scales_single_out`)
    folds: tuple[NDArray[np.uint64], ...] = ()  # tokens of the parts whose Gram matrices leave one by one
    told: int = 0  # effects on each of this site's responses that the other sites get
    sums: int | None = None  # sums over this site's features that another site gets; None: it is not known how many
    exact_sums: int = 0  # exact sums of products of features and responses that leave in a screened study


def _one_time(claim: Claim, what: str) -> str:
    return (
        f"one-time: run {claim.run[:8]}… of study {claim.study!r} was already used here for {what}. Two sketches under the "
        "same Φ give away the subjects in which they differ. Start a new run (`intarsia study again`)."
    )


class Ledger:
    """The ledger in one folder of the site (made on first use, readable by its owner only).

    `anchor` is a file outside of the folder to which each new head is written.
    """

    def __init__(self, folder: str | os.PathLike[str], anchor: Path | None = None):
        self.folder = Path(folder)
        self.anchor = anchor
        self.path = self.folder / "ledger.jsonl"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / "cohorts").mkdir(exist_ok=True, mode=0o700)
        files.sweep(self.folder)
        self._key = self._load_key()

    def _load_key(self) -> bytes:
        path = self.folder / "ledger.key"
        with contextlib.suppress(FileExistsError):
            if not path.exists():
                if self.path.exists():
                    raise PrivacyError(f"{path} is missing, so the ledger beside it cannot be checked. Restore it.")
                files.create(path, files.seal(secrets.token_bytes(32)), mode=files.OWNER_ONLY)  # or another process was first
        raw = path.read_bytes()
        # A key of version 0.1 stands without a digest.
        return raw if len(raw) == 32 else files.unseal(raw, path, "The ledger cannot be checked. Restore it from a backup.")

    # --- cohorts ------------------------------------------------------------------------------------------------

    def tokens(self, ids: Iterable[Any]) -> NDArray[np.uint64]:
        """Keyed tokens of the subjects, sorted. They mean nothing without this ledger's key."""
        return np.unique(self.token_of_each(ids))

    def token_of_each(self, ids: Iterable[Any]) -> NDArray[np.uint64]:
        """The keyed token of every subject, in the order given."""
        each, parts = iter(ids), []
        while some := list(islice(each, _TOKENS_AT_A_TIME)):
            digests = (hmac.digest(self._key, b"id|" + canonical_id(i).encode(), "sha256")[:TOKEN_BYTES] for i in some)
            parts.append(np.frombuffer(b"".join(digests), "<u8"))
        return np.concatenate([np.empty(0, "<u8"), *parts])

    def digest(self, *parts: bytes) -> str:
        """A keyed digest of anything (a cohort's tokens, a table's content)."""
        state = hmac.new(self._key, b"digest|", "sha256")
        for part in parts:
            state.update(len(part).to_bytes(8, "big") + part)
        return state.hexdigest()

    def content_hasher(self) -> "hmac.HMAC":
        """A running keyed digest, to be fed a table's blocks."""
        return hmac.new(self._key, b"content|", hashlib.sha256)

    def history(self, tokens: NDArray[np.uint64], but: tuple[str, str] | None = None) -> int:
        """The largest Σm over any one subject of the cohort, from all released runs but (study, run).

        A cohort whose token file was deleted counts in full: unknown overlap is taken as complete.
        """
        return self._added_up(tokens, [(entry, entry.m) for entry in self._released(but)])

    def told(self, tokens: NDArray[np.uint64], but: tuple[str, str] | None = None) -> int:
        """The same for the effects on a response that other sites got as their results: each is a sum over its values.

        Where an entry of an earlier version does not say how many, they are as many as they can be.
        """
        counts = [(e, _noted(e.note, _TOLD) or (e.n // 3 if e.kind in _EXACT else e.m)) for e in self._released(but)]
        return self._added_up(tokens, [(entry, int(count)) for entry, count in counts])

    def strangers(self, tokens: NDArray[np.uint64], but: tuple[str, str] | None = None) -> int:
        """How many released runs there are, where none of them had any of these subjects: ids may have been written anew."""
        entries = self._released(but)
        return 0 if self._added_up(tokens, [(entry, 1) for entry in entries]) else len(entries)

    def sums(self, tokens: NDArray[np.uint64], but: tuple[str, str] | None = None) -> int:
        """The same for sums over this site's features."""
        counts = [(e, _noted(e.note, _SUMS) or (e.n // 3 if e.kind in _EXACT else e.m)) for e in self._released(but)]
        return self._added_up(tokens, [(entry, int(count)) for entry, count in counts])

    def exact_sums(self, tokens: NDArray[np.uint64], but: tuple[str, str] | None = None) -> int:
        """The same for exact sums of products of features and responses, of screened studies."""
        counts = [(e, int(_noted(e.note, _EXACT_SUMS) or 0)) for e in self._released(but) if e.kind == "screened"]
        return self._added_up(tokens, counts)

    def _added_up(self, tokens: NDArray[np.uint64], counts: Iterable[tuple[Entry, int]]) -> int:
        spent = np.zeros(len(tokens), np.int64)
        for entry, count in counts:
            cohort = self.cohort(entry)
            spent[slice(None) if cohort is None else _among(tokens, cohort)] += count
        return int(spent.max(initial=0))

    def about(self, tokens: NDArray[np.uint64]) -> list[tuple[Entry, int]]:
        """Every released run that told of any of these subjects, and of how many; a cohort whose token file was deleted is
        taken to hold all of them.
        """
        out = []
        for entry in self._released(None):
            cohort = self.cohort(entry)
            met = len(tokens) if cohort is None else int(_among(tokens, cohort).sum())
            if met:
                out.append((entry, met))
        return out

    def promised_noise(self, tokens: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these subjects (in the order given) are in a released run that had noise; a cohort whose token file was
        deleted is taken to hold all of them.
        """
        out = np.zeros(len(tokens), dtype=bool)
        for entry in self._released(None):
            if entry.epsilon is not None:
                cohort = self.cohort(entry)
                out |= True if cohort is None else _among(tokens, cohort)
        return out

    def _people(self, path: Path) -> NDArray[np.uint64]:
        """The tokens in a cohort's file, which its name proves."""
        raw = path.read_bytes()
        if not hmac.compare_digest(self.digest(raw), path.name):
            raise files.damaged(path, "Restore the site's folder from a backup; until then nothing leaves this site.")
        return np.frombuffer(raw, "<u8")

    def cohort(self, entry: Entry) -> NDArray[np.uint64] | None:
        """The keyed tokens of a run's cohort; None when their file was deleted."""
        path = self.folder / "cohorts" / entry.cohort
        return self._people(path) if path.exists() else None

    def budget(
        self, tokens: NDArray[np.uint64], but: tuple[str, str] | None = None, *, of_all: bool = True
    ) -> tuple[float, float] | None:
        """Σε and Σδ (basic composition) of all released runs that share subjects; None when one had no noise.

        Not `of_all`: of those that had noise, whatever else left.
        """
        from intarsia.privacy.dp import composed  # with it come libraries that not every process needs

        pairs: list[tuple[float, float]] = []
        for entry in self._released(but):
            if not self._meets(entry, tokens):
                continue
            if entry.epsilon is not None and entry.delta is not None:
                pairs.append((entry.epsilon, entry.delta))
            elif of_all:
                return None
        return composed(pairs)

    def singled_out(
        self,
        tokens: NDArray[np.uint64],
        content: str,
        but: tuple[str, str] | None = None,
        folds: Sequence[NDArray[np.uint64]] = (),
    ) -> int | None:
        """The smallest group of subjects that this cohort's Gram matrices and those that left before single out together.

        Sums and differences of the matrices weigh alike all subjects that are in the same of the cohorts and folds, so these
        groups are the finest that can be had. None: one matrix, and none of these people in an earlier one. 0: the same people,
        with other values or columns, or a fold whose file was deleted. The very same matrix again tells nothing new and does not
        count. A cohort whose token file was deleted is taken as the same people.
        """
        earlier = [e for e in self._released(but) if e.kind in _EXACT]
        cohorts = [tokens, *folds]
        for entry in earlier:
            if self._meets(entry, tokens):
                found = [self.folder / "cohorts" / name for name in _noted(entry.note, _FOLDS).split(",") if name]
                if not all(path.exists() for path in found):
                    return 0
                cohorts += [self._people(path) for path in found]
        return self._smallest_group(cohorts, [(e, e.content != content) for e in earlier])

    def scales_single_out(
        self, shared: Mapping[str, NDArray[np.uint64]], but: Collection[tuple[str, str]] = ()
    ) -> int | None:  # fmt: skip
        """The same for the exact scales of responses, which a sketch or a Gram matrix may have beside it: they too are sums over
        people, and differences of them are made of the subjects in whom two differ.

        `shared` has, by a response's item (a digest of its name and values), everybody whose values are in its scale: in a run of
        several groups, those of all groups that have the response. `but` are the runs that make up this one.
        """
        before: dict[str, list[Path]] = {}
        for entry in self._released(None):
            if (entry.study, entry.run) not in but:
                for item in _noted(entry.note, _SCALES).split():
                    before.setdefault(item, []).append(self.folder / "cohorts" / entry.cohort)
        others: list[NDArray[np.uint64]] = []
        for item, paths in before.items():
            known = all(path.exists() for path in paths)
            told = np.unique(np.concatenate([self._people(path) for path in paths])) if known else None
            for people in shared.values():
                if told is None or np.array_equal(told, people):
                    if item not in shared:
                        return 0
                elif _among(people, told).any():
                    others.append(told)
        return _smallest_atom([*shared.values(), *others]) if others else None

    def _meets(self, entry: Entry, tokens: NDArray[np.uint64]) -> bool:
        cohort = self.cohort(entry)
        return cohort is None or bool(_among(tokens, cohort).any())

    def _released(self, but: tuple[str, str] | None) -> list[Entry]:
        return [e for e in self._runs().values() if e.state == "released" and (e.study, e.run) != but]

    def _smallest_group(self, known: list[NDArray[np.uint64]], earlier: Iterable[tuple[Entry, bool]]) -> int | None:
        """`known` are this cohort and its parts, `earlier` the runs whose sums can be compared with its, and whether their values
        were others.
        """
        cohorts, tokens = list(known), known[0]
        for entry, changed in earlier:
            path = self.folder / "cohorts" / entry.cohort
            other = self._people(path) if path.exists() else tokens
            if np.array_equal(other, tokens):
                if changed:
                    return 0
            elif _among(tokens, other).any():
                cohorts.append(other)
        return None if len(cohorts) == 1 else _smallest_atom(cohorts)

    # --- writing ------------------------------------------------------------------------------------------------

    def bind(self, claim: "Claim") -> None:
        """Bind a run to its cohort at the first try, before the gate looks at a value."""
        with self._locked():
            before = self._bound(claim)
            if before is None:
                self._book("tried", claim)

    def refuse(self, claim: "Claim", rules: Iterable[str]) -> None:
        """Book that the gate refused this try, and by which rules; the same refusal of the same run stands in the ledger once."""
        with self._locked():
            self._bound(claim)
            self._book("refused", claim, ", ".join(sorted(set(rules))), unless=self.entries())

    def reserve(self, claim: "Claim") -> Entry:
        """Claim this run for one cohort and one content. After its release only the same claim is granted."""
        with self._locked():
            before = self._bound(claim)
            # A run that was only reserved let nothing out: other values of the same people may be claimed (after a repair).
            if before is not None and before.state == "released":
                if (before.m, before.kind, before.content) == (claim.m, claim.kind, claim.content):
                    return before
                raise PrivacyError(_one_time(claim, "other values, columns or size"))
            for fold in claim.folds:
                self._keep(fold)
            said = [_SCALES + claim.responses] if claim.responses else []
            said += [f"{_TOLD}{claim.told}"] + ([] if claim.sums is None else [f"{_SUMS}{claim.sums}"])
            said += [f"{_EXACT_SUMS}{claim.exact_sums}"] if claim.exact_sums else []
            said += [_FOLDS + ",".join(self.digest(fold.tobytes()) for fold in claim.folds)] if claim.folds else []
            return self._book("reserved", claim, "; ".join(said), unless=[] if before is None else [before])

    def _bound(self, claim: "Claim") -> Entry | None:
        """The run's latest entry; refused when the run belongs to another cohort."""
        before = self._runs().get((claim.study, claim.run))
        if before is not None and before.cohort != self.digest(claim.tokens.tobytes()):
            raise PrivacyError(_one_time(claim, "another cohort"))
        return before

    def _book(self, state: str, claim: "Claim", note: str = "", unless: Sequence[Entry] = ()) -> Entry:
        """A line for this claim, unless one of those given says the same: whoever asks on and on does not fill the disk."""
        facts = {name: getattr(claim, name) for name in _CARRIED if name != "cohort"}
        facts |= {"state": state, "note": note, "cohort": self.digest(claim.tokens.tobytes())}
        for entry in unless:
            if all(getattr(entry, name) == value for name, value in facts.items()):
                return entry
        self._keep(claim.tokens)
        return self._append(sketch="", **facts)

    def _keep(self, tokens: NDArray[np.uint64]) -> None:
        """A cohort's file of tokens, by its digest."""
        path = self.folder / "cohorts" / self.digest(tokens.tobytes())
        if not path.exists():
            files.replace(path, tokens.tobytes(), mode=files.OWNER_ONLY)

    def release(self, claim: Entry, sketch: bytes) -> Entry:
        """Fix the sketch of a claimed run by its digest, just before it leaves. Other bytes later are refused."""
        digest = hashlib.sha256(sketch).hexdigest()
        with self._locked():
            now = self._runs().get((claim.study, claim.run))
            if now is None or now.cohort != claim.cohort:
                raise PrivacyError("one-time: this sketch was not reserved in the ledger. Run the site's check first.")
            if now.state == "released":
                if now.sketch == digest:
                    return now
                raise PrivacyError(
                    f"one-time: run {claim.run[:8]}… of study {claim.study!r} already released another sketch. "
                    "Send that one again, or start a new run."
                )
            facts = {name: getattr(now, name) for name in _CARRIED}
            return self._append(state="released", sketch=digest, note=claim.note, **facts)

    def step(self, study: str, run: str, what: str, sent: bytes) -> Entry:
        """Book a later step of a released run, just before its message leaves; the same step again is booked once."""
        digest = hashlib.sha256(sent).hexdigest()
        with self._locked():
            now = self._runs().get((study, run))
            if now is None or now.state != "released":
                raise PrivacyError("one-time: this run was not released in the ledger, so no later step of it leaves.")
            for entry in self.entries():
                if (entry.study, entry.run, entry.state, entry.note) == (study, run, "step", what):
                    if entry.sketch == digest:
                        return entry
                    raise PrivacyError(f"one-time: the step {what!r} of this run has left already, with other numbers.")
            facts = {name: getattr(now, name) for name in _CARRIED}
            return self._append(state="step", sketch=digest, note=what, **facts)

    def _append(self, **facts: Any) -> Entry:
        entries = self.entries()
        entry = Entry(
            sequence=len(entries),
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            previous=entries[-1].hash if entries else START,
            **facts,
        ).sealed(self._key)
        # A last line without its end is dropped: the crash that cut it also kept the sketch from leaving.
        files.append(self.path, json.dumps(asdict(entry), sort_keys=True, separators=(",", ":")).encode(), mode=files.OWNER_ONLY)
        files.sync_folder(self.folder)
        if self.anchor is not None:
            files.replace_json(self.anchor, {"entries": entry.sequence + 1, "head": entry.hash}, mode=files.OWNER_ONLY)
        return entry

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return files.locked(self.folder / "ledger.lock")

    # --- reading ------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All lines, the chain checked; a torn last line is ignored."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return []
        previous, out = START, []
        for number, line in enumerate(raw.split(b"\n")[:-1]):
            try:
                if len(line) > MAX_LINE_BYTES:
                    raise ValueError
                entry = Entry(**json.loads(line))
                good = entry.previous == previous and entry.sequence == number
                if not good or not hmac.compare_digest(replace(entry, hash="").sealed(self._key).hash, entry.hash):
                    raise ValueError
            except (ValueError, TypeError):
                raise PrivacyError(
                    f"The ledger {self.path} was changed: line {number + 1} does not fit the chain. Restore it "
                    "from a backup; until then nothing leaves this site."
                ) from None
            out.append(entry)
            previous = entry.hash
        return out

    def _runs(self) -> dict[tuple[str, str], Entry]:
        """The latest state of every run. What was released stays released, whatever is tried and refused under its name later."""
        found: dict[tuple[str, str], Entry] = {}
        for entry in self.entries():
            before = found.get((entry.study, entry.run))
            if before is None or before.state != "released":
                found[entry.study, entry.run] = entry
        return found

    @property
    def head(self) -> tuple[int, str]:
        """Number of entries and the last hash: what a card states, so that a shortened ledger is found out."""
        entries = self.entries()
        return len(entries), entries[-1].hash if entries else START

    def verify(self, heads: Sequence[tuple[int, str]] = ()) -> int:
        """Check the chain and that it still holds every head that was published; returns the number of entries."""
        entries = self.entries()
        for count, value in heads:
            at = entries[count - 1].hash if 0 < count <= len(entries) else START
            if count > len(entries) or not hmac.compare_digest(at, value):
                raise PrivacyError(
                    f"The ledger does not contain a state that was published ({count} entries, on a card or in the anchor "
                    "file): lines were removed or replaced. Restore it from a backup."
                )
        return len(entries)


_SCALES = "scales "  # in the note of a run whose responses' exact scales leave, before their items
_FOLDS = "folds "  # in the note of a Gram study in folds, before the digests of their cohorts
_TOLD = "told "  # in the note of a run, before the number of effects on each response that the other sites get
_SUMS = "sums "  # in the note of a run, before the number of sums over this site's features that another site gets
_EXACT_SUMS = "exact sums "  # in the note of a screened study, before how many exact sums leave of these people
_EXACT = ("gram", "screened")  # kinds of which differences are sums over the people in whom two cohorts differ
_CARRIED = ("study", "run", "cohort", "content", "n", "m", "kind", "columns", "epsilon", "delta")


def _noted(note: str, what: str) -> str:
    """What a note says of scales, folds or effects; empty where it says nothing of them."""
    return next((part.removeprefix(what) for part in note.split("; ") if part.startswith(what)), "")


def _smallest_atom(cohorts: Sequence[NDArray[np.uint64]]) -> int:
    """Subjects that are in the same of the cohorts cannot be told apart by sums over cohorts: how few such there are."""
    everybody = np.unique(np.concatenate(cohorts))
    pattern = np.stack([_among(everybody, cohort) for cohort in cohorts])
    return int(np.unique(pattern, axis=1, return_counts=True)[1].min())


def _among(tokens: NDArray[np.uint64], cohort: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of the tokens are in a cohort. By sorting: the table that NumPy may choose instead overflows in its version 2.0."""
    return np.isin(tokens, cohort, kind="sort")
