"""What a site works out of another site's rare yes/no response, from the effects of its own columns on it, without help.

    python -m experiments.curious_site            # kept in results/curious_site.json; two minutes on one core

The study and the attack are those of tests/adversary/test_curious_site.py, over some fixed runs, each with its own Φ. Beside the
attack stands guessing: the same attack on sums of which it is not known whose values they are sums of (people in any order).
Whether the gate refuses is asked of the gate, with the exception that lets the attack take place left out.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from tests.adversary import test_curious_site as attack  # noqa: E402

from experiments.kept import keep  # noqa: E402
from intarsia.carriers.in_process import study_for  # noqa: E402
from intarsia.errors import PrivacyError  # noqa: E402
from intarsia.privacy.decode import decode_amp  # noqa: E402

RESULT = Path(__file__).parent / "results" / "curious_site.json"
COLUMNS, RUNS = (10, 15, 25, 40, 50, 75, 100), 12


def refused(columns: int) -> bool:
    sites, _ = attack.parties(columns)
    try:
        sites[0].sketch(study_for(sites, m=attack.M, id="snooped", run=f"{0:032x}"))
    except PrivacyError as error:
        return "readable-response" in str(error)
    return False


def measured(columns: int) -> dict[str, Any]:
    got: dict[str, list[int]] = {name: [] for name in ("found", "wrong", "likeliest", "guessed", "guessed_wrong")}
    for run in range(RUNS):
        sites, ill = attack.parties(columns, attack.EXCEPTION)
        weights, told, order = attack.sums_of_the_snoop(sites, run)
        truth = ill[order] > 0
        anybody = np.random.default_rng(run).permutation(attack.N)
        likeliest = np.argsort(-decode_amp(weights, told, attack.LEVELS))[: attack.CARRIERS]
        right, wrong = attack.decoded(weights, told, truth)
        by_chance, by_chance_wrong = attack.decoded(weights[:, anybody], told, truth)
        for name, count in zip(got, (right, wrong, int(truth[likeliest].sum()), by_chance, by_chance_wrong), strict=True):
            got[name].append(count)
    return {"columns": columns, "refused": refused(columns)} | {name: round(float(np.mean(v)), 2) for name, v in got.items()}


def main() -> None:
    made: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": "python -m experiments.curious_site"}
    made |= {"subjects": attack.N, "m": attack.M, "carriers": attack.CARRIERS, "runs": RUNS, "rows": []}
    for columns in COLUMNS:
        made["rows"].append(measured(columns))
        print(made["rows"][-1], flush=True)
    keep(RESULT, made)


if __name__ == "__main__":
    main()
