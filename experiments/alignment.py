"""Keyed alignment of a million subjects: CPU seconds and bytes.   python -m experiments.alignment [n]"""

import json
import sys
import time

from intarsia.site.align import report, settle, tokenise
from intarsia.site.key import SketchKey
from intarsia.wire.alignment import AlignmentReport, intersect
from intarsia.wire.study import Study, new_run


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    sites = [{"name": name, "features": ["*"], "responses": [f"y{name}"]} for name in "abc"]
    content = {"id": "bench", "run": new_run(), "sketch": {"m": 10}, "alignment": {"mode": "intersect"}, "site": sites}
    study, key = Study.from_dict(content), SketchKey.new()
    ids = [f"S{i:08d}" for i in range(n)]
    cohorts = {"a": ids, "b": ids[n // 100 :], "c": ids[: -n // 100][::-1]}
    out: dict[str, object] = {"n": n}
    tokens = {}
    for name, own in cohorts.items():
        began = time.process_time()
        tokens[name] = tokenise(own, key, study)
        out[f"tokens_cpu_seconds_{name}"] = round(time.process_time() - began, 2)
    raw = {name: report(name, study, t).to_bytes() for name, t in tokens.items()}
    out["bytes_sent"] = {name: len(message) for name, message in raw.items()}
    began = time.process_time()
    answers = intersect({name: AlignmentReport.from_bytes(message) for name, message in raw.items()})
    out["intersect_cpu_seconds"] = round(time.process_time() - began, 2)
    out["common"] = answers["a"].n
    assert len({settle(name, study, tokens[name], answers[name])[1] for name in cohorts}) == 1
    print(json.dumps(out))


if __name__ == "__main__":
    main()
