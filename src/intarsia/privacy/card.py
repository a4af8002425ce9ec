"""The privacy card: one page on what a study tells whom, as JSON for machines and as a self-contained page for people.

A site makes one for its own columns and signs it; the server makes one for the study. A card states what was measured
or computed, what was overridden, and what is not claimed. It holds no data value, mean, scale or id.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf, isnan
from typing import Any

from intarsia.errors import MessageError
from intarsia.privacy import dp, gram_card, gram_leakage, screened_card, screened_leakage
from intarsia.privacy.facts import Facts, Screen
from intarsia.privacy.gate import Verdict, facts_table
from intarsia.privacy.grid import STEPS_PER_SD
from intarsia.privacy.known_rows import known_rows_r2
from intarsia.privacy.leakage import Leakage, known_phi_r2, known_phi_text, leakage
from intarsia.privacy.membership import membership_auc
from intarsia.wire.study_parts import Privacy

SCHEMA = 2
LARGEST_CARD_BYTES = 16 * 2**20
UNKNOWN = "unknown"  # in place of a figure that grows with columns nobody has counted for this site
Signer = Callable[[bytes], bytes]

OF_GROUPS = (
    "Subjects are grouped by the responses they have. Every site learns of each subject it lists who is in a group, which "
    "responses of the other sites that person has: who is in a registry, who came to a visit."
)
NOT_CLAIMED = (
    "Nothing is claimed against a party that knows the key, beyond the line for a party that knows Φ.",
    "Bits per entry and the membership AUC are averages; they guarantee nothing to any one person, least to one who stands out.",
    "The sketch is not anonymous data: it is made to carry the correlations of all columns, and the server learns them.",
    "Without differential privacy there is no bound on what someone with other knowledge of a person can infer.",
    "A site's gate sees its own columns: nobody notices when two sites hold nearly the same column, all but a few people alike.",
    "If a site that knows the key works with the server, the line for a party that knows Φ applies to all sites.",
    "Every site's results are effects on the other sites' responses: a site that brings as many columns as the sketch has rows "
    "works the sketches of these responses out of them, and for responses the line for a party that knows Φ applies to it alone. "
    "They are sums over the other sites' features too: of one with a value that few people hold, the gate has fewer of them "
    "told in full.",
    "The gate looks for directions that few people carry by the attacks it knows, on this site's columns. Another attack, or "
    "columns at two sites together, may find more.",
    "Where subjects are intersected, a site that lists people finds out which of them are at all sites.",
    "A joint prediction tells the owner of a response, for each new subject, the sums of the other sites' means and standard "
    "deviations (with two sites: the other site's own). An owner who works with the server also chooses the coefficients, once "
    "per run: one such sum and its spread for each of its responses. A site counts what an owner was told about a subject, "
    "refuses what gives one of its columns away, and rounds: each number leaves with two decimals, which is room for up to 9 "
    "bits (half a dozen columns of two values), and one owner is told at most 100 bits about a person, unless the site's own "
    "settings say more.",
)


@dataclass(frozen=True)
class Release:
    """What a site's card says of the sketch that leaves, besides the gate's facts and verdict.

    `longest` is max ‖φ_i‖ of the real Φ, for μ against a party that knows Φ; `budget` is Σε, Σδ of all runs on these people;
    `imputed` are the missing values that were filled, by column (not told under differential privacy: they are a fact
    about the data); `listed` is how many subjects each site announced.
    """

    key_fingerprint: str
    sketch_digest: str = ""
    ledger_head: tuple[int, str] | None = None
    guarantee: dp.Guarantee | None = None
    longest: float | None = None
    budget: tuple[float, float] | None = None
    imputed: Mapping[str, int] = field(default_factory=dict)
    listed: Mapping[str, int] = field(default_factory=dict)


def site_card(
    study: Any,
    site: str,
    facts: Facts,
    verdict: Verdict,
    release: Release,
) -> dict[str, Any]:
    """A site's card for its own columns."""
    guarantee, head = release.guarantee, release.ledger_head
    columns = facts.columns if facts.columns_known else None
    if study.sketch.screened:
        kept = None if facts.screen is None else screened_leakage.most(facts, verdict.policy)
        told: float | str = UNKNOWN if verdict.membership is None else verdict.membership
        card = _head(study) | screened_card.common(study, facts.n, told, facts.screen, kept)
    else:
        card = _common(study, facts.n, columns, verdict.leakage, verdict.membership)
    if verdict.most_exposed is not None:
        card["membership_auc_most_exposed"] = verdict.most_exposed
    exposed = {c.name for c in facts.own_columns if c.exposed}
    card |= {
        "made_by": f"site {site}",
        "subjects_listed": dict(release.listed),
        "columns": {"own": len(facts.own_columns), "at_server": UNKNOWN if columns is None else columns},
        "blind_danger": verdict.blind,
        "history": {"sum_m": facts.history_m + facts.m, "ratio": verdict.ratio, "earlier_m": facts.history_m},
        "exposed_columns": [
            {k: row[k] for k in ("name", "distinct", "attacked", "right_rare", "theory_unknown")}
            for row in facts_table(facts)
            if row["name"] in exposed
        ][:200],
        "findings": [
            {"rule": f.rule, "level": f.level, "text": f.text, "override": f.override.reason if f.override else None}
            for f in verdict.findings
        ],
        "overrides": [{"rule": o.rule, "reason": o.reason, "columns": list(o.columns)} for o in verdict.policy.overrides],
        "policy": {k: v for k, v in verdict.policy.as_dict().items() if k != "overrides"},
        "key_fingerprint": release.key_fingerprint,
        "ledger": None if head is None else {"entries": head[0], "head": head[1]},
        "imputed": dict(release.imputed) if guarantee is None else {},
        "sketch_sha256": release.sketch_digest,
        "differential_privacy": _private(guarantee, facts.n, release.longest),
    }
    if guarantee is not None:
        # Runs without noise on the same people leave no total to state.
        card["differential_privacy"]["all_runs"] = (
            None if release.budget is None else dict(zip(("epsilon", "delta"), release.budget))
        )
    return _clean({"in_one_sentence": in_one_sentence(card), **card})


