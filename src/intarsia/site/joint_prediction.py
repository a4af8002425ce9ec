"""A site's two steps of a joint prediction: its masked part of the sum, and the sum taken back to its own responses.

What a request is about (study, run, owners from study.toml, fit, subjects, number of rows) is in one digest. Masks come from
it, and a request's name is answered for one digest and one set of values only.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError, InputError, MessageError
from intarsia.site import given_away, prediction_gate
from intarsia.site.align import Tokens, tokenise
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.masks import Fixed, from_fixed, masked, to_fixed, with_tags
from intarsia.site.predict_rules import rounded, steps
from intarsia.site.prediction import Prediction, SiteModel
from intarsia.site.prediction_gate import Leaving
from intarsia.site.rank_normal import FILE as SCORES_FILE
from intarsia.site.rank_normal import Scores
from intarsia.site.run_store import one_at_a_time
from intarsia.site.site_ledger import open_ledger
from intarsia.site.table_settings import for_new_subjects
from intarsia.site.withdrawal import refuse_withdrawn
from intarsia.wire.plain import some
from intarsia.wire.prediction import PredictionPart, PredictionSum, Request
from intarsia.wire.schema import check_name
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.site.site import Site

Array = NDArray[np.float64]
# Parts of a prediction are in standard deviations: 2⁻⁴⁰ ≈ 1e-12 apart, up to ± 2 million.
FIXED_BITS = 40
LARGEST_PART = 2.0**12  # no honest part comes near it; a part that coefficients of a liar's choice made larger is cut
MOST_SITES = 255  # sums of their parts stay so far below the tags' prime that no two of them are alike modulo it
# Where no keys are pinned, masks come from a key that all sites have, and a name is whatever the study file says: what leaves for
# one owner of responses counts as told to all.
ANY_SITE = "any site"
LARGEST_VALUE = 2.0**12  # of a new subject's column, in standard deviations of the study: beyond, it is in other units


@dataclass(frozen=True)
class NewSubjects:
    """The new subjects at this site, in token order; where `X` has normal scores, `plain` has the features in their own units."""

    X: Array
    Z: Array
    tokens: Tokens
    table: Table
    plain: Array | None = None
    column_of: Mapping[str, str] = field(default_factory=dict)  # the table's column by a column's label, where that is a level


def part(site: "Site", study: Study, request: str, data: Any, id: Any) -> bytes:
    """This site's masked part for every other owner of responses.

    One at a time at a site, whatever the runs: two at the same moment would each not know what the other tells.
    """
    with one_at_a_time(site.folder):
        return _part(site, study, request, data, id)


def _part(site: "Site", study: Study, request: str, data: Any, id: Any) -> bytes:
    model, rules, store = site.model(study), site.predict_rules, site.run_store(study)
    new = _read(site, study, model, request, data, id)
    asked = _request(study, model, request, new)
    prediction_gate.check_number(site, study, asked.n)
    prediction_gate.check_new(site, study, new.table.ids())
    exact = _own_part(model, new)
    step = steps(exact, rules.digits)
    people = None if site.folder is None else open_ledger(site.folder).token_of_each(new.table.ids()[new.tokens.rows])
    plain, scores = (None, "") if new.plain is None else (np.hstack([new.plain, new.Z]), study.folder_name)
    leaving = Leaving(model, np.hstack([new.X, new.Z]), rounded(exact, step), step, people, plain, scores, new.column_of)
    note: dict[str, Any] = {"digits": rules.digits, "loosened": rules.loosened, "owners": {}}
    owners = {owner: _at(asked, model, owner) for owner in dict.fromkeys(asked.owners.values()) if owner != site.name}
    parts, told = {}, {}
    for who, at in _told_apart(study, owners).items():
        party = _party(study, who)
        about, one, note["owners"][who] = prediction_gate.judge(site, study, leaving, party, at)
        if about is not None:
            told[party] = (about, one)
    for owner, at in owners.items():
        fixed = _tagged(site, study, asked, owner, to_fixed(leaving.part[:, :, at], FIXED_BITS))
        parts[owner] = masked(site.name, _pair_secrets(site, study, asked, owner), fixed)
    once = f"{asked.digest()} {hashlib.sha256(np.ascontiguousarray(leaving.part).tobytes()).hexdigest()}".encode()
    if store.put(f"request-{request}", once) != once:
        raise FederationError(
            f"Prediction {request!r} was asked with other data before. Masks are used once: choose another name."
        )
    bound = {name: getattr(asked, name) for name in ("study_hash", "request", "fit_digest", "order_mac", "n")}
    message = PredictionPart(site.name, **bound, digest=asked.digest(), parts=parts).to_bytes()
    if site.folder is not None:
        note["kept"] = given_away.remember(site.folder, asked.fit_digest, told)
    store.put(f"request-{request}{given_away.NOTES}", json.dumps(note, indent=1).encode())
    store.sent(f"prediction {request}", message)
    return message


def finish(site: "Site", study: Study, request: str, data: Any, total: bytes, id: Any) -> Prediction:
    """Lift the masks, check the sum, add this site's own part; in the order of the site's own table."""
    model, message = site.model(study), PredictionSum.from_bytes(total)
    if (message.site, message.study_hash, message.request) != (site.name, study.hash, request):
        raise MessageError(f"This sum is not for site {site.name!r} and prediction {request!r}.")
    new = _read(site, study, model, request, data, id)
    asked = _request(study, model, request, new)
    if message.fit_digest != asked.fit_digest:
        raise FederationError(f"The other sites predicted {request!r} from another fit than the one site {site.name!r} holds.")
    if message.digest != asked.digest():
        raise FederationError(f"The other sites predicted {request!r} for other subjects than site {site.name!r}.")
    own = _own_part(model, new)[:, :, _at(asked, model, site.name)]
    finished = model.finish(own + _others(site, study, asked, message, own.shape))
    back = np.argsort(new.tokens.rows, kind="stable")  # from token order to the order of the site's own table
    return finished.in_order(back, new.table.ids())


def _own_part(model: SiteModel, new: NewSubjects) -> Array:
    """This site's part. Whether it is too large for the masked sum depends on the coefficients and on the subjects' values; a
    refusal would tell a server that chose the coefficients about the values. So a part is cut, and never refused for its size.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        values = model.part(new.X, new.Z)
    return np.clip(np.nan_to_num(values), -LARGEST_PART, LARGEST_PART)


