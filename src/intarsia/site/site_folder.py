"""A site's folder: identity, site.toml, the study files its operator accepted, and a run folder for each study.

identity.key     owner only
site.toml        where the table is, what its columns are: the site's own decision, never a message's
accepted/        study files this site's operator has read and accepted
studies/         one run folder per study
withdrawn.txt    subjects who withdrew: ids, owner only, never sent
predict/         tables of new subjects, one folder per study and one file per request
network/         certificates and configuration of the networked carrier
problems.jsonl   what went wrong here, in full; the server is told a code (problems.counts.json: how often)
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from intarsia.errors import InputError, StudyError, of_the_system
from intarsia.files import replace
from intarsia.privacy.policy import Policy
from intarsia.site.identity import FILE, Identity, fingerprint, fingerprint_words
from intarsia.site.predict_rules import PredictRules
from intarsia.site.redcap import Described
from intarsia.site.site import Site
from intarsia.site.table_settings import resolve, resolve_options, table_settings
from intarsia.wire.container import write
from intarsia.wire.schema import Checker, check_name
from intarsia.wire.study import Study, read_study_text
from intarsia.wire.words import to_words

TEMPLATE = """# This site's own settings; nothing in here is ever sent.
name = {name}

[table]
# The table of this site's subjects: a file (CSV, Parquet, Feather, …) or a database; a relative path counts from this file.
# docs/tables.md has everything that can be said about a table. `intarsia site check` shows what it comes to; it sends nothing.
source = {source}
{query}
# The column that identifies a subject.
id = {id}
# Columns this site brings as responses, those that are adjusted for (age, sex, centre), and those to leave out;
# every other column is a feature. To name the features yourself: features = ["snp_*", "bmi"].
responses = {responses}
covariates = {covariates}
ignore = {ignore}
{kinds}# Responses that are no plain measurements, as study.toml says them (docs/outcomes.md):
# kinds = {{ asthma = "binary", months = {{ kind = "time", event = "died", horizon = 24, unit = "months" }} }}
# A missing value of a feature or covariate: "error", "mean" (the column's mean) or "regression" (the mean given the subject's
# other columns here). A missing response is an error unless a rule of its own says otherwise.
missing = "error"
# A constant column: "error", or "drop".
constant = "error"

# A study key exchanged by file; leave out when the sites agree on one through the server.
# key = "study.key"

# Rules for single columns, for example:
# [table.columns.centre]
# categorical = true
# reference = 1
# missing_codes = [9, 99]
# [table.columns.pets]
# merge = {{ other = ["bird", "ferret"] }}   # rare levels as one
# [table.columns.siblings]
# at_most = 3                              # larger numbers as this one; at_least for smaller ones
{rules}
[policy]
# This site's own privacy limits, where they are tighter than the study's; for example max_ratio = 0.1

# An exception to a rule of the privacy gate needs a reason; both appear on this site's card.
# [[override]]
# rule = "rare-level"
# columns = ["transplant"]
# reason = "approved by the ethics board, vote of 3 May"

[predict]
# Fewest new subjects of a joint prediction, if more than the study asks for; for example min_subjects = 50
# Parts from which nearly one column of this site's can be worked out hand it to the owner of the responses: "refuse" or "allow".
one_column = "refuse"
# Decimals with which a part leaves, in standard deviations of the response: what an owner of responses gets is rounded to that.
# More of them leave room for columns of few values, one behind the other (docs/protocol.md); 12 is not rounded at all.
digits = 2
# How many bits one owner of responses may be told about a person, over all predictions; about 9 for each mean and each spread.
max_bits = 100
"""


QUERY = '# query = "visits"        # of a database: the name of a table, or one SELECT'
LIMITS = tuple(item.name for item in fields(Policy) if item.name != "overrides")
NOT_ACCEPTED = (
    "This site has not accepted that study. The study file was changed, or not accepted here yet: compare the files, then "
    "run `intarsia site accept` at the site."
)


@dataclass(frozen=True)
class StudyReview:
    """A study file as it was read, once, and what its reader must compare with the other sites before accepting it."""

    study: Study
    raw: bytes = field(repr=False)
    peers: dict[str, str]  # each pinned peer's fingerprint, in words
    hash_words: str

    @property
    def to_compare(self) -> dict[str, str]:
        """Everything a person compares: every peer's words, then those of the study file itself."""
        return {**self.peers, "study.toml": self.hash_words}


