"""A site's folder: identity, site.toml, the study files its operator accepted, and a run folder for each study.

identity.key     owner only
site.toml        where the table is, what its columns are: the site's own decision, never a message's
accepted/        study files this site's operator has read and accepted
studies/         one run folder per study
predict/         tables of new subjects, one file a request
network/         certificates and configuration of the networked carrier
problems.jsonl   what went wrong here, in full; the server is told a code
"""

import json
import time
import tomllib
import traceback
from pathlib import Path
from typing import Any

from intarsia.errors import InputError, IntarsiaError, StudyError
from intarsia.site.identity import FILE, Identity, fingerprint
from intarsia.site.site import Site
from intarsia.site.table_settings import resolve, resolve_options, table_settings
from intarsia.wire.schema import Checker, check_name
from intarsia.wire.study import Study

TEMPLATE = """# This site's own settings; nothing in here is ever sent.
name = "{name}"

[table]
# The table of this site's subjects: a file (CSV, Parquet, Feather, …) or a database; a relative path counts from this file.
# docs/tables.md has everything that can be said about a table. `intarsia site check` shows what it comes to; it sends nothing.
source = "{source}"
# The column that identifies a subject.
id = "{id}"
# Columns this site brings as responses, those that are adjusted for (age, sex, centre), and those to leave out;
# every other column is a feature. To name the features yourself: features = ["snp_*", "bmi"].
responses = {responses}
covariates = []
ignore = []
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

[policy]
# This site's own privacy rules, where they are tighter than the study's; for example max_ratio = 0.1
"""


class SiteFolder:
    """A site as its folder describes it."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.folder = folder
        self.settings = settings
        self._site: Site | None = None

    @classmethod
    def create(
        cls, folder: str | Path, name: str, source: str = "data.csv", id: str = "id", responses: list[str] | None = None
    ) -> "SiteFolder":
        """Make a site: a new identity and a commented site.toml."""
        folder = Path(folder)
        Identity.new(name).save(folder)
        folder.chmod(0o700)
        text = TEMPLATE.format(name=name, source=source, id=id, responses=json.dumps(responses or []))
        if not (folder / "site.toml").exists():
            (folder / "site.toml").write_text(text, encoding="utf-8")
        return cls.load(folder)

    @classmethod
    def load(cls, folder: str | Path) -> "SiteFolder":
        folder = Path(folder)
        path = folder / "site.toml"
        try:
            text = path.read_text(encoding="utf-8")
            content = tomllib.loads(text)
        except OSError as error:
            raise InputError(f"{folder} is not a site's folder: {path.name}: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not valid TOML: {error}.") from None
        check = Checker(str(path), text)
        check.known(content, (), ("name", "table", "policy"))
        table = check.table(content, "table")
        settings: dict[str, Any] = {"name": check.label(content, (), "name"), **table_settings(check, table)}
        settings["policy"] = check.table(content, "policy")
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
                ignore=s.get("ignore", ()),
                missing=s.get("missing", "error"),
                constant=s.get("constant", "error"),
                options=resolve_options(self.folder, s["options"]),
                key=None if key is None else self._resolve(key),
                identity=self.identity() if (self.folder / FILE).is_file() else None,
                folder=self.folder,
                policy=s["policy"],
            )
        return self._site

    def _resolve(self, path: str) -> str:
        return str(self.folder / path)

    def accept(self, source: str | Path) -> Study:
        """The operator has read this study file and takes part in it; only accepted files are ever answered."""
        study = Study.load(source)
        if study.terms:
            raise StudyError(f"{source} borrows its hash from elsewhere (terms = …); such a file is not accepted.")
        entry = study.site(self.name)
        if (self.folder / FILE).is_file() and entry.exchange_key is not None:
            own = self.identity()
            if (entry.exchange_key, entry.signing_key) != (own.exchange_key, own.signing_key):
                pinned = fingerprint(entry.exchange_key, entry.signing_key or "")
                raise StudyError(
                    f"{source} pins other keys for site {self.name!r} ({pinned}) than this site has "
                    f"({own.fingerprint}). Do not accept it; tell whoever wrote it."
                )
        target = self.folder / "accepted" / f"{study.id}-{study.hash[:16]}.toml"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(Path(source).read_bytes())
        return study

    def accepted(self, study_hash: str) -> Study:
        """The accepted study with this hash."""
        studies = [Study.load(path) for path in sorted((self.folder / "accepted").glob("*.toml"))]
        for study in studies:
            if study.hash == study_hash:
                return study
        have = ", ".join(f"{study.id} {study.hash[:12]}…" for study in studies) or "none"
        raise StudyError(
            f"Site {self.name!r} has accepted no study with hash {study_hash[:12]}… (accepted: {have}). The study file "
            "was changed, or not accepted here yet: compare the files, then run `intarsia site accept`."
        )

    def new_subjects(self, request: str) -> str:
        """The table of new subjects for a prediction, from the site's own folder."""
        if not check_name(request):
            raise InputError("The name of a prediction is 1 to 63 letters, digits, '-' or '_'.")
        found = sorted((self.folder / "predict").glob(f"{request}.*"))
        found = [path for path in found if path.stem == request]
        if len(found) != 1:
            raise InputError(f"Expected one table predict/{request}.(csv|parquet|…) at this site, found {len(found)}.")
        return str(found[0])

    def note_problem(self, error: Exception) -> None:
        # Of an error that is not ours only the places are kept: its words might quote a value.
        places = traceback.extract_tb(error.__traceback__)
        text = str(error) if isinstance(error, IntarsiaError) else " > ".join(f"{p.name}:{p.lineno}" for p in places)
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "code": type(error).__name__, "text": text}
        with (self.folder / "problems.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