def _check_units(model: SiteModel, X: Array, Z: Array, column_of: Mapping[str, str]) -> None:
    """Refuse values far from all that the study had, whatever the coefficients are."""
    u, far = model.units, list[str]()
    for values, mean, scale, labels in ((X, u.x_mean, u.x_scale, u.features), (Z, u.z_mean, u.z_scale, u.covariates)):
        near = np.abs((values - mean) / scale).max(axis=0, initial=0.0) < LARGEST_VALUE
        far += [column_of.get(label, label) for label, fine in zip(labels, near.tolist(), strict=True) if not fine]
    if far:
        raise InputError(
            f"A new subject's value is more than {LARGEST_VALUE:g} standard deviations from the study's mean in "
            f"{some(list(dict.fromkeys(far)))}. Check whether the new subjects' values are in other units than in the study."
        )


def _others(site: "Site", study: Study, asked: Request, message: PredictionSum, shape: tuple[int, ...]) -> Array:
    if len(site.remaining(study)) == 1:
        return np.zeros(shape)
    slices = shape[0]
    if message.total is None or message.total.shape != (2 * slices, *shape[1:]):
        raise MessageError("The sum of the other sites' parts has the wrong shape.")
    lifted = masked(site.name, _pair_secrets(site, study, asked, site.name), message.total)
    values = lifted[:slices]
    possible = np.abs(from_fixed(values, FIXED_BITS)) <= len(site.remaining(study)) * LARGEST_PART
    if not possible.all() or not np.array_equal(_tagged(site, study, asked, site.name, values), lifted):
        raise FederationError(
            "The sum of the other sites' parts was altered on its way, or lacks a site's part. Nothing is predicted."
        )
    return from_fixed(values, FIXED_BITS)


