"""Where a site does one multiplication of columns: which columns, and under which names it keeps what belongs to it.

A Gram study has one, of all the site's columns. A screened study has one for every round, of the columns of that round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from intarsia.site.gram.encode import let_go, opened
from intarsia.site.gram.shares import Splitting
from intarsia.site.run_store import RunStore
from intarsia.wire.gram_sharing import Cut, Sharing
from intarsia.wire.ring import Ring
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.site.site import Site

SEED = "seed.secret"
FIRST = "Make the site's own Gram block first."


@dataclass(frozen=True)
class RoundStore:
    """What belongs to one round, in the store of the run, under names of its own."""

    run: RunStore
    round: int

    def _name(self, name: str) -> str:
        return f"round-{self.round}.{name}"

    def get(self, name: str) -> bytes | None:
        return self.run.get(self._name(name))

    def put(self, name: str, content: bytes) -> bytes:
        return self.run.put(self._name(name), content)

    def replace(self, name: str, content: bytes) -> None:
        self.run.replace(self._name(name), content)

    def forget(self, name: str) -> None:
        self.run.forget(self._name(name))

    def need(self, name: str, remedy: str) -> bytes:
        return self.run.need(self._name(name), remedy)

    def path(self, name: str) -> Path | None:
        return self.run.path(self._name(name))

    def sent(self, step: str, content: bytes) -> None:
        self.run.sent(f"round {self.round} {step}", content)


@dataclass(frozen=True)
class Desk:
    """`chosen` are the places of this round's columns among all of the site's (`width`); None: all of them."""

    site: "Site"
    study: Study
    store: RunStore | RoundStore
    width: int | None = None
    chosen: Sequence[int] | None = None

    @property
    def run(self) -> RunStore:
        return self.store.run if isinstance(self.store, RoundStore) else self.store

    @property
    def sharing(self) -> Sharing:
        return Sharing.of(self.study)

    @property
    def splitting(self) -> Splitting:
        return Splitting(self.sharing, self.site.name, self.store.need(SEED, FIRST))

    def columns(self, n: int, c: int) -> "Columns":
        """The encoded columns of this multiplication, c of them."""
        return Columns(opened(self.run, n, c if self.width is None else self.width), self.chosen)


@dataclass(frozen=True)
class Columns:
    """Some of the encoded columns, read block by block."""

    all: Ring
    chosen: Sequence[int] | None = None

    @property
    def count(self) -> int:
        return int(self.all.shape[1]) if self.chosen is None else len(self.chosen)

    def rows(self, cut: Cut) -> Ring:
        some = slice(None) if self.chosen is None else list(self.chosen)
        found = np.array(self.all[cut.start : cut.stop][:, some], order="C", subok=False)
        let_go(self.all)
        return found
