"""The parts of a privacy card that differ for a screened study: which exact sums leave, how often, and what is kept."""

from collections.abc import Mapping
from typing import Any

from intarsia.privacy.facts import Screen
from intarsia.privacy.gram_card import NO_PHI, NOT_CLAIMED, in_brief, together
from intarsia.privacy.screened_leakage import person_auc

WITH_THE_SERVER = (
    "A site that works with the server has, of each of its own features, the exact sum of its products with every response of "
    "the other sites: with p features for n people p/n of a response's variance, and all of it from p = n on."
)
MARKED_RESPONSE = (
    "A site that lies about its responses can bring one that marks a single subject. The list of kept features, which all sites "
    "see, then names those in which this subject is extreme: as many subjects as it brings responses."
)
SCREENED_OUT = (
    "That a feature was screened out is known to all sites (they see the list of those kept); how strongly it goes together with "
    "the responses is known to the server alone."
)


def common(study: Any, n: int, auc: float | str, screen: Screen | None, kept: int | None) -> dict[str, Any]:
    """Who sees what, what it tells, what is not claimed; with the entries every card has. `screen` None: nobody counted."""
    shared, unknown = study.deliver.share_scales, "unknown"
    looks, again = study.sketch.looks, study.sketch.again or 0
    of = "all features" if screen is None else f"{screen.features:,} features"
    with_ = "the responses" if screen is None else f"{screen.responses} response{'' if screen.responses == 1 else 's'}"
    more = f", and {again} more time{'' if again == 1 else 's'} with what the kept ones leave of them" if again else ""
    room = "as many features as the sites' gates allow" if kept is None else f"at most {kept} features"
    worst = unknown if screen is None or kept is None or screen.exposure is None else _worst(screen, n, kept)
    per_subject = unknown if screen is None or kept is None else (kept + screen.responses + screen.covariates) / n
    return {
        "parties": {
            "sites": [s.name for s in study.sites],
            "know_phi": "nobody: there is no Φ",
            "server_receives": f"the exact sums of products of {of} with {with_}{more}; the exact Gram matrix of {room}, the "
            "responses and the covariates (correlations times n − 1); labels, n"
            + (", the standard deviations of the responses (the study shares them with all parties)" if shared else ""),
            "server_never_receives": "products of two features that are not both kept, any site's columns or shares of them in "
            f"the clear, means, {'other scales' if shared else 'scales'}, ids or their order",
            "response_scales_shared": shared,
            "together": f"{together(study)} {WITH_THE_SERVER}",
            "together_in_brief": in_brief(study),
        },
        "sketch": {
            "n": n, "m": 0, "kind": study.sketch.kind, "precision": study.sketch.precision,
            "generator": "ChaCha20 streams under secrets of two sites each, one per run, cohort and round",
        },
        "information": {
            "phi_secret_bits": {"lower": "infinite", "upper": "infinite", "exact": True},
            "phi_secret_bits_per_subject": ["infinite", "infinite"],
            "phi_secret_bits_per_entry": ["infinite", "infinite"],
            "assumes": "exact sums of products of continuous columns",
            "phi_known": NO_PHI,
        },
        "attacks": {
            "known_phi_r2": NO_PHI,
            "membership_auc": auc,
            "membership_auc_most_exposed": worst,
            "known_rows_r2": "not computed: whoever knows all rows but a few has those few people's sums",
            "correlations_known_to": 0.0,
            "columns_per_subject": per_subject,
            "most_columns_per_subject": 1 / 3,
            "response_known_to_a_site_with_the_server": unknown if screen is None else min(1.0, screen.largest / n),
        },
        "screen": {
            "looked_at": unknown if screen is None else screen.features,
            "responses": unknown if screen is None else screen.responses,
            "looks": looks, "kept_at_most": unknown if kept is None else kept,
            "sums": unknown if screen is None else screen.sums,
        },
        "not_claimed": [together(study), WITH_THE_SERVER, MARKED_RESPONSE, SCREENED_OUT, *NOT_CLAIMED],
    }  # fmt: skip


def _worst(screen: Screen, n: int, kept: int) -> float:
    return person_auc(n, screen.sums, kept + screen.responses + screen.covariates, screen.exposure or 1.0)


def in_one_sentence(card: Mapping[str, Any], unknown: str) -> str:
    """What a person who reads nothing else must know."""
    auc, screen = card["attacks"]["membership_auc"], card["screen"]
    told = "unknown here" if auc == unknown else f"AUC {auc:.2f} (0.5 is a guess)"
    of = "every feature" if screen["looked_at"] == unknown else f"each of {screen['looked_at']:,} features"
    kept = "the few kept" if screen["kept_at_most"] == unknown else f"the {screen['kept_at_most']} kept at most"
    return (
        f"The server gets how {of} goes together with each response over {card['sketch']['n']:,} people, the exact correlations "
        f"of {kept}, and no value of anybody; someone with a person's whole row can tell whether the person took part: {told}; "
        f"{card['parties']['together_in_brief']}."
    )


def steps(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What has left step by step, as rows of the page."""
    return [(f"Step {k}", str(what)) for k, what in enumerate(card.get("steps", ()), 1)]
