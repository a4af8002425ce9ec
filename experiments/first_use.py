"""What the first import and the first fit cost, with the loops compiled and without.

    python -m experiments.first_use         # about a minute of one core; writes results/first_use.json

Each figure is processor time of a fresh Python process. "Not compiled" starts from an empty cache; "compiled" finds what the fit
before it left there, as it finds what `make install` leaves.
"""

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from experiments.kept import keep

RESULT = Path(__file__).parent / "results" / "first_use.json"
FIT = """
import numpy as np, intarsia, warnings
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X = rng.normal(size=(200, 50))
Y = X[:, :2] + rng.normal(size=(200, 2))
model = intarsia.ReducedRankHorseshoe(draws=200, warmup=200, chains=1, random_state=1)
before = time.process_time()
model.fit(X, Y)
"""


def seconds(code: str, cache: str) -> float:
    """Processor seconds of the code's last part: what follows its last `before = …`, or all of it."""
    program = f"import time\nbefore = time.process_time()\n{code}\nprint(time.process_time() - before)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"NUMBA_CACHE_DIR": cache}, check=True, capture_output=True, text=True
    )
    return round(float(done.stdout.split()[-1]), 2)


def main() -> None:
    found: dict[str, object] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as cache:
        found["import_s"] = seconds("import intarsia", cache)
        found["estimator_s"] = seconds("import intarsia; intarsia.ReducedRankHorseshoe", cache)
        found["fit_not_compiled_s"] = seconds(FIT, cache)
        found["fit_compiled_s"] = seconds(FIT, cache)
    print(json.dumps(found, indent=1))
    keep(RESULT, found)


if __name__ == "__main__":
    main()
