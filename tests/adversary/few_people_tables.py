"""Tables in whose columns few people carry a direction, and what a server without the key makes of their sketches or products.

Each attack is given what the server has: the sketch (or the exact products of all columns), labels, n and m. It returns unit
directions; those near a person's column of Φ are hits (from products, rows of people that it names).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.preflight import Preflight, SiteRules, preflight
from intarsia.site.self_attack import real_phi
from intarsia.site.sketch.sketch import SketchTerms, sketch
from intarsia.wire.study import Study

BRIEF = {"attack_seconds": 0.05}  # for the attack with the key, which is no matter here
KEY = SketchKey(bytes(range(32)))
Array = np.ndarray
Columns = dict[str, Array]


@dataclass(frozen=True)
class Case:
    """A table's columns, how many rows its sketch has, and the attack that reads it."""

    columns: Columns
    m: int
    attack: Callable[[Array, list[str]], Array]
    cosine: float = 0.9  # a direction so near to a person's column of Φ is a hit
    hits: int = 1  # how many there are, at least, where nothing is refused


def loud(n: int = 1000, m: int = 100, columns: int = 300, times: float = 6.0, rho: float = 0.0, people: int = 1) -> Case:
    """People who are `times` as variable as the others in all columns."""
    rng = np.random.default_rng(n + columns)
    X = np.sqrt(rho) * rng.standard_normal((n, 1)) + np.sqrt(1 - rho) * rng.standard_normal((n, columns))
    X[np.arange(people) * 7 + 3] *= times * np.linspace(1, 1.4, people)[:, None]
    return Case(named("x", X), m, leading)


def panels(n: int = 1000, m: int = 100, people: int = 35, outside: float = 0.0, stem: bool = True) -> Case:
    """Two panels measured in so many people each who have one in common; everybody else has the same value, or none."""
    rng = np.random.default_rng(n + people)
    who, data = rng.permutation(n), {}
    for p, some in enumerate((who[:people], who[people - 1 : 2 * people - 1])):
        for j in range(people + 5):
            column = outside * rng.standard_normal(n)
            column[some] = 5 + rng.standard_normal(people)
            data[f"{'ab'[p]}_{j}" if stem else f"c{17 * (len(data) + 1) % 997}"] = column
    data |= named("x", rng.standard_normal((n, 20)))
    return Case(data, m, meeting)


