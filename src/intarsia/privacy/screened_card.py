"""The parts of a privacy card that differ for a screened study: which exact sums leave, how often, and what is kept."""

from collections.abc import Mapping
from typing import Any

from intarsia.privacy.facts import Screen
from intarsia.privacy.gram_card import NOT_CLAIMED, ExactProducts, together
from intarsia.privacy.leakage import known_phi_r2, known_phi_text
from intarsia.privacy.screened_leakage import worst_auc

UNKNOWN = "unknown"  # in place of a figure that rests on counts nobody has made

WITH_THE_SERVER = (
    "A site that works with the server has, of each of its own features, the exact sum of its products with every response of "
    "the other sites: with p features for n people p/n of a response's variance, and all of it from p = n on."
)
MARKED_RESPONSE = (
    "A site that lies about its responses can bring one that marks a single subject. The list of kept features, which all sites "
    "see, then names those in which this subject is extreme: as many subjects as it brings responses."
)
ONLY_THE_KEPT = (
    "Shared are the kept features, the responses and the covariates alone: two holders that work together have nothing of a "
    "feature that was not kept. But one site that works with the server knows Φ: the line for a party that knows Φ applies to "
    "all columns."
)
BOTH = (
    "The sketch and the exact products are of the same people: what one of them tells of a person the other makes surer. The "
    "membership figure is of both together."
)
SCREENED_OUT = (
    "That a feature was screened out is known to all sites (they see the list of those kept); how strongly it goes together with "
    "the responses is known to the server alone."
)


def common(study: Any, n: int, auc: float | str, screen: Screen | None, kept: int | None) -> dict[str, Any]:
    """Who sees what, what it tells, what is not claimed; with the entries every card has. `screen` None: nobody counted."""
    of = "all features" if screen is None else f"{screen.features:,} features"
    room = "as many features as the sites' gates allow" if kept is None else f"at most {kept} features"
    kept_products = f"the exact Gram matrix of {room}, the responses and the covariates (correlations times n − 1); labels, n"
    say = _after_a_sketch if study.sketch.by_sketch else _after_sums
    attacks = {
        "membership_auc": auc,
        "known_rows_r2": "not computed: whoever knows all rows but a few has those few people's sums",
        "columns_per_subject": UNKNOWN,
    }
    if screen is not None and kept is not None:
        attacks["columns_per_subject"] = (kept + screen.responses + screen.covariates) / n
    card = say(study, n, of, kept_products, screen).entries(study, n, attacks | _more_attacks(study, n, screen, kept))
    return card | {
        "screen": {
            "looked_at": UNKNOWN if screen is None else screen.features,
            "responses": UNKNOWN if screen is None else screen.responses,
            "looks": study.sketch.looks, "kept_at_most": UNKNOWN if kept is None else kept,
            "sums": UNKNOWN if screen is None else screen.sums,
        },
    }  # fmt: skip


def _after_sums(study: Any, n: int, of: str, kept_products: str, screen: Screen | None) -> ExactProducts:
    again = study.sketch.again or 0
    with_ = "the responses" if screen is None else f"{screen.responses} response{'' if screen.responses == 1 else 's'}"
    more = f", and {again} more time{'' if again == 1 else 's'} with what the kept ones leave of them" if again else ""
    return ExactProducts(
        receives=f"the exact sums of products of {of} with {with_}{more}; {kept_products}",
        never="products of two features that are not both kept, any site's columns or shares of them in the clear",
        together=f"{together(study)} {WITH_THE_SERVER}", secrets="secrets of two sites each, one per run, cohort and round",
        assumes="exact sums of products of continuous columns",
        not_claimed=(together(study), WITH_THE_SERVER, MARKED_RESPONSE, SCREENED_OUT, *NOT_CLAIMED),
    )  # fmt: skip


def _after_a_sketch(study: Any, n: int, of: str, kept_products: str, _screen: Screen | None) -> ExactProducts:
    phi = known_phi_r2(n, study.sketch.m, study.sketch.mixing)
    return ExactProducts(
        receives=f"the sketch of {of}, the responses and the covariates ({study.sketch.m:,} secret mixtures of {n:,} people); "
        f"{kept_products}",
        never="Φ, the key, any site's columns or shares of them in the clear, exact products of a feature that is not kept",
        together=f"{together(study)} {ONLY_THE_KEPT}",
        secrets="a key of all sites (Φ), and under secrets of two sites each (shares), one per run, cohort and round",
        assumes="exact products of continuous columns",
        not_claimed=(together(study), ONLY_THE_KEPT, BOTH, SCREENED_OUT, *NOT_CLAIMED),
        know_phi="every site; the server does not", phi=(phi, known_phi_text(phi)),
    )  # fmt: skip


def _more_attacks(study: Any, n: int, screen: Screen | None, kept: int | None) -> dict[str, Any]:
    """What a site with the server has of another's responses and who is told best; where a sketch screens, how exact it is."""
    if study.sketch.by_sketch:
        return {"correlations_known_to": study.sketch.m**-0.5}
    worst = None if screen is None or kept is None else worst_auc(n, screen, kept)
    return {
        "membership_auc_most_exposed": UNKNOWN if worst is None else worst,
        "response_known_to_a_site_with_the_server": UNKNOWN if screen is None else min(1.0, screen.largest / n),
    }


def in_one_sentence(card: Mapping[str, Any]) -> str:
    """What a person who reads nothing else must know."""
    auc, screen, sketch = card["attacks"]["membership_auc"], card["screen"], card["sketch"]
    told = "unknown here" if auc == UNKNOWN else f"AUC {auc:.2f} (0.5 is a guess)"
    of = "every feature" if screen["looked_at"] == UNKNOWN else f"each of {screen['looked_at']:,} features"
    kept = "the few kept" if screen["kept_at_most"] == UNKNOWN else f"the {screen['kept_at_most']} kept at most"
    over = f"over {sketch['n']:,} people"
    first, brief = f"how {of} goes together with each response {over}", card["parties"]["together_in_brief"]
    if sketch["m"]:
        first, brief = f"{sketch['m']:,} secret mixtures {over} of {of}", f"{brief} of the kept columns"
    return (
        f"The server gets {first}, the exact correlations of {kept}, and no value of anybody; someone with a person's whole row "
        f"can tell whether the person took part: {told}; {brief}."
    )


def steps(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What has left step by step, as rows of the page."""
    return [(f"Step {k}", str(what)) for k, what in enumerate(card.get("steps", ()), 1)]