def study_card(
    study: Any,
    *,
    n: int,
    columns: int,
    key_fingerprint: str,
    site_cards: Sequence[Mapping[str, Any]] = (),
    screen: Screen | None = None,
) -> dict[str, Any]:
    """The server's card for the whole study, from the sketches' sizes and the sites' own cards; `screen` of a screened study."""
    kind, m = study.sketch.kind, study.sketch.m
    if study.sketch.screened:
        told: float | str = UNKNOWN
        if screen is not None and m:
            told = screened_leakage.auc_beside_sketch(n, m, screen.features + screen.responses + screen.covariates, columns)
        elif screen is not None:
            told = screened_leakage.membership_auc(n, screen.sums, screen.responses, columns, screen.binary)
        kept = None if screen is None else columns - screen.responses - screen.covariates
        card = _head(study) | screened_card.common(study, n, told, screen, kept)
    elif study.sketch.gram:
        card = _common(study, n, columns, None, gram_leakage.membership_auc(n // (study.sketch.folds or 1), columns))
    else:
        card = _common(study, n, columns, leakage(n, m, columns, kind), membership_auc(n, m, columns, kind))
    guarantee = None
    if study.privacy.epsilon is not None:
        guarantee = dp.guarantee(study.privacy.epsilon, study.privacy.delta, m, dict(study.privacy.row_bound))
    card |= {
        "made_by": "server",
        "columns": {"at_server": columns},
        "key_fingerprint": key_fingerprint,
        "differential_privacy": _private(guarantee, n, None),
        "sites": [
            {
                "site": c.get("made_by"),
                "sum_m": (c.get("history") or {}).get("sum_m"),
                "membership_auc_most_exposed": c.get("membership_auc_most_exposed"),
                "ratio": (c.get("history") or {}).get("ratio"),
                "exposed_columns": [e.get("name") for e in c.get("exposed_columns", ())],
                "imputed": dict(c.get("imputed") or {}),
                "overrides": c.get("overrides", []),
                "ledger": c.get("ledger"),
                "card_sha256": digest(c),
            }
            for c in site_cards
        ],
    }
    return _clean({"in_one_sentence": in_one_sentence(card), **card})


def exposed_names(card: Mapping[str, Any]) -> list[str]:
    """Columns a leaked key would expose: of a site's card its own, of the server's card those that the sites' cards name."""
    own = [str(e["name"]) for e in card.get("exposed_columns", ())]
    return own + [str(name) for site in card.get("sites", ()) for name in site["exposed_columns"]]


def without_card(card: Mapping[str, Any]) -> list[str]:
    """Of the server's card the sites whose own cards are not part of it: what of theirs is exposed is not known here."""
    if card["made_by"] != "server":
        return []
    known = {str(site["site"]) for site in card["sites"]}
    return [name for name in card["parties"]["sites"] if f"site {name}" not in known]


def in_one_sentence(card: Mapping[str, Any]) -> str:
    """What a person who reads nothing else must know."""
    sketch, columns = card["sketch"], card["columns"]["at_server"]
    of = "columns of all sites, as many as they bring" if columns == UNKNOWN else f"{columns} columns"
    if sketch["kind"] == "screened":
        return screened_card.in_one_sentence(card)
    if sketch["kind"] == "gram":
        return gram_card.in_one_sentence(card, of, UNKNOWN)
    text = (
        f"The server gets {sketch['m']:,} secret mixtures of {sketch['n']:,} people for each of the {of}: no single value, but "
        "how all columns go together"
    )
    private = card.get("differential_privacy")
    if private is not None:
        return (
            f"{text}, with noise that keeps any one person's row within ε = {private['against_server']['epsilon']:g} (δ = "
            f"{private['against_server']['delta']:g}) of never having been there."
        )
    count = len(exposed_names(card))
    leak = (
        f"a leaked key would expose {count} column{'' if count == 1 else 's'}"
        if count
        else "a leaked key exposes no column whole"
    )
    absent = without_card(card)
    if absent and not card["sites"]:
        leak = "which columns a leaked key would expose stands on the sites' own cards"
    elif absent:
        leak += f" of the sites whose cards are here, and nothing is known of {', '.join(absent)}"
    return f"{text}; {_taken_part(card['attacks']['membership_auc'])}; {leak}."


def _taken_part(auc: Any) -> str:
    """The membership attack in words, with its number."""
    who = "somebody who already has a person's complete record"
    if auc == UNKNOWN:
        return f"how well {who} could tell whether the person took part is unknown here"
    how = ("can hardly", "has some chance to", "can often", "can nearly always")[sum(auc > limit for limit in _AUC_WORDS)]
    return f"{who} {how} tell whether the person took part (AUC {auc:.2f}; 0.5 is a guess, 1 is certain)"


_AUC_WORDS = (0.6, 0.75, 0.9)


def level(card: Mapping[str, Any]) -> str:
    """ "good", "close" or "bad": the colour of the sentence. Bad: beyond the default limits, and no noise that bounds it."""
    if card.get("differential_privacy") is not None:
        return "good"
    ratio, auc = card["sketch"]["m"] / card["sketch"]["n"], card["attacks"]["membership_auc"]
    spent = (card.get("history") or {}).get("ratio", ratio)
    count, limits = len(exposed_names(card)), Privacy()
    if spent > limits.max_ratio or (auc != UNKNOWN and auc > _AUC_WORDS[-1]):
        return "bad"
    fine = spent <= limits.warn_ratio and auc != UNKNOWN and auc <= limits.max_auc and not count
    return "good" if fine else "close"


def _head(study: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": "intarsia privacy card",
        "study": {"id": study.id, "run": study.run, "hash": study.hash},
    }


def _common(study: Any, n: int, columns: int | None, bits: Leakage | None, auc: float | None) -> dict[str, Any]:
    m, shared = study.sketch.m, study.deliver.share_scales
    head = _head(study)
    if study.sketch.gram:
        return head | gram_card.common(study, n, UNKNOWN if columns is None else columns, UNKNOWN if auc is None else auc)
    return head | {
        "parties": {
            "sites": [s.name for s in study.sites],
            "know_phi": "every site; the server does not",
            "server_receives": "the sketch of every column, labels, n, m, fingerprints"
            + (", the standard deviations of the responses (the study shares them with all parties)" if shared else ""),
            "server_never_receives": f"Φ, the key, Φ·1, means, {'other scales' if shared else 'scales'}, ids or their order, "
            "local noise, a second sketch under this Φ",
            "response_scales_shared": shared,
        },
        "sketch": {
            "n": n, "m": m, "kind": study.sketch.kind, "precision": study.sketch.precision,
            "generator": "ChaCha20 stream under a 32-byte key, one sub-key per study, run and cohort",
        },
        "information": {
            "phi_secret_bits": _bits(bits),
            "phi_secret_bits_per_subject": [UNKNOWN] * 2 if bits is None else list(bits.per_subject),
            "phi_secret_bits_per_entry": [UNKNOWN] * 2 if bits is None else list(bits.per_entry),
            "assumes": "rows iid Gaussian",
            "phi_known": known_phi_text(known_phi_r2(n, m, study.sketch.kind)),
        },
        "attacks": {
            "known_phi_r2": known_phi_r2(n, m, study.sketch.kind),
            "membership_auc": UNKNOWN if auc is None else auc,
            "known_rows_r2": UNKNOWN if columns is None else known_rows_r2(n, m, columns),
            "correlations_known_to": m**-0.5,
        },
        "not_claimed": [*([OF_GROUPS] if study.alignment.mode == "union" else []), *NOT_CLAIMED],
    }  # fmt: skip


def _bits(bits: Leakage | None) -> dict[str, Any]:
    if bits is None:
        return {"lower": UNKNOWN, "upper": UNKNOWN, "exact": False}
    return {"lower": bits.lower_bits, "upper": bits.upper_bits, "exact": bits.exact}


def _private(guarantee: dp.Guarantee | None, n: int, longest: float | None) -> dict[str, Any] | None:
    if guarantee is None:
        return None
    mu = guarantee.mu if longest is None else dp.mu_of_phi(guarantee.t, n, longest)
    mu = dp.mu_on_the_grid(mu, guarantee.epsilon)
    return {
        "against_server": {"epsilon": guarantee.epsilon, "delta": guarantee.delta},
        "against_a_party_that_knows_phi": {
            "mu": mu, "epsilon": dp.gdp_epsilon(mu, guarantee.delta), "delta": guarantee.delta,
            "phi": "measured" if longest is not None else "expected length of its columns",
        },
        "neighbours": "one person's row set to zero at all sites at once",
        "sites": {k: {"row_bound": s.row_bound, "w": s.w} for k, s in guarantee.sites.items()},
        "holds_if": "bounds, centres and scales are public constants, every site adds its noise, Φ is used once",
        "noise": f"discrete Gaussian, {STEPS_PER_SD} steps per standard deviation, in whole steps of the same grid",
    }  # fmt: skip


def _clean(value: Any) -> Any:
    """Plain JSON: no infinities (JSON has none; they are written as text) and no tuples."""
    if isinstance(value, Mapping):
        return {str(k): _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    if isinstance(value, float) and (isinf(value) or isnan(value)):
        return "infinite" if value > 0 else "not a number" if isnan(value) else "-infinite"
    if hasattr(value, "item"):
        return _clean(value.item())
    return value


def canonical(card: Mapping[str, Any]) -> bytes:
    return json.dumps(card, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(card: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(card)).hexdigest()


_CONTEXT = b"intarsia privacy card 2|"


def sign(card: Mapping[str, Any], signer: Signer, signing_key: str) -> str:
    """A signed card as JSON text; `signer` signs bytes with the site's Ed25519 key, `signing_key` is its public half
    (base64).
    """
    signature = base64.b64encode(signer(_CONTEXT + canonical(card))).decode()
    return json.dumps({"card": card, "signing_key": signing_key, "signature": signature}, indent=1, ensure_ascii=False)


def verify(text: str | bytes, signing_key: str | None = None) -> dict[str, Any]:
    """The card inside a signed card. Refused unless its signature holds under the given key (default: the one it
    names).
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(text) > LARGEST_CARD_BYTES:
        raise MessageError("The privacy card is larger than 16 MB: it is not one of ours.")
    try:
        outer = json.loads(text)
        card, named = outer["card"], outer["signing_key"]
        if not isinstance(card, dict) or card.get("kind") != "intarsia privacy card" or card.get("schema") != SCHEMA:
            raise ValueError
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(signing_key or named, validate=True))
        signature = base64.b64decode(outer["signature"], validate=True)
        body = _CONTEXT + canonical(card)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MessageError("This is not a signed privacy card of a schema this version reads.") from None
    try:
        if signing_key is not None and named != signing_key:
            raise InvalidSignature
        public.verify(signature, body)
    except InvalidSignature:
        raise MessageError("The privacy card's signature does not hold: it was changed, or another site signed it.") from None
    return card


def card_of(text: str | bytes, study: Any) -> dict[str, Any]:
    """A site's card for this study and run, signed with the key that study.toml pins; unsigned where it pins none."""
    pinned = {f"site {site.name}": site.signing_key for site in study.sites}
    try:
        outer = json.loads(text) if len(text) <= 16 * 2**20 else {}
    except (ValueError, RecursionError):
        outer = {}
    card = outer.get("card") if isinstance(outer, dict) else None
    if not isinstance(card, dict) or card.get("made_by") not in pinned or card.get("study", {}).get("hash") != study.hash:
        raise MessageError("This is not the card of a site of this study and run.")
    key = pinned[card["made_by"]]
    return card if key is None else verify(text, key)
