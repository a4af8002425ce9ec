"""What a sweep with a full Sigma costs beside one with independent noise: `python -m benchmarks.noise_cost`.

Simulation 1 (m = 50, 100, 250) and 2 (m = 200): one chain of each, 140 sweeps in turn (whole rounds of full and light ones),
processor time, so that whatever else the machine does meets both alike. Rows go to benchmarks/results/noise_cost.json.
"""

import time
from pathlib import Path

from benchmarks import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from benchmarks.one_chain import OneChain
from benchmarks.sim2_gpu import make
from intarsia.server.sampler.model import Model

RESULT = Path(__file__).parent / "results" / "noise_cost.json"
SIZES = {"Simulation 1, m = 50": (500, 300, 50), "Simulation 1, m = 100": (500, 300, 100),
         "Simulation 1, m = 250": (500, 300, 250), "Simulation 2, m = 200": (1000, 1000, 200)}  # fmt: skip
WARMUP, SWEEPS = 200, 140


def measure(size: str, rounds: int) -> resumed.Row:
    n, P, m = SIZES[size]
    made = make(0.5, 30, 7, n, P, 5, m)
    chains = {noise: OneChain(made["X"], made["Y"], Model(noise=noise), warmup=WARMUP) for noise in ("correlated", "independent")}
    for chain in chains.values():
        for _ in range(WARMUP):
            chain.sweep()
    spent: dict[str, list[float]] = {noise: [] for noise in chains}
    for _ in range(rounds):
        for noise, chain in chains.items():
            began = time.process_time()
            for _ in range(SWEEPS):
                chain.sweep()
            spent[noise].append(1e3 * (time.process_time() - began) / SWEEPS)
    ms = {f"ms_{noise}": round(float(np.median(each)), 3) for noise, each in spent.items()}
    return {"size": size, **ms, "ratio": round(ms["ms_correlated"] / ms["ms_independent"], 3), "rounds": rounds}


def main() -> None:
    parser = resumed.options(__doc__, RESULT, 9)
    args = parser.parse_args()
    rows = []
    for size in SIZES:  # one after the other: times are compared
        rows.append(measure(size, args.sets))
        print(rows[-1], flush=True)
    resumed.write(args.out, rows)


if __name__ == "__main__":
    main()
