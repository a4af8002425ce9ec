"""Sites that leave a run after they have sent: this site's own notice, and what it does with the notices of others.

What a site once knows to have left has left for the rest of the run. So the sites that take part become fewer and never
others, and for each such set one fit is taken: a server gets one more fit into a site's hands for every site that really left.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.errors import FederationError
from intarsia.wire.leave import ENTRY, Leave, check_leave
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.site.site import Site

_ORDER = "left.order"  # the names in the order in which they left, as far as this site was told


def leave(site: "Site", study: Study) -> bytes:
    """The notice of this site: under the study key, signed with its pinned key; made once."""
    store = site.run_store(study)
    made = store.get(ENTRY + site.name)
    if made is not None:
        return made
    if store.get("sketch") is None:
        raise FederationError(
            f"Site {site.name!r} has sent nothing about its data in this run of study {study.id!r}, so there is nothing to take "
            "back: take no further step. Whoever wrote study.toml starts a run without this site: `intarsia study again "
            "--without`."
        )
    notice = Leave(site.name, study.hash).proved(_key(site, study))
    if site.identity is not None:
        notice = replace(notice, signature=site.identity.sign(notice.body()))
    return store.put(ENTRY + site.name, notice.to_bytes())


def left(site: "Site", study: Study) -> tuple[str, ...]:
    """Who has left, as far as this site was shown a notice."""
    store = site.run_store(study)
    return tuple(name for name in study.names if store.get(ENTRY + name) is not None)


def heed(site: "Site", study: Study, notices: Mapping[str, bytes]) -> None:
    """Check the notices of other sites and keep them; a site that left does not come back in this run."""
    store = site.run_store(study)
    known = left(site, study)
    for name in sorted(set(notices) - set(known)):
        found = check_leave(study, notices[name], _key(site, study))
        if found.site != name or name == site.name:
            raise FederationError("A notice that a site leaves came under another site's name. Refused.")
    for name in sorted(set(notices) - set(known)):
        order = store.get(_ORDER) or b""
        store.replace(_ORDER, order + name.encode() + b"\n")
        store.put(ENTRY + name, notices[name])


def item(site: "Site", study: Study, name: str) -> str:
    """What this site calls an item of the fit of the sites that take part now: each such fit has items of its own.

    A site that has left itself still reads the fit it had.
    """
    return _called(name, [gone for gone in left(site, study) if gone != site.name])


def superseded(site: "Site", study: Study) -> bytes | None:
    """The coefficients this site held before the last site left; None where it held none."""
    store = site.run_store(study)
    known = left(site, study)
    order = [name for name in dict.fromkeys((store.get(_ORDER) or b"").decode().split()) if name in known]
    while order:
        order.pop()
        held = store.get(_called("coefficients", [name for name in study.names if name in order]))
        if held is not None:
            return held
    return None


def _called(name: str, gone: Sequence[str]) -> str:
    return f"{name}-without-{hashlib.sha256(' '.join(gone).encode()).hexdigest()[:16]}" if gone else name


def _key(site: "Site", study: Study) -> bytes:
    return site.key(study).derive("leave", study.id, study.run)
