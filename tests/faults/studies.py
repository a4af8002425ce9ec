"""Small studies by files, as lists of commands, each with what it must leave: the same bytes, whatever happened meanwhile.

A study is prepared once, up to the sealed key. What follows rests on its folder alone, so that a copy of it can be disturbed.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.faults import whole
from tests.federation import KEY, fingerprints, fixed_identity

from intarsia.cli import main

NAMES = ("clinic", "mri", "lab")
KEY_FILE = "study.key"
OWNS = {"clinic": ["alt"], "mri": [], "lab": ["hdl"]}
N = 200  # subjects
RUN = "0123456789abcdef0123456789abcdef"
FIT = "[fit]\ndraws = 20\nwarmup = 20\nchains = 2\nthin = 1\nseed = 7\n"


@dataclass(frozen=True)
class Step:
    """One command, or one call, in the study's folder. `leaves`: patterns of the files that it must leave to the byte."""

    name: str
    does: tuple[str, ...] | Callable[[], int | None]
    leaves: tuple[str, ...] = ()

    @property
    def weight(self) -> int:
        """How often it is disturbed, beside others of its study."""
        return 4 if self.name in ("fit", "study leave") else 1


@dataclass(frozen=True)
class Plan:
    """A kind of study: its tables and study.toml, what comes before the disturbance, and the steps that are disturbed."""

    kind: str
    prepare: Callable[[Path], None]
    steps: tuple[Step, ...] = field(default=())

    @property
    def weight(self) -> int:
        """How often it is disturbed, beside others: one whose steps are long less often, for as many trials in an hour."""
        return 1 if self.kind.startswith("screened") else 2 if len(self.steps) == 1 else 3


