"""What crosses a site's wall: `Sketch`, and how the server joins the sketches of all sites.

A sketch holds Φ times the site's scaled columns: features, responses and covariates, and the responses' scales where the
study asks for them (`[deliver] share_scales`). It never holds Φ, the key, Φ1, means, other scales, ids or their order.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.errors import MessageError
from intarsia.wire.container import MAX_BYTES, finite, pack, unpack, write
from intarsia.wire.plain import some
from intarsia.wire.schema import check_name
from intarsia.wire.study_parts import PRECISIONS, SKETCH_KINDS

SCHEMA = 3
MAX_LABEL = 200  # characters
_HEX = re.compile(r"[0-9a-f]{16,128}")
_FIELDS = {
    "schema", "site", "features", "responses", "covariates", "n", "m", "kind", "precision",
    "study_hash", "key_fingerprint", "order_mac", "noise", "response_scales", "most_told",
}  # fmt: skip
_ROLES = ("features", "responses", "covariates")


def check_most_told(most: Any, site: str) -> None:
    if most is not None and (type(most) is not int or not 0 <= most < 2**31):
        raise MessageError(f"Site {site!r}: how many effects may be told in full must be a whole number, or nothing.")


def check_labels(labels: Any, what: str) -> tuple[str, ...]:
    """Column labels as a tuple: text, printable, at most 200 characters, no two the same."""
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise MessageError(f"The {what} labels must be a list of text.")
    for label in labels:
        if not isinstance(label, str) or not label or len(label) > MAX_LABEL or not label.isprintable():
            raise MessageError(f"Each {what} label must be printable text of 1 to {MAX_LABEL} characters; one is not.")
    found = tuple(labels)
    if len(set(found)) != len(found):
        twice = [label for label, count in Counter(found).items() if count > 1][:5]
        raise MessageError(f"Two {what} columns have the same label: {', '.join(twice)}. Rename one.")
    return found


def check_scales(scales: Any, count: int) -> tuple[float, ...]:
    """Shared scales of the responses: none, or a positive number for each."""
    fits = isinstance(scales, Sequence) and len(scales) in (0, count)
    if not fits or not all(type(v) is float and 0 < v < 1e300 for v in scales):
        raise MessageError(f"The scales of the responses must be none at all or {count} positive numbers; what came is not.")
    return tuple(scales)


def _text(value: Any, what: str, form: re.Pattern[str], expected: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise MessageError(f"The {what} of a sketch must be {expected}; what came is not.")
    return value


@dataclass(frozen=True)
class Sketch:
    """One site's sketch (paper, §2.1): X = ΦX_k (m × P_k), Y = ΦY_k (m × Q_k), Z = ΦZ_k (m × c_k); any may have no columns.

    Z are covariates: adjusted for, never shrunk or selected.

    `precision` says to what type the values were rounded before they left; in memory they are float64 again.
    `order_mac` is the keyed digest of the agreed cohort and order (empty when the sites agreed on it by hand).
    `noise` is the w of a differentially private sketch (the site added N(0, w²/n) to each entry), else 0.
    `response_scales` are the responses' standard deviations where the study shares them, else there are none.
    `most_told` is how many effects of its columns another site may be told in full for this site's features; None: all of them.
    """

    site: str
    features: tuple[str, ...]
    responses: tuple[str, ...]
    X: np.ndarray = field(repr=False)
    Y: np.ndarray = field(repr=False)
    n: int
    m: int
    kind: str
    precision: str
    study_hash: str
    key_fingerprint: str
    order_mac: str = ""
    noise: float = 0.0
    covariates: tuple[str, ...] = ()
    Z: np.ndarray | None = field(default=None, repr=False)
    response_scales: tuple[float, ...] = ()
    most_told: int | None = None

    def __post_init__(self) -> None:
        if not check_name(self.site):
            raise MessageError("The site of a sketch must be a name of letters, digits, '_' and '-', at most 63.")
        set_ = object.__setattr__
        set_(self, "features", check_labels(self.features, "feature"))
        set_(self, "responses", check_labels(self.responses, "response"))
        set_(self, "covariates", check_labels(self.covariates, "covariate"))
        labels = Counter((*self.features, *self.responses, *self.covariates))
        if both := sorted(label for label, count in labels.items() if count > 1):
            raise MessageError(f"Site {self.site!r}: {some(both)} has two roles; a column has one.")
        if not labels:
            raise MessageError(f"Site {self.site!r} sends neither a feature nor a response nor a covariate.")
        if type(self.n) is not int or type(self.m) is not int or not 2 <= self.m < self.n < 2**48:
            raise MessageError(f"Site {self.site!r}: a sketch needs 2 ≤ m < n, whole numbers.")
        if self.kind not in SKETCH_KINDS or self.precision not in PRECISIONS:
            raise MessageError(f"Site {self.site!r}: kind must be one of {SKETCH_KINDS}, precision one of {PRECISIONS}.")
        _text(self.study_hash, "study hash", _HEX, "hexadecimal")
        _text(self.key_fingerprint, "key fingerprint", _HEX, "hexadecimal")
        if self.order_mac != "":
            _text(self.order_mac, "order digest", _HEX, "hexadecimal or empty")
        if type(self.noise) not in (int, float) or not 0 <= self.noise < 1e12:
            raise MessageError(f"Site {self.site!r}: noise must be a number, 0 or more.")
        set_(self, "response_scales", check_scales(self.response_scales, len(self.responses)))
        check_most_told(self.most_told, self.site)
        if self.Z is None:
            set_(self, "Z", np.empty((self.m, 0)))
        for name, columns in (("X", self.features), ("Y", self.responses), ("Z", self.covariates)):
            given = array = np.asarray(getattr(self, name))
            if array.dtype.kind != "f" or array.shape != (self.m, len(columns)):
                raise MessageError(
                    f"Site {self.site!r}: {name} has shape {array.shape} and type {array.dtype}, "
                    f"expected ({self.m}, {len(columns)}) of floating numbers."
                )
            with np.errstate(over="ignore"):  # an overflow becomes infinite and is refused below
                array = array.astype(self.precision, copy=False).astype(np.float64, copy=False)
            if array is given and array.flags.writeable:  # somebody might change it
                array = array.copy()
            if not finite(array):
                raise MessageError(f"Site {self.site!r}: {name} holds values that are not finite in {self.precision}.")
            array.flags.writeable = False
            set_(self, name, array)

    def to_bytes(self) -> bytes:
        header = {name: getattr(self, name) for name in _FIELDS - {"schema", *_ROLES}}
        header |= {"schema": SCHEMA} | {name: list(getattr(self, name)) for name in (*_ROLES, "response_scales")}
        return pack("sketch", header, {name: getattr(self, name).astype(self.precision, copy=False) for name in "XYZ"})

    def save(self, path: str | os.PathLike[str]) -> None:
        write(path, self.to_bytes())

    @classmethod
    def load(cls, source: bytes | str | os.PathLike[str], *, limit: int = MAX_BYTES) -> "Sketch":
        """Read and validate a sketch from a file or from bytes; MessageError when anything about it is wrong."""
        header, arrays = unpack(source, "sketch", limit_bytes=limit)
        if type(header.get("schema")) is not int or header["schema"] != SCHEMA:
            raise MessageError(
                f"The sketch has another schema than {SCHEMA}, the one this intarsia reads. Use the same intarsia at all sites."
            )
        if set(header) != _FIELDS or set(arrays) != set("XYZ"):
            raise MessageError("The sketch does not have exactly the fields of its schema: it is damaged or not ours.")
        precision = header["precision"]
        if any(array.dtype.name != precision for array in arrays.values()):
            raise MessageError("The sketch's values do not have the precision its header states.")
        fields: dict[str, Any] = {**header, **arrays}
        del fields["schema"]
        return cls(**fields)


@dataclass(frozen=True)
class Joined:
    """The global sketch X_Φ (m × P), Y_Φ (m × Q), Z_Φ (m × c): the sites' columns side by side, in the order of the sketches."""

    X: np.ndarray = field(repr=False)
    Y: np.ndarray = field(repr=False)
    features: tuple[str, ...]
    responses: tuple[str, ...]
    feature_sites: tuple[str, ...]
    response_sites: tuple[str, ...]
    n: int
    m: int
    kind: str
    study_hash: str
    precision: str = "float64"
    key_fingerprint: str = ""
    order_mac: str = ""
    feature_noise: tuple[float, ...] = ()
    response_noise: tuple[float, ...] = ()
    covariates: tuple[str, ...] = ()
    covariate_sites: tuple[str, ...] = ()
    Z: np.ndarray | None = field(default=None, repr=False)
    response_scales: tuple[float, ...] = ()
    looked_at: int | None = None  # features that were looked at, where those here are the ones kept of them
    most_told: Mapping[str, int] = field(default_factory=dict)  # by site that states it

    def __post_init__(self) -> None:
        if self.Z is None:
            object.__setattr__(self, "Z", np.empty((self.m, 0)))

    @property
    def columns(self) -> int:
        """How many columns of the sites the server has, whatever their role."""
        return len(self.features) + len(self.responses) + len(self.covariates)


