"""What the person who answers for a site's data wants to know before anything leaves: `intarsia site check`.

Opens the table, says which columns would leave and as what, and asks the gate for its verdict on every accepted study. It sends
nothing, books nothing and keeps nothing. It names columns, levels and counts: for eyes at the site, not for a message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from intarsia.errors import InputError, IntarsiaError
from intarsia.privacy.policy import Policy
from intarsia.site.align import written
from intarsia.site.data.columns import MOST_LEVELS, Profile, profile
from intarsia.site.data.covariate_checks import check_covariates
from intarsia.site.data.kept_rows import KeptRows
from intarsia.site.data.scores import Scale, ScoredSource
from intarsia.site.data.suspects import suspected_codes, suspected_counts
from intarsia.site.data.table import Table
from intarsia.site.dry_groups import judge_groups, profile_of_complete
from intarsia.site.key import SketchKey
from intarsia.site.predict_rules import foreseen
from intarsia.site.prepared_table import PreparedTable
from intarsia.site.response_kinds import kinds_of, prepared
from intarsia.site.site import Site
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.kinds import in_words
from intarsia.wire.study import Study

# The rules of the gate that look at columns alone and so need no study.
COLUMN_RULES = ("constant", "duplicate", "near-duplicate", "rare-level", "dominant", "few-values")
_SIZE_WITHOUT_STUDY = 10  # m = n / 10 where no study says it; the rules above do not depend on it


@dataclass(frozen=True)
class ColumnReport:
    """One column of the table as it would leave."""

    name: str
    role: str
    levels: tuple[str, ...] = ()
    reference: str | None = None
    missing: int = 0
    when_missing: str = "error"  # or "mean", "regression"; "union": the subject lacks this response
    values: int | None = None  # different values, where they are few
    note: str = ""


@dataclass(frozen=True)
class StudyReport:
    """The gate's verdict on one accepted study, as a dry run."""

    study: str
    hash: str
    m: int
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    screened: bool = False  # exact sums of all features, then the products of the few that are kept
    predictions: tuple[str, ...] = ()  # what joint predictions would tell, and whether this site will have to refuse them


@dataclass(frozen=True)
class SiteReport:
    """Everything `intarsia site check` shows."""

    site: str
    n: int
    id: str | None
    columns: tuple[ColumnReport, ...]
    kept_back: tuple[str, ...]  # columns of the table that do not leave
    unlisted: bool  # no list of features: every column without another role is one
    problems: tuple[str, ...] = ()
    studies: tuple[StudyReport, ...] = field(default=())
    id_form: str = ""  # how ids are written, where another site may write them otherwise
    withdrawn: int = 0  # subjects of the table who withdrew; they are not among `n`

    @property
    def refused(self) -> bool:
        return bool(self.problems) or any(study.refused for study in self.studies)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "refused": self.refused}


def check_site(site_folder: SiteFolder, studies: Sequence[Study]) -> SiteReport:
    """Look at the site's table and at the accepted studies; nothing is written anywhere."""
    site = site_folder.site()
    table = site.table()
    problems, form = [], ""
    try:
        form = written(table.ids() if table.has_id else _no_id())
    except InputError as error:
        problems.append(str(error))
    try:
        check_covariates(table)
    except InputError as error:
        problems.append(str(error))
    try:
        kinds, graded = _kinds(site, table, studies)
    except InputError as error:
        problems.append(str(error))
        kinds, graded = {}, set()
    gaps = bool(studies) and all(study.alignment.mode == "union" for study in studies)
    found: Profile | None = None
    try:
        found = profile_of_complete(table) if gaps else profile(table)
    except InputError as error:
        problems.append(str(error))
    roles = table.layout.roles
    id = table._id if isinstance(table._id, str) else None
    return SiteReport(
        site=site_folder.name, n=table.n, id=id, columns=tuple(_columns(table, found, kinds, graded, gaps)),
        kept_back=tuple(name for name in table.source.names if name not in roles.all and name != id),
        unlisted=site_folder.settings.get("features") is None and bool(roles.features),
        problems=tuple(problems), id_form=form,
        withdrawn=len(table.source.keep) - table.n if isinstance(table.source, KeptRows) else 0,
        studies=tuple(_with_predictions(site, table, study, _study(site_folder, table, study)) for study in studies)
        if found is not None or gaps else (),
    )  # fmt: skip


