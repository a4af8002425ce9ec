"""Rogue parties for the tests: a server that sends what it likes, a carrier of files that alters them, a site that lies.

    rogue = RogueServer.after_fit(tmp_path)                     # everything an honest study gave it so far
    rogue.deliver("mri", rogue.forged("mri", mean=np.eye(6)[:, :3]))
    told = rogue.ask("mri", "predict", {"request": b"june"}, new=subjects["mri"])
    assert told.refused                                         # fixed words, nothing else crossed the wall

What a rogue party is given is what that party has: messages, the study file, files on their way. `Site` objects stand for other
people's machines; a test only talks to them through `ask`, which is the real step with the real refusal in between.
"""

import atexit
import copy
import json
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.federation import NAMES, RESPONSES, frames, sites, study

from intarsia import files
from intarsia.carriers import in_process
from intarsia.server.assess.convergence import NotConvergedWarning
from intarsia.server.assess.stacking import FEWEST_ROWS
from intarsia.server.study import protocol
from intarsia.server.study.fit import fit
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.protocol import Payload, Reply
from intarsia.site.align import tokenise
from intarsia.site.answer import REFUSALS, REFUSED, answer, scrub
from intarsia.site.key import SketchKey
from intarsia.site.self_attack import real_phi
from intarsia.site.site import Site
from intarsia.site.sketch.terms import SketchTerms
from intarsia.wire.alignment import AlignmentReport, Cohort
from intarsia.wire.coefficients import Coefficients, bind
from intarsia.wire.messages import Sketch
from intarsia.wire.study import Study

_FITTED: list["RogueServer"] = []
FIXED_WORDS = {*REFUSALS.values(), REFUSED}


@dataclass(frozen=True)
class Told:
    """What came over the wall: a message, or the words of a refusal."""

    message: bytes | None = field(repr=False)
    words: str | None = None

    @property
    def refused(self) -> bool:
        return self.message is None