def totals(n: int = 600, m: int = 100, visits: int = 25, items: int = 9) -> Case:
    """Items and their total at each visit, with one slip each; items of one visit and those of all visits go together."""
    rng = np.random.default_rng(n)
    trait, data = rng.standard_normal((n, items)), {}
    for v in range(visits):
        X = trait + rng.standard_normal((n, 1)) + rng.standard_normal((n, items))
        total = X.sum(axis=1)
        total[rng.integers(n)] += 3.0
        data |= {f"visit{v}_item{j}": X[:, j] for j in range(items)} | {f"visit{v}_total": total}
    return Case(data, m, labelled_totals, hits=visits - visits // 3)


def pairs(n: int = 1000, m: int = 100, count: int = 150, share: float = 0.84) -> Case:
    """Pairs of columns of whose difference one person has this share."""
    rng = np.random.default_rng(n)
    data: Columns = {}
    for k, who in enumerate(rng.permutation(n)[:count]):
        x, noise = rng.standard_normal(n), 0.02 * rng.standard_normal(n)
        noise[who] = 0
        noise[who] = np.sqrt(share / (1 - share) * np.square(noise - noise.mean()).sum())
        data |= {f"x{k}": x, f"y{k}": x + noise}
    return Case(data, m, differences, hits=count // 3)


def loud_in_some(n: int = 1000, m: int = 100, columns: int = 300, some: int = 60, times: float = 6.0) -> tuple[Case, Array]:
    """One subject who is loud in some columns whose names have nothing in common, and which these are."""
    rng = np.random.default_rng(0)
    X, at = rng.standard_normal((n, columns)), rng.permutation(columns)[:some]
    X[3, at] *= times
    return Case(dict(zip(unnamed(columns, rng), X.T, strict=True)), m, leading), at


def unnamed_totals(n: int = 600, m: int = 100, sums: int = 25, items: int = 9, slips: int = 2) -> Case:
    """Totals with slips among columns whose names and places tell nothing."""
    rng = np.random.default_rng(1)
    columns = []
    for _ in range(sums):
        X = rng.standard_normal((n, items)) + 0.7 * rng.standard_normal((n, 1))
        total = X.sum(axis=1)
        total[rng.permutation(n)[:slips]] += 3 * rng.choice([-1, 1], slips)
        columns += [*X.T, total]
    place = rng.permutation(len(columns))
    return Case({name: columns[j] for name, j in zip(unnamed(len(columns), rng), place, strict=True)}, m, differences)


def unnamed(count: int, rng: np.random.Generator) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(chr(97 + int(letter)) for letter in rng.integers(0, 26, 7))] = None
    return list(names)


def named(stem: str, X: Array) -> Columns:
    return {f"{stem}{j}": X[:, j] for j in range(X.shape[1])}


def ordinary(seed: int) -> Case:
    """Columns of mixed kinds, correlated by factors and families, that nobody made to give anyone away."""
    rng = np.random.default_rng(seed)
    n, c = int(rng.choice([200, 400, 800, 1500])), int(rng.choice([6, 20, 60, 150, 300]))
    factors, rho, family = int(rng.integers(1, 6)), rng.choice([0, 0.2, 0.5, 0.8]), int(rng.choice([1, 5, 10]))
    alike = rng.choice([0, 0.5, 0.9])
    load = rng.standard_normal((factors, c))
    common = np.repeat(rng.standard_normal((n, -(-c // family))), family, axis=1)[:, :c]
    own = np.sqrt(alike) * common + np.sqrt(1 - alike) * rng.standard_normal((n, c))
    X = np.sqrt(rho) * (rng.standard_normal((n, factors)) @ (load / np.linalg.norm(load, axis=0))) + np.sqrt(1 - rho) * own
    some = rng.choice(["normal", "lognormal", "t", "binary", "likert", "counts"], size=int(rng.integers(1, 5)), replace=False)
    sigma, df = rng.choice([0.3, 0.5, 0.75]), int(rng.choice([5, 8, 20]))
    data: Columns = {}
    for j in range(c):
        x, kind = X[:, j], some[j // family % len(some)]
        u = stats.norm.cdf(x).clip(1e-12, 1 - 1e-12)
        values = {
            "normal": lambda x, u: x, "lognormal": lambda x, u: np.exp(sigma * x), "t": lambda x, u: stats.t.ppf(u, df),
            "binary": lambda x, u: (x > rng.normal(0, 0.5)).astype(float), "counts": lambda x, u: stats.poisson.ppf(u, 4.0),
            "likert": lambda x, u: np.digitize(x, [-1.2, -0.4, 0.4, 1.2]).astype(float),
        }[kind](x, u)  # fmt: skip
        data[f"f{j // family}_i{j % family}" if family > 1 else f"v{j}"] = values
    return Case(data, max(5, int(n * rng.choice([0.05, 0.1, 0.25]))), leading)


# What the server does.


def leading(S: Array, labels: list[str]) -> Array:
    return np.linalg.svd(S, full_matrices=False)[0][:, :5]


def meeting(S: Array, labels: list[str]) -> Array:
    """What the spans of two families of columns have in common."""
    stems: dict[str, list[int]] = {}
    for j, label in enumerate(labels):
        stems.setdefault(label.split("_")[0] if "_" in label else "", []).append(j)
    bases = [_basis(S[:, at]) for stem, at in stems.items() if stem]
    return np.column_stack([a @ np.linalg.svd(a.T @ b)[0][:, 0] for a, b in combinations(bases, 2)])


def labelled_totals(S: Array, labels: list[str]) -> Array:
    out = []
    for j in (j for j, label in enumerate(labels) if label.endswith("_total")):
        visit = labels[j].removesuffix("total")
        at = [k for k, label in enumerate(labels) if label.startswith(visit) and k != j]
        out.append(S[:, j] - S[:, at] @ np.linalg.lstsq(S[:, at], S[:, j], rcond=None)[0])
    return np.column_stack(out)


def differences(S: Array, labels: list[str]) -> Array:
    """Each column less the column that is most like it."""
    unit = S / np.linalg.norm(S, axis=0)
    inner = unit.T @ unit - np.eye(len(labels))
    nearest = np.abs(inner).argmax(axis=1)
    return np.asarray(unit - unit[:, nearest] * inner[np.arange(len(labels)), nearest])


def _basis(S: Array) -> Array:
    left, size, _ = np.linalg.svd(S, full_matrices=False)
    return np.asarray(left[:, size > 1e-6 * size[0]])


# What the site does, and what it would have given away.


def study(m: int, kind: str = "orthonormal", others: int = 0) -> Study:
    """The site `lab` brings the table; another one brings so many columns besides a response."""
    roster: list[dict[str, Any]] = [{"name": "lab", "features": ["*"]}, {"name": "clinic", "responses": ["y"]}]
    if others:
        roster[1] |= {"features": ["*"], "columns": others + 1}
    sizes: dict[str, Any] = {"kind": "gram"} if kind == "gram" else {"m": m, "kind": kind}
    if kind == "gram":
        from tests.federation import fixed_identity

        for one in roster:
            identity = fixed_identity(one["name"])
            one |= {"exchange_key": identity.exchange_key, "signing_key": identity.signing_key}
        sizes["holders"] = ["clinic", "lab", "server"]
    return Study.from_dict({"id": "few", "run": "ab" * 16, "sketch": sizes, "site": roster})


def table(columns: Columns) -> Table:
    return Table.open({"id": [f"s{i}" for i in range(len(next(iter(columns.values()))))], **columns}, id="id")


def judged(case: Case, kind: str = "orthonormal", policy: dict[str, Any] | None = None, others: int = 0) -> Preflight:
    return preflight(table(case.columns), KEY, study(case.m, kind, others), site="lab", own=SiteRules(policy or BRIEF))


def refusals(case: Case, kind: str = "orthonormal") -> set[str]:
    return {finding.rule for finding in judged(case, kind).verdict.refused}


def hits(case: Case) -> int:
    """How many people's columns of Φ the attack has, were the sketch sent."""
    opened, terms = table(case.columns), SketchTerms.of(study(case.m), "lab")
    S = np.asarray(sketch(opened, KEY, terms).message.X, dtype=float)
    Phi = real_phi(terms.design(KEY, opened.n))
    return len(people_of(case.attack(S, list(case.columns)), Phi, case.cosine))


def people_of(directions: Array, Phi: Array, cosine: float) -> set[int]:
    inner = np.abs((directions / np.linalg.norm(directions, axis=0)).T @ (Phi / np.linalg.norm(Phi, axis=0)))
    return set(inner.argmax(axis=1)[inner.max(axis=1) > cosine].tolist())


def rows_of(directions: Iterable[Array], Z: Array, alike: float) -> set[int]:
    """Whose rows some of these are, up to their scale."""
    unit = Z / np.linalg.norm(Z, axis=1)[:, None]
    inner = np.abs(np.array([d / np.linalg.norm(d) for d in directions]) @ unit.T)
    return set(inner.argmax(axis=1)[inner.max(axis=1) > alike].tolist())
