"""study.toml: what is asked, of whom, under which rules; parsed, validated, hashed.

Every party works from its own copy. The hash is taken over the content (not the comments or the layout), and every
message carries it, so a party that works from another text is found out at its first message.
"""

import hashlib
import json
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from intarsia.errors import FederationError, StudyError
from intarsia.wire import study_tables
from intarsia.wire.schema import Checker
from intarsia.wire.study_parts import (
    LOOK_BITS,
    REASONS,
    SERVER,
    Alignment,
    Delivery,
    Fit,
    Predict,
    Privacy,
    SiteEntry,
    SketchPlan,
)

SCHEMA = 2
BEFORE_PRIORS = 1  # the schema in which every study had the horseshoe; one that has it still is written so
LARGEST_STUDY_BYTES = 16 * 2**20


def read_study_text(path: str | Path) -> tuple[bytes, str]:
    """The bytes of a study file, read once and no more of them than a study file has, and its text."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_STUDY_BYTES + 1)
    except OSError as error:
        raise StudyError(f"Cannot read the study file {path}: {error.strerror}.") from None
    if len(raw) > LARGEST_STUDY_BYTES:
        raise StudyError(f"{path} is larger than {LARGEST_STUDY_BYTES // 2**20} MB; a study file holds no data.")
    try:
        return raw, raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StudyError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None


@dataclass(frozen=True)
class Study:
    """One study, as every party reads it from its own study.toml."""

    id: str
    run: str
    sketch: SketchPlan
    sites: tuple[SiteEntry, ...]
    title: str = ""
    replaces: str | None = None  # the hash of the run this one was made from
    reason: str | None = None  # why: one of study_parts.REASONS
    alignment: Alignment = field(default_factory=Alignment)
    fit: Fit = field(default_factory=Fit)
    deliver: Delivery = field(default_factory=Delivery)
    predict: Predict = field(default_factory=Predict)
    privacy: Privacy = field(default_factory=Privacy)

    @classmethod
    def load(cls, path: str | Path) -> "Study":
        """Read and validate study.toml; every complaint names the line."""
        path = Path(path)
        return cls.parse(read_study_text(path)[1], str(path))

    @classmethod
    def parse(cls, text: str, source: str = "study.toml") -> "Study":
        """Validate the text of a study file; all problems are reported together, each with its line."""
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise StudyError(f"{source} is not valid TOML: {error}.") from None
        except ValueError:  # a number of thousands of digits
            raise StudyError(f"{source} is not a study file: it holds a number that cannot be read.") from None
        except RecursionError:
            raise StudyError(f"{source} is not a study file: it nests too deeply.") from None
        if "site" not in content and ("table" in content or "exchange_key" in content):
            what = "a site's own settings (site.toml)" if "table" in content else "a site's public file, which `study new` takes"
            raise StudyError(f"{source} is not a study file but {what}. `intarsia study new` writes a study file.")
        return _read(content, Checker(source, text))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Study":
        """A study from plain values, as `to_dict` gives them; validated like a file."""
        return _read(dict(content), Checker("study", ""))

    def to_dict(self) -> dict[str, Any]:
        """The canonical content: plain values, defaults filled in, nothing that is absent."""
        fit = _plain(self.fit)
        model = {name: fit.pop(name) for name in study_tables.OF_THE_MODEL}
        before = model["prior"] == "horseshoe"
        out: dict[str, Any] = {"schema": BEFORE_PRIORS if before else SCHEMA, "id": self.id, "run": self.run}
        for name in ("title", "replaces", "reason"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        for name in ("sketch", "alignment", "fit", "deliver", "predict", "privacy"):
            out[name] = fit if name == "fit" else _plain(getattr(self, name))
        if not before:
            out["model"] = model
            for name in ("local", "law"):  # the horseshoe's
                del fit[name]
        out["site"] = [_plain(site) for site in self.sites]
        return out

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the canonical content."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(b"intarsia study 1\n" + text.encode()).hexdigest()

    @property
    def folder_name(self) -> str:
        """What a folder or file of this study and run is called, at the server and at every site."""
        return f"{self.id}-{self.hash[:16]}"

    def owner(self, response: str) -> str:
        """The one site that study.toml gives this response to, by name: prediction takes nobody else's word for it."""
        owners = [site.name for site in self.sites if response in site.responses]
        if len(owners) != 1:
            raise StudyError(
                "A response of this fit is not listed by name for one site in study.toml. Prediction needs the owner of each "
                "response from the study file: name the responses there, without patterns."
            )
        return owners[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)

    @property
    def holders(self) -> tuple[str, ...]:
        """A Gram study: the three that hold shares of the columns, in a circle; all sites where study.toml names none."""
        return self.sketch.holders or self.names

    @property
    def spare_bits(self) -> int:
        """Bits left free in the products of a screened study for the coefficients of what is taken off the responses."""
        taken_off = self.sketch.again or any(site.covariates for site in self.sites)
        return LOOK_BITS if self.sketch.looks and taken_off else 0

    @property
    def kinds(self) -> dict[str, Mapping[str, Any]]:
        """What the study file says of its responses' kinds, by response; a plain measurement may be left out there."""
        return {name: said for site in self.sites for name, said in site.kinds.items()}

    @property
    def yes_or_no(self) -> tuple[str, ...]:
        """The responses that study.toml calls binary."""
        return tuple(name for name, said in self.kinds.items() if said["kind"] == "binary")

    def site(self, name: str) -> SiteEntry:
        for entry in self.sites:
            if entry.name == name:
                return entry
        raise StudyError(f"Site {name!r} is not on the roster of study {self.id!r}: it lists {', '.join(self.names)}.")

    def check_sender(self, name: str) -> None:
        """Refuse what comes from anybody who is not on the roster."""
        if name not in self.names:
            raise FederationError(f"{name!r} is not on the roster of study {self.id!r} ({', '.join(self.names)}). Refused.")

    @property
    def agrees(self) -> bool:
        """Whether the sites agree on the study key through the server (all keys pinned) or bring a key file."""
        return all(site.exchange_key is not None for site in self.sites)

    def check_pins(self) -> None:
        """Refuse a study that pins some sites' keys and not others': it would fall back on a key file that nobody signs for. Such
        a file may be written, while it waits for the last site's keys; it is not taken part in."""
        bare = [site.name for site in self.sites if site.exchange_key is None]
        if bare and len(bare) < len(self.sites):
            raise StudyError(
                f"Study {self.id!r} pins the keys of some sites and not those of {', '.join(bare)}. Pin exchange_key and "
                "signing_key of every site, or of none."
            )

    def again(self, run: str | None = None, reason: str | None = None) -> "Study":
        """The same study with a new run nonce: Φ is used once, so a withdrawal or a repeat needs a new run."""
        return replace(self, run=run or new_run(), replaces=self.hash, reason=reason)

    def differences(self, other: "Study") -> list[str]:
        """Entry by entry what `other` says otherwise than this study; the run and what it replaces are left out."""
        mine, theirs = (_entries(study.to_dict()) for study in (self, other))
        out = []
        for key in dict.fromkeys([*mine, *theirs]):
            if mine.get(key) != theirs.get(key) and key not in ("run", "replaces", "reason"):
                was, now = (json.dumps(one[key]) if key in one else "absent" for one in (mine, theirs))
                out.append(f"{key}: {was} → {now}")
        return out


