"""A data-protection impact assessment, begun: study.toml and the sites' cards fill in what they say, what people decide is open.

Its sections are those in which authorities ask for such a text (Article 35(7) GDPR; WP248; the EDPB's template of 2026), in
words of our own. It holds what a study file and a card hold: names of institutions and columns, counts, figures. No value, mean,
scale or id is in either.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.privacy import gram_card
from intarsia.privacy.card import NOT_CLAIMED, UNKNOWN, exposed_names
from intarsia.privacy.policy import Policy
from intarsia.wire.kinds import in_words
from intarsia.wire.plain import plural, some
from intarsia.wire.study import Study

OPEN = "☐ *to be filled in:*"
Lines = list[str]
Cards = Sequence[Mapping[str, Any]]


def assessment(study: Study, cards: Cards = ()) -> str:
    """The whole text as Markdown. `cards` are those of sites, or one of the server's; without one, figures are left open."""
    parts = (
        ("1. Overview", _overview(study)),
        ("2. What is processed, and how", _described(study, cards)),
        ("3. Lawfulness, and what keeps the processing small", _compliance(study, cards)),
        ("4. Necessity and proportionality", _necessity(study)),
        ("5. Is an assessment needed?", _criteria(study, cards)),
        ("6. Risks to the people concerned", _risks(study, cards)),
        ("7. Measures still to be taken, and what remains", _plan()),
        ("8. Advice and views", _advice()),
        ("9. Decision", _decision()),
        ("Annex: what is not claimed", [f"- {line}" for line in _not_claimed(study, cards)]),
    )
    head = [
        f"# Data-protection impact assessment: {study.title or study.id}",
        "",
        f"Begun by `intarsia privacy dpia` from the study file{' and ' + plural(len(cards), 'privacy card') if cards else ''}. "
        f"{plural(sum(text.count(OPEN) for _, lines in parts for text in lines), 'place')} marked ☐ are for people: the "
        "program knows "
        "what a study sends, not why, nor whether that is lawful. It is a draft for a data protection officer, not legal advice.",
        "",
    ]
    return "\n".join(head + [line for title, lines in parts for line in (f"## {title}", "", *lines, "")])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Lines:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in cells)]


def _overview(study: Study) -> Lines:
    sites = ", ".join(study.names)
    return _table(
        ("", ""),
        [
            ("Study and run", f"{study.id}, {study.run}; SHA-256 of the study file {study.hash}"),
            ("Institutions that hold data", f"{sites}. {OPEN} each one's role: controller, joint controller (Article 26)"),
            (
                "Server",
                f"sees sketches and results, no row and no key. {OPEN} who runs it, and whether as a processor (Article 28)",
            ),
            ("Data protection officers", f"{OPEN} names and how to reach them"),
            ("Version, date, author of this assessment", OPEN),
            ("Replaces", f"the run with hash {study.replaces}" if study.replaces else "no earlier run"),
        ],
    )


def _described(study: Study, cards: Cards) -> Lines:
    rows = [
        (
            site.name,
            some(site.responses) if site.responses else "–",
            some(site.covariates) if site.covariates else "–",
            (some(site.features) if site.features else "all columns without another role")
            + (f" ({plural(site.columns, 'column')})" if site.columns is not None else ""),
        )
        for site in study.sites
    ]
    kinds = [f"{name}: {in_words(said)}" for name, said in study.kinds.items()]
    return [
        f"**Purpose.** {OPEN} the research question; to whom its answer is useful",
        "",
        f"**People.** {_people(study, cards)} {OPEN} who they are (patients, participants, children, staff), and how they "
        "came to be in "
        "the data",
        "",
        "**Categories of data**, by institution; each stays there.",
        "",
        *_table(("institution", "outcomes", "adjusted for", "features"), rows),
        "",
        *([f"Outcomes that are no plain measurements: {'; '.join(kinds)}.", ""] if kinds else []),
        f"{OPEN} which of these are special categories (health, genetic, biometric; Article 9) or concern criminal convictions",
        "",
        "**What is done, step by step.**",
        "",
        *[f"{number}. {step}" for number, step in enumerate(_steps(study), 1)],
        "",
        f"**Where, and with what.** Each institution computes on a machine of its own. {OPEN} the machines, their operators, the "
        "countries they are in, and any transfer to a third country (Chapter V)",
        "",
        f"**Context.** {OPEN} what people were told and expect; earlier concerns about data of this kind",
    ]


def _people(study: Study, cards: Cards) -> str:
    counts = {card["sketch"]["n"] for card in cards}
    found = f"{max(counts):,} people are in the analysis." if counts else f"{OPEN} how many people."
    how = {
        "strict": "All institutions hold the same people; a keyed digest of their ids is compared, no list travels.",
        "intersect": "Those whom all institutions hold; ids are compared as keyed tokens, which the server cannot turn back.",
        "union": "Those whom all institutions with features hold; people who lack outcomes stay and are grouped by those "
        "they have.",
    }
    return f"{found} {how[study.alignment.mode]}"