class RogueServer:
    """Any step, any payload, any order, at any site. It keeps everything it sees."""

    def __init__(self, parties: list[Site], plan: Study, folder: Path):
        self.sites = {site.name: site for site in parties}
        self.study = plan
        self.folder = StudyFolder.create(folder, plan)
        self.seen: list[bytes] = []
        self.reason = ""  # of the last refusal, which no server sees: for the tests alone

    @classmethod
    def before(
        cls, where: Path, *, tables: Mapping[str, Any] | None = None, pinned: bool = True, **options: Any
    ) -> "RogueServer":
        """Three sites in their own folders that have accepted a study and done nothing yet."""
        tables = dict(tables or frames())
        parties = sites(tables, identities=pinned)
        for site in parties:
            site.folder = where / site.name
            site.folder.mkdir(parents=True)
        return cls(parties, study(parties, **options), where / "server")

    @classmethod
    def after_collect(cls, where: Path, **options: Any) -> "RogueServer":
        rogue = cls.before(where, **options)
        protocol.collect(rogue.folder, rogue.carry)
        return rogue

    @classmethod
    def after_fit(cls, where: Path) -> "RogueServer":
        """It has all sketches and a fit; nothing is delivered yet. Made once, then copied: no test sees another's traces."""
        if not _FITTED:
            first = cls.after_collect(Path(tempfile.mkdtemp(prefix="intarsia-rogue-")))
            atexit.register(shutil.rmtree, first.folder.path.parent, ignore_errors=True)
            fit(first.folder)
            _FITTED.append(first)
        made = _FITTED[0]
        shutil.copytree(made.folder.path.parent, where, dirs_exist_ok=True)
        parties = []
        for site in made.sites.values():
            party = copy.copy(site)
            party.folder, party._stores, party.predictions = where / site.name, {}, {}
            parties.append(party)
        return cls(parties, made.study, where / "server")

    def ask(self, site: str, step: str, payload: Mapping[str, bytes] | None = None, new: Any = None) -> Told:
        """One step at one site, over the real wall."""
        party = self.sites[site]
        try:
            told = Told(answer(party, self.study, step, payload or {}, None if new is None else lambda _study, _request: new))
        except Exception as error:
            told = Told(None, scrub(party, self.study, error))
            self.reason = str(error)
        self.seen.append(told.message if told.message is not None else (told.words or "").encode())
        return told

    def carry(self, step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        """As a carrier for the honest protocol."""
        replies = {}
        for name, payload in payloads.items():
            raw = {key: value.read_bytes() if isinstance(value, Path) else value for key, value in payload.items()}
            told = self.ask(name, step, raw)
            replies[name] = Reply(told.message, told.words)
        return replies

    def another_run(self, folder: Path) -> "RogueServer":
        """The same sites in a new run of the study, which their operators accept."""
        return RogueServer(list(self.sites.values()), self.study.again(), folder)

    def sketch_without(self, left_out: int) -> dict[str, Told]:
        """The steps of an `intersect` study, honest until the cohort: then so many subjects are left out at every site."""
        before: dict[str, bytes] = {}
        for step in ("offer", "share", "combine", "announce", "align"):
            told = {name: self.ask(name, step, before) for name in NAMES}
            assert not any(one.refused for one in told.values()), (step, [self.log(name) for name in NAMES])
            before = {name: one.message or b"" for name, one in told.items()}
        tokens = {name: AlignmentReport.from_bytes(raw).tokens for name, raw in before.items()}
        out = {}
        for name, found in tokens.items():
            assert found is not None
            keep = np.arange(len(found)) >= left_out  # all sites hold the same subjects, and tokens are sorted
            cohort = Cohort(name, self.study.hash, "intersect", int(keep.sum()), keep)
            out[name] = self.ask(name, "sketch", {"cohort": cohort.to_bytes()})
        return out

    def kept(self, kind: str) -> dict[str, bytes]:
        return {name: self.folder.read(kind, name) for name in NAMES}

    def coefficients(self) -> dict[str, Coefficients]:
        return {name: Coefficients.from_bytes(raw) for name, raw in self.kept("coefficients").items()}

    def forged(self, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
        """Coefficients with some fields changed at some sites, and digests that fit them again."""
        honest = self.coefficients()
        altered = {name: replace(honest[name], **changes.get(name, {})) for name in NAMES}
        return {name: message.to_bytes() for name, message in bind(altered).items()}

    def deliver(self, messages: Mapping[str, bytes] | None = None) -> dict[str, Told]:
        messages = messages or self.kept("coefficients")
        return {name: self.ask(name, "receive", {"coefficients": raw}) for name, raw in messages.items()}

    def truth(self, new: Mapping[str, pd.DataFrame], request: str = "june") -> np.ndarray:
        """The new subjects' values at all sites in the order in which parts have them: what an attack is measured against."""
        first = self.sites[NAMES[0]]
        rows = tokenise(new[NAMES[0]]["id"], first.key(self.study), self.study, purpose=f"predict-{request}").rows
        return np.hstack([new[name].drop(columns="id").to_numpy()[rows] for name in NAMES])

    def refusals(self, site: str) -> int:
        """How often the site noted that it refused something; a refusal like an earlier one is counted, not written again."""
        path = self.sites[site].run_store(self.study).path("problems.counts.json")
        assert path is not None
        return sum(kind["times"] for kind in files.read_json(path, "").values()) if path.is_file() else 0

    def log(self, site: str) -> list[dict[str, str]]:
        """The site's own log of refusals, which no server sees."""
        path = self.sites[site].run_store(self.study).path("problems.jsonl")
        assert path is not None
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def new_subjects(n: int = 30, seed: int = 11) -> dict[str, pd.DataFrame]:
    """Tables of people who were not in the study, one per site, in one order."""
    tables = frames(n, seed=seed)
    return {
        name: frame.drop(columns=RESPONSES[name]).sort_values("id").assign(id=lambda f: "N" + f["id"])
        for name, frame in tables.items()
    }


def best_match(guess: np.ndarray, truth: np.ndarray) -> float:
    """How well any column of the truth is known from any slice of the guess: the largest |correlation|."""
    rows = guess.reshape(-1, guess.shape[-1]) if guess.ndim > 1 else guess[None]
    best = 0.0
    for row in rows:
        for column in truth.T:
            if row.std() > 0:
                best = max(best, abs(float(np.corrcoef(row, column)[0, 1])))
    return best


class EvilCarrier:
    """Whoever carries files between institutions: alters, swaps, replays, drops."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, name: str, raw: bytes, signature: bytes | None = None) -> Path:
        """A file on its way, with its signature beside it if it has one."""
        path = self.folder / name
        path.write_bytes(raw)
        beside = path.with_name(path.name + ".sig")
        beside.unlink(missing_ok=True)
        if signature is not None:
            beside.write_bytes(signature)
        return path


class LyingSite(Site):
    """A site that follows the protocol but for what a test replaces."""

    def pretend(self, **methods: Any) -> "LyingSite":
        for name, method in methods.items():
            setattr(self, name, method)
        return self


def told_by_results(sites: list[Site], study: Study, key: SketchKey) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From the second site's own files after a study: the sketch of its columns, sums of the response's sketch by them, and Φ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        in_process.fit(sites, study)
    snoop = sites[1]
    model, own = snoop.model(study).coefficients, Sketch.load(snoop.run_store(study).need("sketch", ""))
    # Unless predictions were weighed, what is added to predict is the background, which residuals are without too.
    weighed = study.sketch.m >= FEWEST_ROWS
    background = 0.0 if weighed else np.asarray(model.to_predict)[:, 0]
    mean, flat = model.mean[:, 0] + background, np.asarray(model.unshrunk)[:, 0]
    # unshrunk = mean + x·r / x·x, with x a column's sketch and r the residuals'. The other site's own effects are left in.
    told = (flat - mean) * (own.X**2).sum(axis=0) + own.X.T @ (own.X @ mean)
    return own.X, told, real_phi(SketchTerms.of(study, snoop.name, own.order_mac).design(key, snoop.table().n))
