"""A site's own privacy card: made with its sketch, signed with its identity, kept in the run folder of the study to be shown."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from intarsia.privacy.card import Release, sign, site_card
from intarsia.privacy.card_page import page
from intarsia.privacy.dp import composed
from intarsia.site.identity import Identity
from intarsia.site.preflight import Preflight


def card_files(
    check: Preflight,
    sketch: bytes,
    identity: Identity | None,
    longest: float | None,
    imputed: Mapping[str, int],
    listed: Mapping[str, int],
) -> dict[str, bytes]:
    """`card.json` (signed when the site has an identity) and `card.html`. Make them after the run was reserved."""
    release = Release(
        check.key_fingerprint, hashlib.sha256(sketch).hexdigest(), None if check.ledger is None else check.ledger.head,
        check.guarantee, longest, _budget(check), imputed, listed,
    )  # fmt: skip
    card = site_card(check.study, check.site, check.facts, check.verdict, release)
    if identity is None:
        unsigned: dict[str, Any] = {"card": card, "signing_key": None, "signature": None}
        text, signer = json.dumps(unsigned, indent=1, ensure_ascii=False), None
    else:
        text, signer = sign(card, identity.sign, identity.signing_key), identity.signing_key
    return {"card.json": text.encode(), "card.html": page(card, signer).encode()}


def _budget(check: Preflight) -> tuple[float, float] | None:
    """Σε and Σδ of this run and the earlier ones; this one may not be released yet."""
    own, earlier = check.study.privacy, check.facts.earlier_budget
    if check.ledger is None or own.epsilon is None or own.delta is None or earlier is None:
        return None
    return composed([earlier, (own.epsilon, own.delta)])