def _kinds(site: Site, table: Table, studies: Sequence[Study]) -> tuple[dict[str, str], set[str]]:
    """What every response of another kind becomes, in words, tried on the whole table; and those whose texts are grades."""
    said = dict(site.kinds)
    for study in studies:
        said |= kinds_of(study, site.name, site.kinds)
    tried = prepared(table, said)
    notes = {name: found.notes for name, found in tried.prepared.items()} if isinstance(tried, PreparedTable) else {}
    words = {name: "; ".join([in_words(one), *_yes(table, name, one), *notes[name]]) for name, one in said.items()}
    return words, set(table.levels) - set(tried.levels)


def _yes(table: Table, name: str, said: Mapping[str, Any]) -> list[str]:
    """Which of two texts counts as yes: the one that was said, else the last in the order of the alphabet."""
    if said["kind"] != "binary" or name not in table.levels:
        return []
    chosen = "" if "yes" in said else f' (say kinds = {{ {name} = {{ kind = "binary", yes = "…" }} }} for the other)'
    return [f"yes is {said.get('yes', table.layout.shown(name)[0])}{chosen}"]


def _no_id() -> Any:
    raise InputError('site.toml names no id column, so subjects cannot be matched. Say which it is: id = "…" under [table].')


def _columns(table: Table, found: Profile | None, kinds: Mapping[str, str], graded: set[str], gaps: bool) -> list[ColumnReport]:
    missing = table.missing_counts
    laws = {} if found is None else found.laws
    few = {name: len(law.values) for name, law in laws.items() if law.slab == 0}
    whole = {name for name, law in laws.items() if law.slab == 0 and name not in table.levels and (law.values % 1 == 0).all()}
    flat = set() if found is None else _constant(table, found)
    suspects, counts = suspected_codes(table), suspected_counts(table)
    roles = table.layout.roles
    out = []
    for role, names in (("response", roles.responses), ("covariate", roles.covariates), ("feature", roles.features)):
        for name in names:
            labels = table.layout.labels([name])
            levels = () if name in graded else tuple(table.layout.levels.get(name, ()))
            values = len(levels) or few.get(name)
            note = ""
            if labels and all(label in flat for label in labels):
                note = "one value only: left out" if table.constant == "drop" else "one value only: refused"
                values = 1
            else:
                note = (
                    kinds.get(name, _outcome(name, values, name in counts))
                    if role == "response"
                    else _feature(values, name in whole)
                )
            changed = _changed(table, name)
            note = f"{note}; {changed}" if note and changed else note or changed
            if name in suspects:
                suspect = suspects[name]
                code = f"{suspect.count:,} times {suspect.code}, far from all other values: a code for missing? (missing_codes)"
                note = f"{note}; {code}" if note else code
            rule = table.missing_rules[labels[0]] if labels else "error"
            if gaps and role == "response" and rule == "error":
                rule = "union"
            reference = None if name in kinds else table.layout.reference.get(name)
            out.append(ColumnReport(name, role, levels, reference, missing.get(name, 0), rule, values, note))
    return out


def _changed(table: Table, name: str) -> str:
    """What site.toml makes of the column's values before they leave, in words: limits and merged levels."""
    low, high = table.layout.limits.get(name, (None, None))
    said = [] if high is None else [f"numbers above {high:g} are taken as {high:g}"]
    said += [] if low is None else [f"numbers below {low:g} are taken as {low:g}"]
    into: dict[str, list[str]] = {}
    for old, new in table.layout.merged.get(name, {}).items():
        into.setdefault(new, []).append(old)
    scales = _scales(table.source)
    if name in scales:
        pairs = [(text, f"{score:g}") for text, score in zip(scales[name].order, scales[name].scores)]
        said.append("grades " + ", ".join(text if text == score else f"{text} (as {score})" for text, score in pairs))
    return "; ".join([*said, *(f"{', '.join(old)} are taken as {new}" for new, old in into.items())])


def _scales(source: Any) -> dict[str, Scale]:
    """The columns of categories in order; they are read below the rows that are kept."""
    below = source.source if isinstance(source, KeptRows) else source
    return dict(below.scales) if isinstance(below, ScoredSource) else {}


