"""A site's own privacy card: made with its sketch, signed with its identity, kept in the run folder of the study to be shown."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from intarsia.privacy.card import sign, site_card
from intarsia.privacy.dp import composed
from intarsia.privacy.page import page
from intarsia.site.identity import Identity
from intarsia.site.preflight import Preflight


def card_files(
    check: Preflight,
    sketch: bytes,
    identity: Identity | None,
    longest: float | None = None,
    imputed: Mapping[str, int] | None = None,
    listed: Mapping[str, int] | None = None,
) -> dict[str, bytes]:
    """`card.json` (signed when the site has an identity) and `card.html`. Make them after the run was reserved."""
    card = site_card(
        check.study, check.site, check.facts, check.verdict, key_fingerprint=check.key_fingerprint,
        ledger_head=None if check.ledger is None else check.ledger.head, guarantee=check.guarantee, longest=longest,
        sketch_digest=hashlib.sha256(sketch).hexdigest(), budget=_budget(check), imputed=imputed,
        listed=listed,
    )  # fmt: skip
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