def _steps(study: Study) -> Lines:
    what = {
        "gram": "Each institution splits its standardised columns into random shares; the parties compute the products "
        "of all columns, "
        "and the server gets sums over all people, of no single one.",
        "screened": "The parties compute exact sums for every column, and products for the few columns that a first look keeps.",
    }
    made = what.get(study.sketch.kind) or (
        f"Each institution multiplies its standardised columns with the same secret random matrix and sends the result, a "
        "sketch of "
        f"{study.sketch.m:,} rows, each a mixture of all people."
    )
    noise = (
        f" Noise is added so that the server's view is differentially private (ε = {study.privacy.epsilon:g}, "
        f"δ = {study.privacy.delta:g})."
        if study.privacy.epsilon is not None
        else ""
    )
    sent = {"draws": "draws from the posterior of its own columns' effects", "summary": "summaries of its own columns' effects"}
    return [
        "The institutions agree on a key that the server never has."
        if study.agrees
        else "The institutions exchange a key by file; the server never has it.",
        "A gate at each institution looks at its own columns and refuses what would give people away; its operator sees "
        "what would leave "
        "and says yes.",
        made + noise,
        "What has left is written into a ledger at the institution, which cannot be changed unseen.",
        "The server fits a regression to what it got.",
        f"Each institution gets {sent.get(study.deliver.content, 'results on its own columns')}.",
    ]


def _compliance(study: Study, cards: Cards) -> Lines:
    overrides = [o for card in cards for o in card.get("overrides", ())]
    filled = sum(sum((card.get("imputed") or {}).values()) for card in cards)
    policy = Policy.of_study(study.privacy)
    limits = f"no level with fewer than {policy.min_level} people" + (
        "" if study.sketch.shares else f", m/n at most {policy.max_ratio:g}, membership AUC at most {policy.max_auc:g}"
    )
    exceptions = "; ".join(f"{o['rule']}: {o['reason']}" for o in overrides)
    return _table(
        ("principle", "what the study does", "for people to say"),
        [
            ("lawfulness (Articles 6, 9)", "–", f"{OPEN} the basis, and the condition for special categories"),
            ("compatible purpose", "–", f"{OPEN} for what the data were collected, and why this use is compatible (Article 89)"),
            (
                "minimisation",
                "rows stay where they are; only columns that the site's own settings name are used; "
                + (
                    f"{study.sketch.m:,} mixtures leave, not the rows"
                    if study.sketch.m
                    else "sums over all people leave, not rows"
                ),
                f"{OPEN} why each column is needed",
            ),
            (
                "accuracy",
                "a site can correct a value and send again; a wrong join of people is found by a digest or a count"
                + (f"; {filled:,} missing values were filled, which the card counts" if filled else ""),
                f"{OPEN} quality checks at each institution",
            ),
            (
                "storage limitation",
                "sketch and results stay at the server until somebody deletes them; nothing expires by itself",
                f"{OPEN} when server and institutions delete",
            ),
            ("information (Articles 13, 14)", "–", f"{OPEN} what people are told, and by whom"),
            (
                "withdrawal, erasure, objection",
                "`intarsia site withdraw` leaves people out of a new run that replaces the old; what the old one told "
                "cannot be recalled",
                f"{OPEN} how a request reaches the institution, and until when it can be met",
            ),
            ("access, rectification", "answered from the institution's own table; the server can find nobody", f"{OPEN} by whom"),
            (
                "data protection by design",
                f"limits that no message can loosen: {limits}" + (f"; exceptions: {exceptions}" if exceptions else ""),
                f"{OPEN} whether these limits suit these data" + ("; each exception's grounds" if overrides else ""),
            ),
        ],
    )


def _necessity(study: Study) -> Lines:
    return [
        f"**Could it be done with less?** Pooling the tables would show every institution or a third party all rows. A "
        "study of one "
        f"institution lacks the others' columns. Here the parties see {_seen(study)}",
        "",
        f"{OPEN} why the question needs these institutions' data together; why simulated, aggregated or anonymous data do "
        "not do; "
        "whether the benefit is in proportion to what section 6 says",
    ]


def _seen(study: Study) -> str:
    if study.sketch.shares:
        return "sums over all people and results, no mixture of a few."
    return f"{study.sketch.m:,} mixtures of all people for each column, and results."


def _criteria(study: Study, cards: Cards) -> Lines:
    n = max((card["sketch"]["n"] for card in cards), default=None)
    rows = [
        ("evaluation or scoring", "the analysis is of groups; joint predictions, if they are used, score persons", "☐"),
        ("automated decisions with legal effect", "the program takes none", "☐"),
        ("systematic monitoring", "not by the program", "☐"),
        ("sensitive data", "depends on the columns of section 2", "☐"),
        ("large scale", "–" if n is None else f"{n:,} people", "☐"),
        (
            "matching or combining data sets",
            f"yes: those of {plural(len(study.sites), 'institution')}, without showing rows",
            "☒",
        ),
        ("vulnerable people", "depends on who they are", "☐"),
        ("new technology", "yes: sketches and secure sums in place of pooled data", "☒"),
        ("keeps people from a right, service or contract", "not by the program", "☐"),
    ]
    return [
        "Two or more of these mean, as a rule, that an assessment is required.",
        "",
        *_table(("criterion", "what the study says of it", "met?"), rows),
    ]


