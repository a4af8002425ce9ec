"""What a site's gate says of the features that the server wants to keep, before anything of them leaves; and the later steps'
rows in the ledger and lines on the card.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.errors import FederationError, PrivacyError
from intarsia.privacy.policy import Policy
from intarsia.site.gram.encode import let_go, opened
from intarsia.site.site_ledger import open_ledger
from intarsia.wire.screening import KeptList, ScreenBlock
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.site.site import Site

BLOCK_ROWS = 16_384


def check_list(study: Study, blocks: Mapping[str, ScreenBlock], listed: KeptList, before: Sequence[str], most: int) -> None:
    """The list names features that sites brought, in their order, those of the round before among them, and not too many."""
    known = [label for name in study.names for label in blocks[name].features]
    wanted = set(listed.features)
    if tuple(label for label in known if label in wanted) != listed.features:
        raise FederationError("The list of features to keep names one that no site brings, or is in another order. Refused.")
    if listed.round == 1 and listed.features and not study.sketch.by_sketch:
        raise FederationError("The first round keeps no feature: nothing has been looked at. Refused.")
    if not set(before) <= wanted:
        raise FederationError("The list leaves out a feature that was kept before: it may only grow. Refused.")
    if len(wanted) > most:
        raise PrivacyError(
            f"The server asks to keep {len(wanted)} features; the gate of this site agrees to at most {most} of all sites "
            f"together. Nothing was sent. What would pass: keep = {most} under [sketch] in study.toml."
        )


def agree(site: "Site", study: Study, listed: KeptList, own: ScreenBlock) -> None:
    """No single person may carry much of any combination of this site's columns of the round: its leverage is the most that a
    combination can give to one."""
    width = len(own.features) + len(own.responses) + len(own.covariates)
    wanted = set(listed.features)
    chosen = [j for j, label in enumerate(own.features) if label in wanted] + list(range(len(own.features), width))
    policy = Policy.of_study(study.privacy).tightened(site.policy)
    if not chosen:
        return
    top = largest_leverage(opened(site.run_store(study), own.n, width), chosen)
    if top > policy.max_dominance and policy.overridden("leverage") is None:
        raise PrivacyError(
            f"leverage: in some combination of this site's {len(chosen)} columns that the server wants to keep one subject "
            f"carries {top:.0%} of the whole (limit {policy.max_dominance:.0%}); their exact products would tell of that "
            "subject. Nothing was sent. What would pass: fewer features kept (keep under [sketch] in study.toml), the outlying "
            'columns left out, their tails cut, or transform = "rank-normal".'
        )


def largest_leverage(columns: Any, chosen: Sequence[int]) -> float:
    """The largest x_iᵀ(XᵀX)⁻¹x_i over the people: the largest share of one person in the length of any combination of columns."""
    c, n = len(chosen), len(columns)
    G = np.zeros((c, c))
    for part in _parts(columns, chosen):
        G += part.T @ part
    values, vectors = np.linalg.eigh(G)
    good = values > values[-1] * c * np.finfo(float).eps * 1e4
    root = vectors[:, good] / np.sqrt(values[good])
    return max(float(np.square(part @ root).sum(axis=1).max(initial=0.0)) for part in _parts(columns, chosen)) if n else 0.0


def _parts(columns: Any, chosen: Sequence[int]) -> Any:
    for start in range(0, len(columns), BLOCK_ROWS):
        some = np.asarray(columns[start : start + BLOCK_ROWS])[:, list(chosen)]
        let_go(columns)
        yield np.ascontiguousarray(some).view(np.int64).astype(np.float64) * 2.0**-16


def note_step(site: "Site", study: Study, what: str, sent: bytes) -> None:
    """A row in the ledger and a line on the card, before the step's message leaves."""
    from intarsia.privacy.card import sign
    from intarsia.privacy.card_page import page

    store = site.run_store(study)
    if site.folder is not None:
        open_ledger(site.folder).step(study.id, study.run, what, sent)
    raw = store.get("card.json")
    if raw is None:
        return
    content = json.loads(raw)
    card = content["card"]
    if what in card.get("steps", []):
        return
    card["steps"] = [*card.get("steps", []), what]
    signer = content["signing_key"]
    text = json.dumps(content, indent=1, ensure_ascii=False)
    if signer is not None:
        text = sign(card, site.own_identity().sign, signer)
    store.replace("card.json", text.encode())
    store.replace("card.html", page(card, signer).encode())
