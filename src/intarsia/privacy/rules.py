"""The gate's rules, one function each: facts and limits in, findings out."""

from collections.abc import Iterable, Sequence
from math import isinf

from intarsia.privacy.blind import danger
from intarsia.privacy.facts import BY_THEORY, NOTE, OK, REFUSE, WARN, ColumnFacts, Facts, Finding
from intarsia.privacy.gram_leakage import of_the_most_exposed
from intarsia.privacy.leakage import Leakage
from intarsia.privacy.membership import largest_ratio
from intarsia.privacy.policy import Policy
from intarsia.wire.plain import plural, some, two_places

# Columns that must be mended are named: whoever sees six of ten mends six and is refused again.
MOST_TO_MEND = 50
COUNTS = "State the number of columns of every site in study.toml (columns = …)"


def ratio(facts: Facts, ratio: float, policy: Policy) -> list[Finding]:
    past = f" ({facts.history_m} rows from earlier runs)" if facts.history_m else ""
    fits = int(policy.max_ratio * facts.n) - facts.history_m
    if ratio > policy.max_ratio:
        remedy = f"Use m of at most {fits}" if fits >= 2 else "This cohort's allowance is spent"
        text = f"ratio: Σm/n = {ratio:.3f}{past} is above the limit {policy.max_ratio:g}. {remedy}, or override 'ratio'."
        return [Finding("ratio", REFUSE, text, ratio, policy.max_ratio)]
    if ratio > policy.warn_ratio:
        text = (
            f"ratio: Σm/n = {ratio:.3f}{past} is above {policy.warn_ratio:g}: a leaked key would expose more than rare columns."
        )
        return [Finding("ratio", WARN, text, ratio, policy.warn_ratio)]
    return [Finding("ratio", OK, f"ratio: Σm/n = {ratio:.3f}{past}.", ratio, policy.warn_ratio)]


def strangers(facts: Facts) -> list[Finding]:
    """Subjects are known by their ids: with new pseudonyms everything that is counted for them starts again."""
    if not facts.strangers:
        return []
    runs = plural(facts.strangers, "earlier run")
    text = (
        f"pseudonyms: none of these subjects took part in the {runs} of this site, as far as ids say. If they are the same "
        "people under new pseudonyms, Σm, Σε and what was told start again, and must be added up by hand."
    )
    return [Finding("pseudonyms", NOTE, text, facts.strangers)]


def membership(facts: Facts, auc: float | None, policy: Policy, most: float | None = None) -> list[Finding]:
    if facts.differential_privacy:
        stated = "unknown" if auc is None else f"{auc:.3f}"
        text = f"membership: AUC {stated} without noise; differential privacy bounds it further."
        return [Finding("membership", OK, text, auc, policy.max_auc)]
    if auc is None:
        text = (
            "membership: unknown, because the study does not say how many columns the other sites bring; all of them count. "
            f"{COUNTS} to have it computed."
        )
        return [Finding("membership", WARN, text, None, policy.max_auc)]
    if auc > policy.max_auc:
        if 0.5 < policy.max_auc < 1:
            needed = f"n of at least {int(facts.columns / largest_ratio(facts.m, policy.max_auc)) + 1} at this m"
        else:
            needed = "more subjects"
        text = (
            f"membership: whoever holds a person's {facts.columns} values can tell with AUC {auc:.3f} whether the "
            f"person is in the cohort (limit {policy.max_auc:g}). Smaller m, fewer columns, {needed}, or differential "
            f"privacy lower it.{of_the_most_exposed(most)}"
        )
        return [Finding("membership", WARN, text, auc, policy.max_auc)]
    return [Finding("membership", OK, f"membership: AUC {auc:.3f}.{of_the_most_exposed(most)}", auc, policy.max_auc)]


def budget(facts: Facts, policy: Policy) -> list[Finding]:
    """Σε and Σδ of this run and the earlier ones on these people (basic composition)."""
    epsilon, delta = facts.epsilon or 0.0, facts.delta or 0.0
    earlier = facts.earlier_private if facts.earlier_budget is None else facts.earlier_budget
    total, slip = earlier[0] + epsilon, earlier[1] + delta
    past = f" ({earlier[0]:g} from earlier runs)" if earlier[0] else ""
    if total > policy.max_epsilon:
        text = (
            f"budget: Σε = {total:g}{past} over all runs on these people is above the limit {policy.max_epsilon:g}. "
            "Use a smaller ε, or other subjects."
        )
        return [Finding("budget", REFUSE, text, total, policy.max_epsilon)]
    if slip > policy.max_delta:
        text = f"budget: Σδ = {slip:g} over all runs on these people is above the limit {policy.max_delta:g}. Use a smaller δ."
        return [Finding("budget", REFUSE, text, slip, policy.max_delta)]
    if facts.earlier_budget is None:
        text = "budget: earlier runs on these people had no noise, so there is no total ε to state for them."
        return [Finding("budget", WARN, text)]
    return [Finding("budget", OK, f"budget: Σε = {total:g}{past}, Σδ = {slip:g}.", total, policy.max_epsilon)]