def _toml(value: Any) -> str:
    """Text or a list of texts as TOML writes it: what JSON writes, but for the characters that JSON need not escape."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _tables(value: Any, check: Checker) -> list[Any]:
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    check.fail(("override",), "exceptions are written as [[override]] tables")
    return []


class SiteFolder:
    """A site as its folder describes it."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.folder = folder
        self.settings = settings
        self._site: Site | None = None

    @classmethod
    def create(
        cls, folder: str | Path, name: str, source: str = "data.csv", id: str = "id",
        responses: Sequence[str] = (), *, query: str | None = None, described: Described | None = None, **roles: Sequence[str],
    ) -> "SiteFolder":  # fmt: skip
        """Make a site: a new identity and a commented site.toml. `roles` are covariates and columns to ignore; `described` is
        what a data dictionary says of the table."""
        folder = Path(folder)
        if (folder / FILE).exists():
            raise InputError(
                f"{folder} is a site already, and its keys ({FILE}) are never made anew. To change what it brings, edit "
                f"{folder / 'site.toml'}; for another site give another folder."
            )
        Identity.new(name).save(folder)
        folder.chmod(0o700)
        said: dict[str, Any] = {"name": name, "source": source, "id": id, "responses": list(responses)}
        said |= {role: list(roles.get(role, ())) for role in ("covariates", "ignore")}
        asked = QUERY if query is None else f"query = {_toml(query)}"
        words = {key: _toml(value) for key, value in said.items()} | {"kinds": "", "rules": ""}
        if described is not None:
            kinds = described.kinds_line()
            words |= {"ignore": described.ignored(), "kinds": kinds and f"{kinds}\n"}
            words["rules"] = "".join(f"\n{rule}\n" for rule in described.rules)
        text = TEMPLATE.format(query=asked, **words)
        if not (folder / "site.toml").exists():
            replace(folder / "site.toml", text.encode())
        return cls.load(folder)

    @classmethod
    def load(cls, folder: str | Path) -> "SiteFolder":
        folder = Path(folder)
        path = folder / "site.toml"
        try:
            text = path.read_text(encoding="utf-8")
            content = tomllib.loads(text)
        except OSError as error:
            if path.exists():
                raise InputError(of_the_system(error)) from None
            raise InputError(
                f"{folder} is not a site's folder: it has no {path.name}. A new site is made by `intarsia site init`."
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not valid TOML: {error}.") from None
        check = Checker(str(path), text)
        check.known(content, (), ("name", "table", "policy", "override", "predict"))
        table = check.table(content, "table")
        settings: dict[str, Any] = {"name": check.label(content, (), "name"), **table_settings(check, table)}
        settings["policy"] = dict(check.table(content, "policy"))
        check.known(settings["policy"], ("policy",), (*LIMITS, "override", "overrides"))
        if "override" in content:
            # Exceptions stand on their own: [[override]] with rule, reason and, if for some columns only, columns.
            settings["policy"]["override"] = [*settings["policy"].get("override", ()), *_tables(content["override"], check)]
        settings["predict"] = check.table(content, "predict")
        check.known(settings["predict"], ("predict",), [item.name for item in fields(PredictRules)])
        check.finish()
        return cls(folder, settings)

    @property
    def name(self) -> str:
        return str(self.settings["name"])

    def identity(self) -> Identity:
        return Identity.load(self.folder)

    def site(self) -> Site:
        if self._site is None:
            s = self.settings
            key = s.get("key")
            self._site = Site(
                s["name"],
                resolve(self.folder, s["source"]) if "source" in s else None,
                id=s.get("id"),
                features=s.get("features"),
                responses=s.get("responses", ()),
                covariates=s.get("covariates", ()),
                kinds=s["kinds"],
                ignore=s.get("ignore", ()),
                missing=s.get("missing", "error"),
                constant=s.get("constant", "error"),
                options=resolve_options(self.folder, s["options"]),
                key=None if key is None else self._resolve(key),
                identity=self.identity() if (self.folder / FILE).is_file() else None,
                folder=self.folder,
                policy=s["policy"],
                predict=s["predict"],
            )
        return self._site

    def _resolve(self, path: str) -> str:
        return str(self.folder / path)

    def review(self, source: str | Path) -> "StudyReview":
        """Read a study file, once, and lay out what its acceptance would mean; nothing is kept yet."""
        raw, text = read_study_text(source)
        study = Study.parse(text, str(source))
        self._own_entry(study, source)
        if study.agrees and "key" in self.settings:
            raise StudyError(
                f"{source} pins the sites' keys, so the sites agree on the study key themselves; but site.toml of "
                f"{self.name!r} still names a key file. Take the line `key = …` out of site.toml, then accept again."
            )
        peers = {
            entry.name: fingerprint_words(entry.exchange_key, entry.signing_key or "")
            for entry in study.sites
            if entry.name != self.name and entry.exchange_key is not None
        }
        return StudyReview(study, raw, peers, to_words(bytes.fromhex(study.hash)))

    def _own_entry(self, study: Study, source: str | Path) -> None:
        """The study's entry for this site carries this site's own keys."""
        entry = study.site(self.name)
        if (self.folder / FILE).is_file() and entry.exchange_key is not None:
            own = self.identity()
            if (entry.exchange_key, entry.signing_key) != (own.exchange_key, own.signing_key):
                pinned = fingerprint(entry.exchange_key, entry.signing_key or "")
                raise StudyError(
                    f"{source} pins other keys for site {self.name!r} ({pinned}) than this site has "
                    f"({own.fingerprint}). Do not accept it; tell whoever wrote it."
                )

    def accept(self, reviewed: "str | Path | StudyReview") -> Study:
        """The operator has read this study and takes part in it; only accepted studies are ever answered.

        The command line shows the review and asks a person to compare the fingerprints. Whoever gives a path here instead
        says that this was done.
        """
        review = reviewed if isinstance(reviewed, StudyReview) else self.review(reviewed)
        study = review.study
        study.check_pins()
        target = self.folder / "accepted" / f"{study.folder_name}.toml"
        target.parent.mkdir(exist_ok=True)
        if target.exists() and Study.load(target).hash != study.hash:
            raise StudyError(
                "Another study file whose hash begins alike was accepted before: whoever wrote them made it so. Do not accept it."
            )
        write(target, review.raw)  # the bytes that were checked, not the file a second time
        return study

    def accepted(self, study_hash: str) -> Study:
        """The accepted study with this hash."""
        for path in sorted((self.folder / "accepted").glob("*.toml")):
            study = Study.load(path)
            if study.hash == study_hash:
                return study
        # Whoever asks may be anybody: neither the hash it named nor what was accepted here is in the answer.
        raise StudyError(NOT_ACCEPTED)

    def new_subjects(self, study: Study, request: str) -> str:
        """The table of new subjects that this site's operator put there for this prediction of this study and run."""
        if not check_name(request):
            raise InputError("The name of a prediction is 1 to 63 letters, digits, '-' or '_'.")
        found = sorted((self.folder / "predict" / study.folder_name).glob(f"{request}.*"))
        found = [path for path in found if path.name.split(".")[0] == request]  # june.csv.gz has two endings
        if len(found) != 1:
            where = f"predict/{study.folder_name}/{request}.(csv|parquet|…)"
            raise InputError(f"Expected one table {where} at this site, found {len(found)}.")
        return str(found[0])
