"""The parts of a privacy card that differ for a Gram study: there is no sketch, no Φ and no key that could leak."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.privacy.gram_leakage import MOST_COLUMNS
from intarsia.wire.study_parts import SERVER

BESIDE_A_SKETCH = " (With a sketch, one site that works with the server knows Φ and can attack every sketch.)"
MARKED = (
    "A site that lies about its columns can bring columns that mark single subjects. Their effects are these subjects' values of "
    "the other sites' responses; with the server's help it reads their values in all columns: at most as many subjects as it "
    "brings columns."
)


def together(study: Any) -> str:
    """What parties that work together have, in plain words."""
    if SERVER in study.holders:
        one, two = study.names
        return (
            "The server holds the third share. The server and one of the two sites that work together have every value of the "
            f"other site's columns: {one} with the server all of {two}'s, {two} with the server all of {one}'s. Each of the "
            "three alone has nothing of another's columns but the Gram matrix (the server), or its own results (a site). Whoever "
            f"can read what a site sends to the server has what the server has.{BESIDE_A_SKETCH}"
        )
    if len(study.names) == 3:
        return (
            "Two of the three sites that work together have every value of the third site's columns. One site alone has nothing "
            "of the others but its results, and a site that works with the server has the Gram matrix and nothing else."
            f"{BESIDE_A_SKETCH}"
        )
    return (
        f"Three sites hold shares of everybody's columns: {', '.join(study.holders)}. Any two of these three that work together "
        "have every value of every site's columns. One site alone has nothing of the others but its results, whether it holds "
        "shares or not; a site that works with the server, and all sites that hold no shares together with it, have the Gram "
        f"matrix and their own columns.{BESIDE_A_SKETCH}"
    )


def in_brief(study: Any) -> str:
    """The same as half a sentence."""
    if SERVER in study.holders:
        return "the server and one site that work together have the other site's values"
    if len(study.names) == 3:
        return "any two sites that work together have the third one's values"
    return f"any two of {', '.join(study.holders)} that work together have everybody's values"


NOT_CLAIMED = (
    MARKED,
    "The Gram matrix is not anonymous data: the server learns all means of products of two columns exactly.",
    "Without differential privacy there is no bound on what someone with other knowledge of a person can infer.",
    "A site's gate sees its own columns: nobody notices when two sites hold nearly the same column, all but a few people alike.",
    "Where subjects are intersected, a site that lists people finds out which of them are at all sites.",
    "A joint prediction tells the owner of a response, for each new subject, the sums of the other sites' means and standard "
    "deviations. An owner who works with the server also chooses the coefficients, once "
    "per run: one such sum and its spread for each of its responses. A site counts what an owner was told about a subject, "
    "refuses what gives one of its columns away, and rounds: each number leaves with two decimals, which is room for up to 9 "
    "bits (half a dozen columns of two values), and one owner is told at most 100 bits about a person, unless the site's own "
    "settings say more.",
)
NO_PHI = "there is no Φ: nothing was mixed"


@dataclass(frozen=True)
class ExactProducts:
    """What a card says of exact products, whichever they are: what the server gets and never gets, what parties that work
    together have, whose secrets hide the shares, what is assumed, and what nobody claims.

    `phi` are the two entries of a party that knows Φ.
    """

    receives: str
    never: str
    together: str
    secrets: str
    assumes: str
    not_claimed: Sequence[str]
    know_phi: str = "nobody: there is no Φ"
    phi: tuple[Any, str] = (NO_PHI, NO_PHI)

    def entries(self, study: Any, n: int, attacks: Mapping[str, Any]) -> dict[str, Any]:
        """The entries every card has."""
        shared = study.deliver.share_scales
        scales = ", the standard deviations of the responses (the study shares them with all parties)" if shared else ""
        return {
            "parties": {
                "sites": [s.name for s in study.sites],
                "know_phi": self.know_phi,
                "server_receives": f"{self.receives}{scales}",
                "server_never_receives": f"{self.never}, means, {'other scales' if shared else 'scales'}, ids or their order",
                "response_scales_shared": shared,
                "together": self.together,
                "together_in_brief": in_brief(study),
            },
            "sketch": {
                "n": n, "m": study.sketch.m, "kind": study.sketch.kind, "precision": study.sketch.precision,
                "generator": f"ChaCha20 streams under {self.secrets}",
            },
            "information": {
                "phi_secret_bits": {"lower": "infinite", "upper": "infinite", "exact": True},
                "phi_secret_bits_per_subject": ["infinite", "infinite"],
                "phi_secret_bits_per_entry": ["infinite", "infinite"],
                "assumes": self.assumes,
                "phi_known": self.phi[1],
            },
            "attacks": {
                "known_phi_r2": self.phi[0], "correlations_known_to": 0.0, "most_columns_per_subject": MOST_COLUMNS, **attacks,
            },
            "not_claimed": list(self.not_claimed),
        }  # fmt: skip


def common(study: Any, n: int, columns: int | str, auc: float | str) -> dict[str, Any]:
    """Who sees what, what it tells, what is not claimed; with the entries every card has."""
    folds = study.sketch.folds
    parts = f", of each of {folds} folds of the subjects by itself" if folds else ""
    said = ExactProducts(
        receives=f"the exact Gram matrix of all standardised columns (their correlations times n − 1){parts}, labels, n",
        never="any site's columns or shares of them in the clear", together=together(study),
        secrets="secrets of two sites each, one per run and cohort", assumes="exact second moments of continuous columns",
        not_claimed=(together(study), *NOT_CLAIMED),
    )  # fmt: skip
    return said.entries(study, n, {
        "membership_auc": auc,
        "known_rows_r2": "not computed: whoever knows all rows but a few has those few people's products",
        "columns_per_subject": columns if isinstance(columns, str) else columns / (n // (folds or 1)),
    })  # fmt: skip


def in_one_sentence(card: Mapping[str, Any], columns: str, unknown: str) -> str:
    """What a person who reads nothing else must know."""
    auc = card["attacks"]["membership_auc"]
    told = "unknown here" if auc == unknown else f"AUC {auc:.2f} (0.5 is a guess)"
    return (
        f"The server gets the exact correlations of the {columns} over {card['sketch']['n']} people and no value of "
        f"anybody; someone with a person's whole row can tell whether the person took part: {told}; "
        f"{card['parties']['together_in_brief']}."
    )
