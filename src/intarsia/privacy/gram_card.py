"""The parts of a privacy card that differ for a Gram study: there is no sketch, no Φ and no key that could leak."""

from collections.abc import Mapping
from typing import Any

from intarsia.privacy.gram_leakage import MOST_COLUMNS

COLLUSION = (
    "Two of the three sites that work together have every value of the third site's columns. One site alone has nothing of the "
    "others, and a site that works with the server has the Gram matrix and nothing else. (With a sketch, one site "
    "that works with "
    "the server knows Φ and can attack every sketch.)",
    "A site that lies about its columns and works with the server can bring columns that mark single subjects, and "
    "so reads these "
    "subjects' values at the other sites: at most as many subjects as it brings columns.",
)
NOT_CLAIMED = (
    *COLLUSION,
    "The Gram matrix is not anonymous data: the server learns all means of products of two columns exactly.",
    "Without differential privacy there is no bound on what someone with other knowledge of a person can infer.",
    "A site's gate sees its own columns: nobody notices when two sites hold nearly the same column, all but a few people alike.",
    "Where subjects are intersected, a site that lists people finds out which of them are at all sites.",
    "A joint prediction tells the owner of a response, for each new subject, the sums of the other sites' means and standard "
    "deviations. An owner who works with the server also chooses the coefficients, once.",
)
NO_PHI = "there is no Φ: nothing was mixed"


def common(study: Any, n: int, columns: int | str, auc: float | str) -> dict[str, Any]:
    """Who sees what, what it tells, what is not claimed; with the entries every card has."""
    shared = study.deliver.share_scales
    return {
        "parties": {
            "sites": [s.name for s in study.sites],
            "know_phi": "nobody: there is no Φ",
            "server_receives": "the exact Gram matrix of all standardised columns (their correlations times n − 1), labels, n"
            + (", the standard deviations of the responses (the study shares them with all parties)" if shared else ""),
            "server_never_receives": "any site's columns or shares of them in the clear, means, "
            f"{'other scales' if shared else 'scales'}, ids or their order",
            "response_scales_shared": shared,
            "together": COLLUSION[0],
        },
        "sketch": {
            "n": n, "m": 0, "kind": study.sketch.kind, "precision": study.sketch.precision,
            "generator": "ChaCha20 streams under secrets of two sites each, one per run and cohort",
        },
        "information": {
            "phi_secret_bits": {"lower": "infinite", "upper": "infinite", "exact": True},
            "phi_secret_bits_per_subject": ["infinite", "infinite"],
            "phi_secret_bits_per_entry": ["infinite", "infinite"],
            "assumes": "exact second moments of continuous columns",
            "phi_known": NO_PHI,
        },
        "attacks": {
            "known_phi_r2": NO_PHI,
            "membership_auc": auc,
            "known_rows_r2": "not computed: whoever knows all rows but a few has those few people's products",
            "correlations_known_to": 0.0,
            "columns_per_subject": columns if isinstance(columns, str) else columns / n,
            "most_columns_per_subject": MOST_COLUMNS,
        },
        "not_claimed": list(NOT_CLAIMED),
    }  # fmt: skip


def in_one_sentence(card: Mapping[str, Any], columns: str, unknown: str) -> str:
    """What a person who reads nothing else must know."""
    auc = card["attacks"]["membership_auc"]
    told = "unknown here" if auc == unknown else f"AUC {auc:.2f} (0.5 is a guess)"
    return (
        f"The server gets the exact correlations of the {columns} over {card['sketch']['n']} people and no value of "
        "anybody; someone "
        f"with a person's whole row can tell whether the person took part: {told}; any two sites that work together "
        "have the third "
        "one's values."
    )
