"""The text of study.toml for a new run that replaces another: new nonce, the old run's hash, why; comments stay.

Φ is used once. Whatever changes about a study after its sites have sent (another site, other subjects, other values) is a new
run under a new key and a new Φ.
"""

import re

from intarsia.errors import StudyError
from intarsia.wire.study import Study, new_run

_TOP = re.compile(r"\s*\[")
_KEY = re.compile(r"\s*(run|replaces|reason)\s*=")


def next_run(text: str, source: str, reason: str, more: str = "") -> tuple[str, Study]:
    """The new text and its study; `more` is appended, for a site that joins. Nothing else of the text changes."""
    old, run = Study.parse(text, source), new_run()
    out, inside = [], False
    for line in text.splitlines(keepends=True):
        inside = inside or _TOP.match(line) is not None
        found = None if inside else _KEY.match(line)
        if found is None:
            out.append(line)
        elif found[1] == "run":
            out.append(f'run = "{run}"\nreplaces = "{old.hash}"\nreason = "{reason}"\n')
    changed = "".join(out)
    if more:
        changed = changed.rstrip("\n") + "\n\n" + more
    new = Study.parse(changed, source)
    if (new.run, new.replaces) != (run, old.hash):
        raise StudyError(f'The run nonce of {source} was not found; write it as run = "…" in a line of its own.')
    return changed, new


def without_site(old: Study, name: str) -> Study:
    """A new run of the same study between the other sites."""
    old.site(name)
    content = old.again(reason="leave").to_dict()
    content["site"] = [entry for entry in content["site"] if entry["name"] != name]
    for table in ("row_bound", "centres", "scales"):
        content["privacy"].get(table, {}).pop(name, None)
    return Study.from_dict(content)