def new_run() -> str:
    """A fresh run nonce, 32 hexadecimal digits."""
    return secrets.token_hex(16)


def _entries(content: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """A study's content by dotted names; sites by their name."""
    out: dict[str, Any] = {}
    for key, value in content.items():
        if key == "site" and not at:
            for entry in value:
                out |= _entries(entry, f"site {entry['name']}.")
        elif isinstance(value, Mapping):
            out |= _entries(value, f"{at}{key}.")
        else:
            out[f"{at}{key}"] = value
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {k: _plain(v) for k, v in pairs if v is not None and not (isinstance(v, Mapping) and not v)}
    return value


def _read(content: dict[str, Any], check: Checker) -> Study:
    schema = check.integer(content, (), "schema", default=SCHEMA, low=1)
    if schema not in (BEFORE_PRIORS, SCHEMA):
        check.fail(("schema",), f"schema {schema} is not known to this version, which reads schemas {BEFORE_PRIORS} and {SCHEMA}")
        check.finish()
    known = (
        "schema",
        "id",
        "run",
        "replaces",
        "reason",
        "title",
        "sketch",
        "alignment",
        "model",
        "fit",
        "deliver",
        "predict",
        "privacy",
        "site",
    )
    check.known(content, (), known)
    study = Study(
        id=check.label(content, (), "id"),
        run=study_tables.read_run(content, check),
        title=check.text(content, (), "title", default=""),
        replaces=study_tables.read_replaces(content, check),
        reason=check.choice(content, (), "reason", REASONS, "repeat") if "reason" in content else None,
        sites=study_tables.read_sites(content, check),
        sketch=study_tables.read_sketch(content, check),
        alignment=study_tables.read_alignment(content, check),
        fit=study_tables.read_fit(content, check, None if schema == SCHEMA else "horseshoe"),
        deliver=study_tables.read_deliver(content, check),
        predict=study_tables.read_predict(content, check),
        privacy=Privacy(),
    )
    study = replace(study, privacy=study_tables.read_privacy(content, check, study.sites, study.sketch))
    if study.sketch.shares:
        _shares(study, check)
    if study.sketch.screened:
        _screened(study, check)
    if study.alignment.mode == "union":
        _union(study, check)
    check.finish()
    return study


def _shares(study: Study, check: Checker) -> None:
    """What a study of kind "gram" or "screened" needs, and what it cannot do yet."""
    names, holders, kind = study.names, study.holders, study.sketch.kind
    many = len(holders) == 3 and len(set(holders)) == 3
    if len(names) < 2:
        check.fail(("site",), f'kind = "{kind}" multiplies columns between sites, and this study has {len(names)}')
    elif SERVER in names:
        check.fail(
            ("site",), f'no site of a study of kind "{kind}" may be called {SERVER!r}: that is the server among the holders'
        )
    elif len(names) == 2 and (not many or set(holders) != {*names, SERVER}):
        listed = ", ".join(f'"{name}"' for name in (*names, SERVER))
        check.fail(
            ("sketch", "holders"),
            f'kind = "{kind}" with two sites needs the server as the third holder of shares: write holders = [{listed}] under '
            "[sketch]. The server and one of the sites together then have the other's columns; where that is too much, use a "
            'sketch (kind = "orthonormal")',
        )
    elif len(names) > 2 and (not many or not set(holders) <= set(names)):
        check.fail(
            ("sketch", "holders"),
            f'kind = "{kind}" with {len(names)} sites needs three of them to hold shares of all columns: name them under '
            "[sketch], holders = [...]. Any two of these together have every site's columns",
        )
    if not study.agrees:
        check.fail(("site",), f'kind = "{kind}" seals messages from site to site: pin exchange_key and signing_key of every site')
    if study.privacy.epsilon is not None:
        check.fail(
            ("privacy", "epsilon"),
            f'differential privacy does not cover kind = "{kind}" yet: use kind = "gaussian", or leave epsilon out',
        )


def _screened(study: Study, check: Checker) -> None:
    """What a study of kind "screened" needs beyond that: every gate counts the sums with responses, so these stand by name."""
    if study.sketch.folds:
        check.fail(("sketch", "folds"), 'kind = "screened" has no folds yet: leave folds out')
    if not any(site.responses for site in study.sites) or any("*" in label for site in study.sites for label in site.responses):
        check.fail(("site",), 'kind = "screened" counts the sums with responses: list every response by name, without patterns')


def _union(study: Study, check: Checker) -> None:
    """What a study of mode "union" cannot do yet."""
    for what, there in (
        (f'kind = "{study.sketch.kind}"', study.sketch.shares),
        ("differential privacy", study.privacy.epsilon is not None),
        ("a fractional likelihood (power)", study.fit.power != 1),
    ):
        if there:
            check.fail(("alignment", "mode"), f'mode = "union" does not cover {what} yet: leave one of the two out')