def scales(facts: Facts, policy: Policy) -> list[Finding]:
    """Exact scales of responses leave (`share_scales`), and scales of nearly the same people left before."""
    d = facts.scales_single_out
    if d is None or d >= policy.min_level:
        return []
    who = "other values of these very people" if d == 0 else f"a cohort that differs from this one in {d} subjects"
    text = (
        f"scales: the exact standard deviations of responses left before, of {who}; with those of this run they tell how far a "
        f"single person's response lies from the mean. At least {policy.min_level} subjects must differ. Take share_scales out "
        "of study.toml, or keep the cohort and its responses as they were."
    )
    return [Finding("scales", REFUSE, text, d, policy.min_level)]


def columns(facts: Facts, policy: Policy) -> list[Finding]:
    """Columns that give people, or columns of Φ, away by themselves or in pairs."""
    own, gram = facts.own_columns, facts.exact
    out: list[Finding] = []
    constant = _names(c for c in own if c.distinct < 2)
    if constant:
        text = f"constant: {_list(constant, MOST_TO_MEND)} {_have(constant)} one value only. Leave out what is constant."
        out.append(Finding("constant", REFUSE, text, columns=constant))
    duplicate = [c for c in own if c.duplicate_of]
    if duplicate:
        pairs = [f"{c.name} repeats {c.duplicate_of}" for c in duplicate]
        text = (
            f"duplicate: {_list(pairs, MOST_TO_MEND)} (the same up to scale and sign), which helps whoever decodes it. "
            "Leave one of the two out."
        )
        out.append(Finding("duplicate", REFUSE, text, columns=_names(duplicate)))
    near = [c for c in own if c.near_duplicate_of and (c.near_people or 0) < policy.min_level]
    if near:
        least = min(c.near_people or 0 for c in near)
        pairs = [f"{c.name} and {c.near_duplicate_of}" for c in near]
        text = (
            f"near-duplicate: {_list(pairs, MOST_TO_MEND)} differ in fewer than {policy.min_level} subjects (the least is "
            f"{least}); the difference of their {_tells(gram)}. Leave one of the two out."
        )
        out.append(Finding("near-duplicate", REFUSE, text, least, policy.min_level, _names(near)))
    if facts.combined:
        lead, *others = facts.combined
        among = f" ({_list(others)} among them)" if others else ""
        whom = plural(facts.combined_people, "subject")
        text = (
            f"near-duplicate: {lead} is nearly a sum of other columns{among}, but for {whom}: such as a total with a slip in it, "
            f"or with a missing value filled in. The difference of their {_tells(gram)}. Leave one of them out."
        )
        out.append(Finding("near-duplicate", REFUSE, text, facts.combined_people, policy.min_level, facts.combined))
    rare = [c for c in own if c.distinct >= 2 and c.rarest < policy.min_level]
    if rare:
        least = min(c.rarest for c in rare)
        text = (
            f"rare-level: {_list(_names(rare), MOST_TO_MEND)} {_have(rare)} a value that fewer than {policy.min_level} subjects "
            f"hold (or all but so few share one value; the least is {least}). Merge levels or leave the column out "
            "(merge, at_most and at_least in site.toml: docs/tables.md)."
        )
        out.append(Finding("rare-level", REFUSE, text, least, policy.min_level, _names(rare)))
    taken = set(_names(rare)) | set(constant)
    dominant = [c for c in own if c.dominance > policy.max_dominance and c.name not in taken]
    if dominant:
        worst = max(c.dominance for c in dominant)
        text = (
            f"dominant: in {_list(_names(dominant), MOST_TO_MEND)} one subject carries up to {worst:.0%} of the variance; "
            f"its {'products are' if gram else 'sketch is'} that subject's {'own values' if gram else 'column of Φ'}. "
            'Ask for transform = "rank-normal" in study.toml, take logarithms, or cut the tail.'
        )
        out.append(Finding("dominant", REFUSE, text, worst, policy.max_dominance, _names(dominant)))
    taken |= set(_names(dominant))
    by_few = [c for c in own if c.carried_by is not None and c.carried_by < policy.min_level]
    by_few = [c for c in by_few if c.smallest_level is None and c.name not in taken]
    if by_few:
        least = min(c.carried_by or 0 for c in by_few)
        text = (
            f"dominant: in {_list(_names(by_few), MOST_TO_MEND)} fewer than {policy.min_level} subjects carry nearly all of the "
            f"variance (the least is {least}); that is a value so few hold, whatever the others' small differences are. "
            'Ask for transform = "rank-normal" in study.toml, take logarithms, or cut the tail.'
        )
        out.append(Finding("dominant", REFUSE, text, least, policy.min_level, _names(by_few)))
    out += elsewhere(facts)
    if gram:
        return out
    few = _names(c for c in own if 2 <= c.distinct <= policy.few_values and c.name not in taken)
    if few:
        most = f"{_have(few)} at most {policy.few_values} values"
        text = f"few-values: {_list(few)} {most}: decodable if the key leaks and m/n is large."
        out.append(Finding("few-values", WARN, text, columns=few))
    return out