def _tagged(site: "Site", study: Study, asked: Request, owner: str, values: Fixed) -> Fixed:
    """The values and their tags, with secret factors that every site knows and the server does not."""
    return with_tags(values, site.key(study).derive("predict-tag", study.id, study.run, context=f"{asked.digest()}|{owner}"))


def _at(asked: Request, model: SiteModel, owner: str) -> list[int]:
    return [q for q, response in enumerate(model.coefficients.responses) if asked.owners[response] == owner]


def _request(study: Study, model: SiteModel, request: str, new: NewSubjects) -> Request:
    """Owners come from the accepted study alone, never from a message."""
    if len(study.names) > MOST_SITES:
        raise InputError(f"A joint prediction is for at most {MOST_SITES} sites; this study has {len(study.names)}.")
    owners = {response: study.owner(response) for response in model.coefficients.responses}
    return Request(study.hash, request, owners, model.coefficients.fit_digest, new.tokens.mac(), new.tokens.n)


def _told_apart(study: Study, owners: dict[str, list[int]]) -> dict[str, list[int]]:
    """The responses of all owners by who is told of them; see `ANY_SITE`."""
    return owners if study.agrees or not owners else {ANY_SITE: sorted(q for at in owners.values() for q in at)}


def _party(study: Study, owner: str) -> str:
    """Who an owner is, under whatever name a study file has it: its pinned key."""
    known = study.site(owner).signing_key if study.agrees else None
    return given_away.ANYBODY if known is None else hashlib.sha256(known.encode()).hexdigest()[:32]


def _read(site: "Site", study: Study, model: SiteModel, request: str, data: Any, id: Any) -> NewSubjects:
    if not check_name(request):
        raise InputError("The name of a prediction is 1 to 63 letters, digits, '-' or '_'.")
    kept = json.loads(site.run_store(study).need("columns.json", "Predict after the sketch."))
    units = model.units
    column = {f"{name}={text}": name for name, texts in kept["levels"].items() for text in texts}

    def columns(labels: tuple[str, ...]) -> list[str]:
        return list(dict.fromkeys(column.get(label, label) for label in labels))

    named: dict[str, Any] = {"features": columns(units.features), "covariates": columns(units.covariates)}
    rules = for_new_subjects(site.rules, [*named["features"], *named["covariates"]], kept)
    table = Table.open(data, id=id if id is not None else site.roles["id"], **named, rules=rules)
    refuse_withdrawn(site.folder, table.ids())
    tokens = tokenise(table.ids(), site.key(study), study, purpose=f"predict-{request}")
    if not units.features and not units.covariates:
        return NewSubjects(np.empty((tokens.n, 0)), np.empty((tokens.n, 0)), tokens, table)
    at_x = [table.features.index(label) for label in units.features]
    at_z = [table.covariates.index(label) for label in units.covariates]
    blocks = [(X[:, at_x], Z[:, at_z]) for X, _, Z in table.blocks(order=tokens.rows)]
    X, Z = np.concatenate([X for X, _ in blocks]), np.concatenate([Z for _, Z in blocks])
    scores, plain = site.run_store(study).get(SCORES_FILE), None
    if scores is not None:
        plain, X = X, Scores.from_bytes(scores).apply(X, units.features)
    _check_units(model, X, Z, column)
    return NewSubjects(X, Z, tokens, table, plain, column)


def _pair_secrets(site: "Site", study: Study, asked: Request, owner: str) -> dict[str, bytes]:
    """One secret per peer, for this one message: from the pair's keys of this run; else from the study key all sites share."""
    agreed = json.loads(site.run_store(study).need("pairs.secret", "Agree on the study key first.")) if study.agrees else {}
    out = {}
    for peer in site.remaining(study):
        if peer != site.name:
            context = "|".join(["predict", asked.digest(), owner, *sorted((site.name, peer))])
            key = SketchKey(bytes.fromhex(agreed[peer])) if study.agrees else site.key(study)
            out[peer] = key.derive("mask", study.id, study.run, context=context)
    return out