def tables(missing: bool) -> dict[str, pd.DataFrame]:
    """Twelve columns in all. `missing`: half of the subjects lack the lab's response."""
    rng = np.random.default_rng(5)
    ids = [f"S{i:03d}" for i in range(N)]
    X = {name: rng.standard_normal((N, 4)) for name in NAMES}
    signal = X["clinic"][:, 0] - X["mri"][:, 1] + X["lab"][:, 2]
    out = {}
    for k, name in enumerate(NAMES):
        frame = pd.DataFrame(X[name], columns=[f"{name}_{j}" for j in range(4)])
        frame.insert(0, "id", ids)
        for response in OWNS[name]:
            frame[response] = signal + rng.standard_normal(N)
        if missing and name == "lab":
            frame.loc[N // 2 :, "hdl"] = np.nan
        out[name] = frame.sample(frac=1.0, random_state=k)
    return out


def run(*words: Any) -> None:
    if code := main([str(word) for word in words]):
        raise RuntimeError(f"{' '.join(map(str, words))} ended with {code}")


def _accepted(where: Path, sketch: str, *, mode: str = "strict", key: bool = False) -> None:
    """Three sites that have accepted the study. `key`: they have one, and agree on none."""
    entries, line = [], f'key = "../{KEY_FILE}"\n' if key else ""
    if key:
        KEY.save(where / KEY_FILE)
    for name, frame in tables(mode == "union").items():
        frame.to_csv(where / f"{name}.csv", index=False)
        identity = fixed_identity(name)
        (where / name).mkdir()
        identity.save(where / name)
        (where / name).chmod(0o700)
        owns = ", ".join(f'"{label}"' for label in OWNS[name])
        (where / name / "site.toml").write_text(
            f'name = "{name}"\n[table]\nsource = "../{name}.csv"\nid = "id"\n{line}responses = [{owns}]\n'
        )
        listed = f"responses = [{owns}]\n" if owns else ""
        keys = "" if key else f'exchange_key = "{identity.exchange_key}"\nsigning_key = "{identity.signing_key}"\n'
        entries.append(f'[[site]]\nname = "{name}"\nfeatures = ["{name}_*"]\n{listed}{keys}')
    text = f'id = "small"\nrun = "{RUN}"\n{sketch}\n[alignment]\nmode = "{mode}"\n{FIT}' + "\n".join(entries)
    (where / "study.toml").write_text(text)
    for name in NAMES:
        compared = fingerprints(where / name, where / "study.toml")
        run("site", "accept", where / name, where / "study.toml", "--fingerprints", compared)


def _prepared(where: Path, sketch: str, *, mode: str = "strict") -> None:
    """Three sites that have accepted the study and agreed on its key."""
    _accepted(where, sketch, mode=mode)
    for step, given, kind in (("offer", "", "offer"), ("share", "offer", "share"), ("combine", "share", "confirmation")):
        for name in NAMES:
            run("site", step, where / name, *_all(where, given), "-o", where / f"{name}.{kind}")
    for name in NAMES:
        run("site", "seal", where / name, *_all(where, "confirmation"))
    for path in where.glob("*.*"):
        if path.suffix in (".offer", ".share", ".confirmation"):
            path.unlink()


def _all(where: Path, kind: str) -> list[Path]:
    return [where / f"{name}.{kind}" for name in NAMES] if kind else []


def _each(step: str, kind: str, *given: str, before: tuple[str, ...] = ()) -> Iterator[Step]:
    for name in NAMES:
        argv = ("site", step, name, *before, *given, "-o", f"{name}.{kind}")
        yield Step(f"{step} {name}", argv, (f"{name}.{kind}",))


def _every(kind: str) -> tuple[str, ...]:
    return tuple(f"{name}.{kind}" for name in NAMES)


FITTED = ("server/coefficients/*.coefficients", "server/posterior.nc")


def _fit(workers: int, *given: str) -> Step:
    return Step("fit", ("fit", *given, "--study", "study.toml", "-o", "server", "--workers", str(workers)), FITTED)


def _received(names: tuple[str, ...] = NAMES, *more: str) -> Iterator[Step]:
    for name in names:
        argv = ("site", "receive", name, f"server/coefficients/{name}.coefficients", *more, "-o", f"{name}-out.csv")
        yield Step(f"receive {name}", (*argv, "--receipt", f"{name}.receipt"), (f"{name}-out.csv",))
    yield Step("deliver", ("deliver", "receipts", "server", *(f"{name}.receipt" for name in names)))


def sketch(workers: int) -> Plan:
    steps = (*_each("sketch", "sketch", before=("--yes",)), _fit(workers, *_every("sketch")), *_received())
    return Plan("sketch", lambda where: _prepared(where, "[sketch]\nm = 30"), steps)


def union(workers: int) -> Plan:
    align = ("server", "align", *_every("alignment"), "--study", "study.toml", "-o", "server")
    steps = (
        *_each("announce", "announcement"),
        *_each("align", "alignment", *_every("announcement")),
        Step("server align", align, tuple(f"server/{name}.cohort" for name in NAMES)),
        *(
            Step(f"sketch {name}", ("site", "sketch", name, "--cohort", f"server/{name}.cohort", "--yes", "-o", f"{name}.sketch"),
                 (f"{name}.sketch",))
            for name in NAMES
        ),
        _fit(workers, *_every("sketch")),
        *_received(),
    )  # fmt: skip
    return Plan("union", lambda where: _prepared(where, "[sketch]\nm = 30", mode="union"), steps)


def gram(workers: int) -> Plan:
    """Shares are drawn at random, and so are the dealt files: what must be the same is what comes of them."""
    deals, products = (tuple(f"{name}-{b}.{kind}" for name in NAMES for b in range(2)) for kind in ("deal", "product"))
    steps = (
        *(Step(f"sketch {name}", ("site", "sketch", name, "--yes", "-o", f"{name}.gram")) for name in NAMES),
        *(Step(f"deal {name}", ("site", "deal", name, *_every("gram"), "-o", f"{name}.deal")) for name in NAMES),
        *(Step(f"multiply {name}", ("site", "multiply", name, *deals, "-o", f"{name}.product")) for name in NAMES),
        _fit(workers, *_every("gram"), *products),
        *_received(),
    )
    return Plan("gram", lambda where: _prepared(where, '[sketch]\nkind = "gram"\nrows = 100'), steps)


def living(workers: int) -> Plan:
    """A study that a site leaves after all have their coefficients."""
    first = sketch(workers)
    stay = ("clinic", "lab")
    steps = (
        *first.steps,
        Step("leave mri", ("site", "leave", "mri", "-o", "mri.leave"), ("mri.leave",)),
        Step("study leave", ("study", "leave", "server", "mri.leave", "--workers", str(workers)), FITTED),
        *_received(stay, "--left", "mri.leave"),
    )
    return Plan("living", first.prepare, steps)


SKETCH = "[sketch]\nm = 30"
EXACT = '[sketch]\nkind = "gram"\nrows = 100'
SCREENED = '[sketch]\nkind = "screened"\nrows = 100\nkeep = 4\nagain = 0'


def _whole(kind: str, workers: int, call: Callable[[int], int | None], sketch: str, leaves: tuple[str, ...], **how: Any) -> Plan:
    """A study as one call. Where the key is drawn in it, results are others each time: `leaves` is empty."""
    return Plan(kind, lambda where: _accepted(where, sketch, **how), (Step("study", partial(call, workers), leaves),))


PLANS: dict[str, Callable[[int], Plan]] = {
    "sketch": sketch, "union": union, "gram": gram, "living": living,
    "sketch, in process": lambda w: _whole("sketch, in process", w, whole.here, SKETCH, FITTED, key=True),
    "union, in process": lambda w: _whole("union, in process", w, whole.here, SKETCH, FITTED, key=True, mode="union"),
    "agreed, in process": lambda w: _whole("agreed, in process", w, whole.here, SKETCH, ()),
    "gram, in process": lambda w: _whole("gram, in process", w, whole.here, EXACT, FITTED),
    "screened, in process": lambda w: _whole("screened, in process", w, whole.here, SCREENED, FITTED),
    "sketch, pipes": lambda w: _whole("sketch, pipes", w, whole.through_pipes, SKETCH, FITTED, key=True),
    "agreed, pipes": lambda w: _whole("agreed, pipes", w, whole.through_pipes, SKETCH, ()),
    "screened, pipes": lambda w: _whole("screened, pipes", w, whole.through_pipes, SCREENED, FITTED),
    "screened": lambda w: _whole("screened", w, whole.by_letters, SCREENED, FITTED),
}  # fmt: skip


# Studies whose messages are spoilt one by one, with all that comes before.
WIRES: dict[str, Callable[[Path], None]] = {
    "agreed": partial(_accepted, sketch=SKETCH),
    "union": partial(_accepted, sketch=SKETCH, mode="union"),
    "gram": partial(_accepted, sketch=EXACT),
    "screened": partial(_accepted, sketch=SCREENED),
}


def is_input(path: str) -> bool:
    """What people wrote: tables, settings and a key they exchanged. Other values there are other studies, and no damage."""
    return bool(re.search(r"(^|/)(accepted/.*|site\.toml|study\.(toml|key)|fingerprints\.txt|[a-z]+\.csv)$", path))