def elsewhere(facts: Facts) -> list[Finding]:
    """Pairs of similar columns of which another site holds one: no site can see them, the server can."""
    if not facts.other_sites:
        return []
    text = (
        "similar-elsewhere: no site can compare its columns with those of another. Where another site holds nearly the same "
        "column as one of these (age, sex, a total of the same values) and the two differ in a few subjects, the difference of "
        f"their {_tells(facts.exact)}, without the key. Agree with the other sites who brings such a column."
    )
    return [Finding("similar-elsewhere", WARN, text)]


def blind(facts: Facts, figure: float, policy: Policy) -> list[Finding]:
    """Can Φ be found without the key, from the shape of so many columns?"""
    who = f"{facts.columns} columns" if facts.columns_known else f"the {len(facts.own_columns)} columns of this site alone"
    remedy = (
        'Ask for transform = "rank-normal" for this site in study.toml (coefficients are then per standard deviation of the '
        "normal score), fewer columns, or a smaller m."
    )
    found = facts.blind_found
    if found:
        text = (
            f"blind: from this site's sketch alone, without the key, {found} of {facts.n} columns of Φ were found; "
            f"each gives an estimate of one person's every value. {remedy}"
        )
        return [Finding("blind", REFUSE, text, float(found), 0)]
    if figure > policy.max_blind:
        text = (
            f"blind: {who} of this shape give columns of Φ away without the key: the signal is {figure:.2f} of where that "
            f"begins (limit {policy.max_blind:g}). {remedy}"
        )
        return [Finding("blind", REFUSE, text, figure, policy.max_blind)]
    if figure > policy.warn_blind:
        text = (
            f"blind: the signal by which Φ can be found without the key, from {who}, is {figure:.2f} of where that begins "
            f"(warning above {policy.warn_blind:g}). {remedy}"
        )
        return [Finding("blind", WARN, text, figure, policy.warn_blind)]
    if not facts.columns_known and len(facts.own_columns) > 1:
        text = f"blind: {figure:.2f} from this site's columns; unknown for all sites together. {COUNTS}."
        return [Finding("blind", WARN, text, figure, policy.warn_blind)]
    text = f"blind: {two_places(figure)} of where Φ begins to be found without the key."
    return [Finding("blind", OK, text, figure, policy.warn_blind)]


def blind_of_differences(facts: Facts, policy: Policy) -> list[Finding]:
    """The same from the differences of columns that are alike, which may have long tails where the columns have none. Columns of
    few values have such differences too, and nothing is found in most of them: the figure alone is no reason to refuse."""
    looked, figure = facts.looked, danger(facts.shape_of_differences, facts.n, facts.m)
    remedy = "Leave out one of each two columns that are alike, or merge them; or a smaller m."
    if looked is not None and looked.found_in_differences:
        text = (
            f"blind: from the differences of columns that are alike, without the key, {looked.found_in_differences} of {facts.n} "
            f"columns of Φ were found; each gives an estimate of one person's every value. {remedy}"
        )
        return [Finding("blind", REFUSE, text, float(looked.found_in_differences), 0)]
    if figure <= policy.max_blind:
        return []
    text = (
        f"blind: by the shape of the differences of columns that are alike Φ might be found without the key: the signal is "
        f"{figure:.2f} of where that begins with other columns. The attack found none here. {remedy}"
    )
    return [Finding("blind", WARN, text, figure, policy.max_blind)]


