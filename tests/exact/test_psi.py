"""Private set intersection of two sites gives the cohort that the keyed alignment gives."""

import pytest

pytest.importorskip("private_set_intersection", reason="needs intarsia[psi]")

from intarsia.errors import AlignmentError, MessageError
from intarsia.site.align import report, settle, tokenise
from intarsia.site.key import SketchKey
from intarsia.site.psi import PsiReceiver, PsiSender
from intarsia.wire.alignment import intersect
from intarsia.wire.study import Study

KEY = SketchKey(bytes(range(32)))


def study_of(names: str) -> Study:
    sites = [{"name": n, "features": ["*"], "responses": [f"y{n}"]} for n in names]
    content = {"id": "s", "run": "0" * 32, "sketch": {"m": 5}, "alignment": {"mode": "intersect"}, "site": sites}
    return Study.from_dict(content)


def test_the_same_cohort_as_by_keyed_tokens() -> None:
    study = study_of("ab")
    ids = {"a": [f"S{i}" for i in range(120)], "b": [f"S{i}" for i in range(200, 60, -1)]}
    tokens = {name: tokenise(own, KEY, study) for name, own in ids.items()}
    sender, receiver = PsiSender(study, tokens["a"]), PsiReceiver(study, tokens["b"])
    request = receiver.request()
    cohort_b = receiver.cohort("b", study, sender.setup(tokens["b"].n), sender.respond(request))
    common = receiver.common(study, cohort_b)
    cohort_a = sender.settle("a", study, common)
    usual = intersect({name: report(name, study, t) for name, t in tokens.items()})
    assert cohort_a.to_bytes() == usual["a"].to_bytes()
    assert cohort_b.to_bytes() == usual["b"].to_bytes()
    macs = {settle(n, study, tokens[n], c)[1] for n, c in (("a", cohort_a), ("b", cohort_b))}
    assert len(macs) == 1
    for token in tokens["b"].tokens:
        assert bytes(token) not in request
    with pytest.raises(MessageError):
        sender.respond(b"nonsense" * 10)
    foreign = PsiReceiver(study, tokenise(["x", "y"], KEY, study))
    from dataclasses import replace

    import numpy as np

    lie = foreign.common(study, replace(cohort_b, keep=np.array([True, True]), n=2))
    with pytest.raises(AlignmentError, match="2 of 2 subjects said to be common are not at site 'a'"):
        sender.settle("a", study, lie)


def test_it_is_for_two() -> None:
    study = study_of("abc")
    with pytest.raises(AlignmentError, match="two sites"):
        PsiSender(study, tokenise(["x"], KEY, study))
