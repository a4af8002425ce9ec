"""A whole study in which everything that is sent is first sent wrongly: to the sites by the server, to the server by whoever can.

    liar = Gauntlet(parties, plan, folder, earlier=[another_run, another_study])
    protocol.collect(liar.folder, liar.carry)     # honest but for the tricks before and after each step
    assert liar.slipped == []

Before each honest step a site gets the same payload with one entry altered in every way below, and every other step with this
payload; after it, the alterations again. Wrong ones must be refused in fixed words, and then the honest one must still be
taken: a refused message leaves no trace. What a site answers is altered in the same ways before the server takes it in.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.adversary.kit import FIXED_WORDS, RogueServer, Told

from intarsia.errors import IntarsiaError
from intarsia.server.study.protocol import Payload, Reply
from intarsia.site.site import Site
from intarsia.wire.gram_messages import BLOCK
from intarsia.wire.screening import ROUND
from intarsia.wire.steps import STEPS
from intarsia.wire.study import Study

Raw = dict[str, bytes]
PLAIN = (BLOCK, ROUND, "request")  # entries that are a number or a name and no message
SENT = ("offer", "share", "confirmation", "announcement", "alignment", "sketch")
# What the entries of a step's payload are; `sketch` and `receive` say it by their entries' names.
CARRIED = {"share": "offer", "combine": "share", "announce": "confirmation", "align": "announcement", "deal": "gram",
           "multiply": "deal", "hold": "deal", "keep": "kept", "look": "look", "finish": "sum"}  # fmt: skip


class Gauntlet(RogueServer):
    """`earlier`: recordings of another run and of another study at the same sites, to replay from."""

    def __init__(self, parties: list[Site], plan: Study, folder: Path, earlier: Mapping[str, "Gauntlet"] | None = None):
        super().__init__(parties, plan, folder)
        self.earlier = dict(earlier or {})
        self.payloads: dict[tuple[str, str, bytes], Raw] = {}
        self.accepted: dict[tuple[str, str], bytes] = {}
        self.slipped: list[tuple[str, str, str]] = []
        self.tried: dict[str, set[str]] = {}  # by kind of message, which tricks
        self.new: dict[str, Any] = {}  # tables of new subjects, where there is something to predict
        self.answers = {name: {self.folder.read(k, name) for k in SENT if name in self.folder.present(k)} for name in self.sites}
        if self.earlier:
            self.folder.accept = self._accept  # type: ignore[method-assign]
        self._take = type(self.folder).accept

    def ask(self, site: str, step: str, payload: Mapping[str, bytes] | None = None, new: Any = None) -> Told:
        return super().ask(site, step, payload, self.new.get(site) if step in ("predict", "finish") else new)

    def carry(self, step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        raw = {name: {k: v.read_bytes() if isinstance(v, Path) else v for k, v in p.items()} for name, p in payloads.items()}
        for name, payload in raw.items():
            self.payloads[step, name, place(payload)] = payload
        if self.earlier:
            for name, payload in raw.items():
                self._out_of_turn(step, name, payload)
                self._try(step, name, payload, raw, after=False)
        replies = super().carry(step, payloads)
        for name, reply in replies.items():
            assert isinstance(reply.message, bytes), (step, name, self.log(name)[-1])  # the honest one is still taken
            self.answers[name].add(reply.message)
        if self.earlier:
            for name, payload in raw.items():
                self._try(step, name, payload, raw, after=True)
        return replies

    def _try(self, step: str, name: str, payload: Raw, all_of_them: Mapping[str, Raw], *, after: bool) -> None:
        """After the step the site may also answer what it answered before, whatever it is told."""
        for what, trick, altered in self._altered(step, name, payload, all_of_them):
            told = self.ask(name, step, altered)
            self.tried.setdefault(what, set()).add(trick)
            good = told.words in FIXED_WORDS or (after and told.message in self.answers[name])
            if not good:
                self.slipped.append((step, name, f"{what}: {trick}{' afterwards' if after else ''}"))

    def _out_of_turn(self, step: str, name: str, payload: Raw) -> None:
        for other in (*STEPS, "shell"):
            if other not in (step, "offer"):
                told = self.ask(name, other, payload)
                if not told.refused and told.message not in self.answers[name]:
                    self.slipped.append((other, name, f"with the payload of {step}"))

    def _altered(self, step: str, name: str, payload: Raw, all_of_them: Mapping[str, Raw]) -> Iterator[tuple[str, str, Raw]]:
        # A genuine notice that a site leaves is heard whatever comes with it; so false ones come first.
        for entry, raw in sorted(payload.items(), reverse=True):
            if entry == "request":
                continue
            # Of a screened study: what every site states of its columns.
            first = (step == "deal" and payload.get(ROUND) == b"0") or (step == "keep" and entry != "kept")
            what = "block" if entry in PLAIN else "screen" if first else self._kind(step, entry)
            yield what, "left out", {k: v for k, v in payload.items() if k != entry}
            for trick, bad in damaged(raw):
                yield what, trick, payload | {entry: bad}
            if entry in PLAIN:
                continue
            others = {k: v for k, v in payload.items() if k != entry and k not in PLAIN}
            for trick, bad in self._of_others(step, name, entry, others, all_of_them, payload):
                if bad != raw:
                    yield what, trick, payload | {entry: bad}

    def _of_others(
        self, step: str, name: str, entry: str, others: Raw, all_of_them: Mapping[str, Raw], payload: Raw
    ) -> Iterator[tuple[str, bytes]]:  # fmt: skip
        for other in others.values():
            yield "another party's", other
        for other, their in all_of_them.items():
            if other != name and entry in their:
                yield "meant for another site", their[entry]
        for what, recording in self.earlier.items():
            before = recording.payloads.get((step, name, place(payload)), {})
            if entry in before:
                yield what, before[entry]
        for (kind, sender), message in self.accepted.items():
            if sender == name:
                yield f"this site's own {kind.partition('-')[0]}", message

    def _kind(self, step: str, entry: str) -> str:
        if step == "sketch":
            return "union" if self.study.alignment.mode == "union" else "cohort"
        if step == "receive":
            return "leave" if entry.startswith("left-") else entry
        return CARRIED[step]

    def _accept(self, kind: str, sender: str, raw: bytes | Path) -> bool:
        """The server's end: what comes in a site's name."""
        assert isinstance(raw, bytes)
        named = self._named(kind)
        wrong = [*damaged(raw), *((f"of {other}", message) for (k, other), message in self.accepted.items() if k == kind)]
        wrong += [(f"a {k}", message) for (k, other), message in self.accepted.items() if other == sender]
        wrong += [(what, e.accepted[kind, sender]) for what, e in self.earlier.items() if (kind, sender) in e.accepted]
        if kind == "confirmation":  # a MAC whose key the server does not have: the sites find out
            wrong = [(trick, bad) for trick, bad in wrong if trick != "one bit"]
        for trick, bad in wrong:
            self._refused_by_server(kind, sender, named, trick, bad)
        self._refused_by_server(kind, "stranger", named, "of nobody on the roster", raw)
        for other in self.folder.names:
            if other != sender and not self.folder.file(kind, other).is_file():
                self._refused_by_server(kind, other, named, "in another's name", raw)
        new = self._take(self.folder, kind, sender, raw)
        self.accepted[kind, sender] = raw
        for trick, bad in wrong:
            self._refused_by_server(kind, sender, named, f"{trick} afterwards", bad)
        return new

    def _refused_by_server(self, kind: str, sender: str, named: str, trick: str, bad: bytes) -> None:
        self.tried.setdefault(named, set()).add(trick)
        try:
            self._take(self.folder, kind, sender, bad)
        except IntarsiaError:
            return
        self.slipped.append((kind, sender, f"taken by the server: {trick}"))

    def _named(self, kind: str) -> str:
        """The kind as docs/protocol.md calls it."""
        if kind == "sketch":
            if self.study.sketch.screened:
                return "screen"
            return "gram" if self.study.sketch.gram else "groups" if self.study.alignment.mode == "union" else "sketch"
        return {"progress": "product", "held": "product", "look": "sums"}.get(kind.partition("-")[0], kind.partition("-")[0])


def place(payload: Raw) -> bytes:
    """Which block of which round a request is about."""
    return payload.get(ROUND, b"") + b"|" + payload.get(BLOCK, b"")


class Recording(Gauntlet):
    """An honest run, kept to be replayed from."""

    def __init__(self, parties: list[Site], plan: Study, folder: Path):
        super().__init__(parties, plan, folder)
        honest = self.folder.accept

        def accept(kind: str, sender: str, raw: Any) -> bool:
            self.accepted[kind, sender] = raw if isinstance(raw, bytes) else raw.read_bytes()
            return honest(kind, sender, raw)

        self.folder.accept = accept  # type: ignore[method-assign]


def damaged(raw: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "cut", raw[:-1]
    if len(raw) > 2:
        yield "half", raw[: len(raw) // 2]
        yield "longer", raw + b"\0"
        at = len(raw) // 3
        yield "one bit", raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