def _risks(study: Study, cards: Cards) -> Lines:
    figure = _figures(cards)
    key = (
        "somebody who knows the key (any institution, a thief) reads columns",
        figure["key"],
        "keys in owner-only files; the gate refuses rare levels and what stands out; nobody who holds data runs the server",
    )
    if study.sketch.shares:
        key = ("parties put their shares together", gram_card.together(study), "the holders are named in the study file")
    rows = [
        (
            "the server learns a person's values",
            figure["values"],
            "it never has a key; the gate at each institution; pinned keys",
        ),
        key,
        (
            "somebody who holds a person's whole record learns that the person took part",
            figure["membership"],
            "limit on the AUC" + ("; differential privacy" if study.privacy.epsilon is not None else ""),
        ),
        ("studies on the same people add up", figure["history"], "the ledger counts all rows ever sent of a person"),
        (
            "results tell a site something about another's people",
            "effects rest on all columns; of rare features few are told in full",
            "rounding, limits on what is delivered and on predictions",
        ),
        (
            "a person stands out in many columns",
            "such a person is the longest direction of a sketch",
            "the gate looks for it; look for outliers at the sites",
        ),
        (
            "messages are changed, replayed or sent by somebody else",
            "results would be wrong, or a second sketch would leave",
            "every message is signed and bound to study and run; keys are compared by voice; Φ is used once",
        ),
        (
            "identity keys or folders are stolen",
            "the thief can act as the site",
            "owner-only files; a site with a new identity, in a new run",
        ),
        ("results are lost or late", "no harm to people from the program itself", "every step can be repeated after a crash"),
    ]
    open_cells = [(*row, f"{OPEN[:1]}", f"{OPEN[:1]}") for row in rows]
    return [
        "Source, likelihood and severity are for people to judge; the figures are computed or measured by the program.",
        "",
        *_table(("what could happen", "what is known", "what is done against it", "likelihood", "severity"), open_cells),
        "",
        f"{OPEN} risks of the institutions' own systems, of staff, and for groups of people (discrimination by what is found)",
    ]


def _figures(cards: Cards) -> dict[str, str]:
    """What the cards measured, in words; open where there is no card."""
    if not cards:
        none = f"{OPEN} from a card (`--card`)"
        return dict.fromkeys(("values", "key", "membership", "history"), none)
    aucs = [card["attacks"]["membership_auc"] for card in cards if card["attacks"].get("membership_auc") != UNKNOWN]
    ratios = [r for card in cards if (r := (card.get("history") or {}).get("ratio")) is not None]
    exposed = sorted({name for card in cards for name in exposed_names(card)})
    known = [r for card in cards if isinstance(r := card["attacks"].get("known_phi_r2"), int | float)]
    r2 = f"a value is predicted with R² = {max(known):.2g}; " if known else ""
    return {
        "values": str(max(cards, key=lambda card: len(exposed_names(card)))["in_one_sentence"]),
        "key": r2
        + (f"columns that could be read whole: {some(exposed)}" if exposed else "no column is read whole by the known attacks"),
        "membership": f"AUC {max(aucs):.2f} (0.5 is a guess)" if aucs else f"{OPEN} unknown here; the server's card has it",
        "history": f"Σm/n up to {max(ratios):.3f} over all studies so far" if ratios else f"{OPEN} from the sites' cards",
    }


def _not_claimed(study: Study, cards: Cards) -> Lines:
    said = [line for card in cards for line in card.get("not_claimed", ())]
    without = [gram_card.together(study), *gram_card.NOT_CLAIMED] if study.sketch.shares else list(NOT_CLAIMED)
    return list(dict.fromkeys(said)) or without


def _plan() -> Lines:
    head = ("risk of section 6", "further measure", "who, until when", "likelihood and severity that remain")
    return _table(head, [(OPEN, "", "", "")] * 3)


def _advice() -> Lines:
    return [
        f"- Data protection officer: {OPEN} advice, date, and whether it was followed",
        f"- Ethics committee: {OPEN} vote",
        f"- People concerned or their representatives: {OPEN} views, or why they were not sought",
        f"- Information security: {OPEN}",
    ]


def _decision() -> Lines:
    return [
        "☐ go on   ☐ go on under conditions   ☐ do not   ☐ ask the supervisory authority first (Article 36)",
        "",
        f"{OPEN} conditions; name, role, date, signature; date of the next review, and at once when sites, columns or m change",
    ]