def _constant(table: Table, found: Profile) -> set[str]:
    judged = {fact.name: fact.distinct for fact in found.facts}
    return {label for label in table.labels if judged.get(label, 1) < 2}


def _outcome(name: str, values: int | None, counted: bool) -> str:
    """Outcomes that the linear model would take for measurements: say so."""
    if values == 2:
        return (
            f'two values: a yes/no outcome. Say kinds = {{ {name} = "binary" }} for odds ratios, else effects are differences '
            "in risk"
        )
    if counted:
        few = f", {values} of them" if values is not None else ""
        grades = f'; if they are grades, kinds = {{ {name} = "ordinal" }}' if few else ""
        return f'whole numbers from 0{few}: a count? Say kinds = {{ {name} = "count" }}, and effects are ratios{grades}'
    if values is not None and 2 < values <= MOST_LEVELS:
        return (
            f'{values} values, taken as numbers. Grades in order: say kinds = {{ {name} = "ordinal" }}; categories without an '
            "order: bring one yes/no column for each"
        )
    return ""


def _feature(values: int | None, coded: bool) -> str:
    if coded and values is not None and 2 < values <= MOST_LEVELS:
        return f"{values} whole numbers, taken as a measurement; if they are codes, say categorical = true"
    return "two values" if coded and values == 2 else ""


def _study(site_folder: SiteFolder, table: Table, study: Study) -> StudyReport:
    """A dry run of the gate, with a throw-away Φ of the study's size: the study's own is not touched."""
    from intarsia.site.preflight import SiteRules, preflight
    from intarsia.site.rank_normal import as_the_study_asks
    from intarsia.site.site_ledger import FOLDER, open_ledger

    site = site_folder.site()
    # A ledger that is not there yet is not made by looking.
    ledger = open_ledger(site_folder.folder) if (site_folder.folder / FOLDER / "ledger.jsonl").exists() else None
    try:
        site.claimed(study, table)
        sent = as_the_study_asks(table, study.site(site.name).transform)
        sent = prepared(sent, kinds_of(study, site.name, site.kinds))
        own = SiteRules(site.policy, ledger, dry=True)
        if study.alignment.mode == "union":
            checks, more = judge_groups(site.name, sent, study, own)
        else:
            checks, more = {"": preflight(sent, SketchKey.new(), study, site=site.name, own=own)}, []
    except IntarsiaError as error:
        return StudyReport(study.id, study.hash, study.sketch.m, refused=(str(error),))
    if not checks:
        return StudyReport(study.id, study.hash, study.sketch.m, refused=("no group of subjects is large enough", *more))
    said = [(f.level, f"{name}: {f.text}" if name else f.text) for name, check in checks.items() for f in check.verdict.findings]
    by = {level: tuple(text for at, text in said if at == level) for level in ("refuse", "warn", "note", "ok", "overridden")}
    notes = by["ok"] + by["note"] + tuple(more)
    if study.privacy.epsilon is not None:
        # The gate of a private study looks at no column, because a refusal would be an answer. This dry run tells nobody else.
        alone = columns_alone(table, checks[""].verdict.policy)
        notes += tuple(f"not looked at in a private study, for you alone: {text}" for text in (*alone.refused, *alone.warnings))
    return StudyReport(study.id, study.hash, study.sketch.m, by["refuse"], by["warn"] + by["overridden"], notes)


def _with_predictions(site: Site, table: Table, study: Study, found: StudyReport) -> StudyReport:
    columns = len(table.features) + len(table.covariates)
    told = tuple(foreseen(study, site.name, columns, site.predict_rules))
    return replace(found, screened=study.sketch.screened, predictions=told)


def columns_alone(table: Table, policy: Policy) -> StudyReport:
    """What the gate says about the columns where no study has been accepted yet."""
    from intarsia.privacy.gate import Facts, judge

    m = max(table.n // _SIZE_WITHOUT_STUDY, 2)
    facts = Facts(n=table.n, m=m, kind="orthonormal", columns=len(table.labels), own_columns=tuple(profile(table).facts))
    found = [f for f in judge(facts, policy).findings if f.rule in COLUMN_RULES]
    return StudyReport(
        "", "", m, tuple(f.text for f in found if f.level == "refuse"), tuple(f.text for f in found if f.level == "warn")
    )