_SAME = {
    "study_hash": "come from different studies: let every site use the same study.toml",
    "key_fingerprint": "were made with different keys: let every site use the same key file",
    "order_mac": "rest on different cohorts or orders of subjects: run the alignment again",
    "n": "count different numbers of subjects: align the sites first",
    "m": "have different numbers of rows: let every site use the same study.toml",
    "kind": "are of different kinds: let every site use the same study.toml",
    "precision": "have different precisions: let every site use the same study.toml",
}


def join(sketches: Sequence[Sketch]) -> Joined:
    """Put the sketches of K sites side by side (paper, §2.1); refuse those that cannot belong together.

    A site may bring features only, responses only or both; responses may be spread over sites.
    """
    if not sketches:
        raise MessageError("No sketch to join: give one of each site.")
    first = sketches[0]
    sites = [sketch.site for sketch in sketches]
    if len(set(sites)) != len(sites):
        twice = sorted({site for site in sites if sites.count(site) > 1})
        raise MessageError(f"Two sketches come from site {', '.join(twice)}; give one of each site.")
    for other in sketches[1:]:
        for name, text in _SAME.items():
            if getattr(other, name) != getattr(first, name):
                raise MessageError(f"The sketches of sites {first.site!r} and {other.site!r} {text}.")
    if len({bool(sketch.response_scales) for sketch in sketches if sketch.responses}) > 1:
        raise MessageError(
            "Some sites send the scales of their responses and some do not: let every site use the same study.toml."
        )
    owner: dict[str, str] = {}
    for sketch in sketches:
        for label in (*sketch.features, *sketch.responses, *sketch.covariates):
            if label in owner:
                raise MessageError(
                    f"Column {label!r} comes from site {owner[label]!r} and from site {sketch.site!r}: "
                    "a column has one owner. Rename one, or leave it out at one site."
                )
            owner[label] = sketch.site
    joined = Joined(
        X=_side_by_side([s.X for s in sketches]),
        Y=_side_by_side([s.Y for s in sketches]),
        features=tuple(label for s in sketches for label in s.features),
        responses=tuple(label for s in sketches for label in s.responses),
        feature_sites=tuple(s.site for s in sketches for _ in s.features),
        response_sites=tuple(s.site for s in sketches for _ in s.responses),
        n=first.n, m=first.m, kind=first.kind, study_hash=first.study_hash, precision=first.precision,
        key_fingerprint=first.key_fingerprint, order_mac=first.order_mac,
        feature_noise=tuple(s.noise for s in sketches for _ in s.features),
        response_noise=tuple(s.noise for s in sketches for _ in s.responses),
        covariates=tuple(label for s in sketches for label in s.covariates),
        covariate_sites=tuple(s.site for s in sketches for _ in s.covariates),
        Z=_side_by_side([s.Z for s in sketches if s.Z is not None]),
        response_scales=tuple(scale for s in sketches for scale in s.response_scales),
        most_told={s.site: s.most_told for s in sketches if s.most_told is not None},
    )  # fmt: skip
    if not joined.features or not joined.responses:
        lacking = "feature" if not joined.features else "response"
        raise MessageError(f"No site brings a {lacking}: a regression needs at least one.")
    return joined


def _side_by_side(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The columns of all parts; where one alone has any it is not copied."""
    some = [part for part in parts if part.shape[1]]
    return some[0] if len(some) == 1 else np.concatenate(parts, axis=1)
