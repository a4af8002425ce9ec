"""The gate's rule on directions that few people carry: what was found without the key, in whose columns, and what helps."""

from collections.abc import Sequence

from intarsia.privacy.facts import NOTE, OK, REFUSE, WARN, Carried, Facts, Finding
from intarsia.wire.plain import plural

RULE = "leverage"
WARN_LOUD = 0.5  # squared cosine of the loudest person's column of Φ with the longest direction of all columns, by theory
REMEDY = (
    'Cut the tails (at_most, at_least in site.toml), ask for transform = "rank-normal" in study.toml, leave out or merge one of '
    "these columns, or leave that subject out; or override 'leverage'."
)
_HOW = {
    "principal": "is the longest or shortest direction among {columns}",
    "totals": "is what is left of one of {columns} when the others are taken off",
    "pursuit": "is what is left of one of {columns} when the others are taken off",
    "meeting": "is what the columns named alike have in common with others, in {columns}",
    "loud": "stands out in {columns}",
}


def leverage(facts: Facts) -> list[Finding]:
    """Refused or warned of: what the attacks on the very sketch (or products) found. Said: what they were not tried on."""
    looked = facts.looked
    if looked is None:
        return []
    out = [_panel(one, facts.exact) for one in looked.carried if one.how == "panel"]
    few = [one for one in looked.carried if one.how != "panel"]
    out += [_found([one for one in few if one.refuse], REFUSE, facts)] if any(one.refuse for one in few) else []
    out += [_found([one for one in few if not one.refuse], WARN, facts)] if any(not one.refuse for one in few) else []
    if looked.loudest is not None and looked.loudest >= WARN_LOUD and not any(one.refuse for one in few):
        told = "is nearly that subject's row" if facts.exact else "is nearly that subject's column of Φ"
        text = (
            "leverage: one subject is so much more variable than the others that, if the other sites' columns are like these, "
            f"the longest direction of all {facts.columns} columns {told} (share {looked.loudest:.0%}, by theory), without the "
            f"key. {REMEDY}"
        )
        out.append(Finding(RULE, WARN, text, looked.loudest, WARN_LOUD))
    if looked.unseen:
        text = f"leverage: directions that few subjects carry were not looked for among {'; '.join(looked.unseen)}."
        if facts.kind == "screened":
            text += " Those among the features to keep are looked for when the server names these."
        later = facts.kind == "screened" or (out and not facts.exact)
        out.append(Finding(RULE, NOTE if later else WARN, text))
    return out or [Finding(RULE, OK, "leverage: no direction that few subjects carry is found without the key.")]


def _found(some: Sequence[Carried], level: str, facts: Facts) -> Finding:
    first = some[0]
    people = len({one.person for one in some})
    whom = "one subject" if first.people == 1 else f"{first.people} subjects"
    how = _HOW[first.how].format(columns=_columns(first.columns))
    more = f" In all {plural(people, 'subject')} {'is' if people == 1 else 'are'} exposed so." if people > 1 else ""
    what = "that subject's values" if facts.exact else "that subject's column of Φ, and with it an estimate of every value"
    what = what if first.people == 1 else what.replace("that subject's", "a sum of those subjects'")
    text = (
        f"leverage: {first.share:.0%} of a combination of columns is carried by {whom}; it {how}, and tells {what}, without the "
        f"key.{more} {REMEDY}"
    )
    return Finding(RULE, level, text, first.share, columns=first.columns)


def _panel(one: Carried, gram: bool) -> Finding:
    text = (
        f"leverage: {_columns(one.columns)} are carried by {one.people} subjects only, and are nearly as many as these: "
        f"combinations of them single these subjects out, and another set of such columns that shares one finds that subject's "
        f"{'values' if gram else 'column of Φ'}, without the key. Bring fewer of them, merge them, or leave them out; "
        "or override 'leverage'."
    )
    return Finding(RULE, REFUSE, text, one.people, columns=one.columns)


def _columns(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more columns" if len(names) > most else "")
