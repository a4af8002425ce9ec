"""Genotypes in linkage disequilibrium: msprime's coalescent where it is installed, else a chain of copied haplotypes."""

import numpy as np

Array = np.ndarray


def genotypes(n: int, P: int, seed: int) -> tuple[Array, str]:
    """Counts 0, 1, 2 of the rarer allele (n, P), each at least one in twenty; and how they were made."""
    try:
        import msprime
    except ImportError:
        return _copied(n, P, seed), "copied haplotypes"
    length = 400.0 * P
    for again in range(20):
        trees = msprime.sim_ancestry(
            n, population_size=10_000, recombination_rate=1e-8, sequence_length=length, random_seed=seed + 1
        )
        found = msprime.sim_mutations(trees, rate=2e-8, random_seed=seed + 1).genotype_matrix().clip(max=1)
        X = found.reshape(len(found), n, 2).sum(axis=2).T.astype(float)
        share = X.mean(axis=0) / 2
        kept = np.flatnonzero((share >= 0.05) & (share <= 0.95))
        distinct = kept[np.sort(np.unique(X[:, kept], axis=1, return_index=True)[1])]
        if len(distinct) >= P:
            return X[:, distinct[:P]], "msprime"
        length *= 1.5 + again
    raise RuntimeError(f"No region with {P} common variants was simulated.")


def _copied(n: int, P: int, seed: int, founders: int = 12, switch: float = 0.05) -> Array:
    """Haplotypes that copy one of a few founders and change to another now and then (Li & Stephens 2003)."""
    rng = np.random.default_rng(seed)
    share = rng.uniform(0.1, 0.5, P)
    founding = rng.random((founders, P)) < share
    founding[0], founding[1] = True, False  # no column is constant
    at = rng.integers(0, founders, 2 * n)
    made = np.empty((2 * n, P))
    for p in range(P):
        jump = rng.random(2 * n) < switch
        at[jump] = rng.integers(0, founders, int(jump.sum()))
        made[:, p] = founding[at, p]
    return np.asarray(made.reshape(n, 2, P).sum(axis=1))