def attack(facts: Facts, policy: Policy) -> list[Finding]:
    if not policy.self_attack or not facts.attack_ran:
        text = "self-attack: switched off, so nobody knows which columns a leaked key would expose."
        return [Finding("self-attack", WARN, text), *readable(facts)]
    out = []
    decoded = tuple(c.name for c in facts.own_columns if c.attacked == "exact")
    if decoded:
        text = (
            f"decodable: with this Φ every subject's value of {_list(decoded)} can be read from the sketch; any site that "
            "talks to the server gives them away. Smaller m, or leave the column out, or differential privacy."
        )
        out.append(Finding("decodable", WARN, text, len(decoded), columns=decoded))
    theory = tuple(
        c.name for c in facts.own_columns
        if c.attacked is None and c.theory_unknown is not None and c.theory_unknown < BY_THEORY
    )  # fmt: skip
    if theory:
        text = f"decodable: {_list(theory)} would be decoded by theory if Φ leaked (not tried here: time or size)."
        out.append(Finding("decodable", WARN, text, len(theory), columns=theory))
    out += readable(facts)
    if not facts.attack_complete:
        text = f"self-attack: stopped after {policy.attack_seconds:g} s; the most exposed columns were tried first."
        out.append(Finding("self-attack", NOTE, text, policy.attack_seconds))
    return out or [Finding("self-attack", OK, "self-attack: no column was decoded, even with Φ known.")]


def told(facts: Facts) -> list[Finding]:
    """Another site's results are sums over this site's features too: where some of these have a value that few people hold, other
    sites are told fewer of them in full."""
    if facts.most_told is None:
        return []
    text = (
        f"results: another site's effects are sums over these features too, {facts.sums} of them in this run"
        f"{f' and {facts.earlier_sums} in earlier ones' if facts.earlier_sums else ''}; from so many it works out who has the "
        f"rarer values. Each other site is told {facts.most_told} effects in full, the strongest, and the rest in coarse steps."
    )
    return [Finding("results", NOTE, text, facts.most_told)]


def readable(facts: Facts) -> list[Finding]:
    """A response that a site reads from its own results: they are sums over the response (or its sketch, and every site knows Φ)
    with weights that it knows."""
    found = facts.readable
    if not found:
        return []
    if facts.exact:
        how, remedy = "knows the weights of these sums", "Fewer columns, or more subjects"
    else:
        how, remedy = "knows Φ, and with it the weights of these sums", "Smaller m, more subjects, or differential privacy"
    text = (
        f"readable-response: each other site gets the effects of its own columns on {_list(found)}; in all runs on these people "
        f"they are {facts.told} sums over its values for {facts.n} subjects. A site {how}, and works out who has a rarer value, "
        f"without the server's help. {remedy}; or override 'readable-response'."
    )
    return [Finding("readable-response", REFUSE, text, len(found), columns=found)]


def precision(facts: Facts) -> list[Finding]:
    if facts.differential_privacy:
        text = "precision: values lie on a public grid with noise on the same grid; rounding tells nothing more."
        return [Finding("precision", OK, text)]
    if facts.precision == "float64":
        text = "precision: values leave in float64; float32 says the same about the regression and less about the rest."
        return [Finding("precision", NOTE, text)]
    return [Finding("precision", OK, f"precision: values are rounded to {facts.precision}.")]


def information(facts: Facts, bits: Leakage | None) -> list[Finding]:
    if bits is None or not isinf(bits.upper_bits):
        return []
    if facts.kind == "gaussian":
        why = f"{facts.columns} columns are more than n = {facts.n}"
    else:
        why = f"m + columns = {facts.m + facts.columns} is more than n - 1 = {facts.n - 1}"
    text = f"information: the mutual information of sketch and data is infinite ({why}), even with Φ secret."
    return [Finding("information", NOTE, text)]


def _tells(gram: bool) -> str:
    if gram:
        return "products with the other columns is a sum over those subjects"
    return "sketches is those subjects' columns of Φ"


def _names(chosen: Iterable[ColumnFacts]) -> tuple[str, ...]:
    return tuple(c.name for c in chosen)


def _have(columns: Sequence[object]) -> str:
    return "has" if len(columns) == 1 else "have"


def _list(names: Sequence[str], most: int = 6) -> str:
    return some(names, most)
