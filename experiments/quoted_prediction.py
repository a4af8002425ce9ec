"""What predictions explain, in the documents: simulated sets that look like public ones, and the lab's connectome."""

from collections.abc import Iterator

import numpy as np

from experiments.connectome import WAYS, explained
from experiments.look_alikes_data import SETS
from experiments.quoting import Quote, Rows, Sentence, bare, fixed, kept

COLUMNS = ("r2", "r2_ridge", "r2_sparse", "covered", "weight", "weight_independent")
ROWS = ("n/4", "n/2", "all")
PUBLIC = {
    "devfmri_basc64": "developmental fMRI (121 children, 2,016 edges, 5 responses)",
    "wheat_cimmyt": "wheat (599 lines, 1,279 markers, 4 yields)",
    "yeast_cellcycle": "yeast cell cycle (542 genes, 106 factors, 18 times)",
    "fate_motor_hetero": "electric motor (800 states, 7 features, 5 responses)",
}


def look_alike_rows() -> Iterator[list[str]]:
    """Means over the data sets of each kind."""
    for name in SETS:
        for rows in ROWS:
            mine = [row for row in kept("look_alikes") if (row["set"], row["rows"]) == (name, rows)]
            if mine:
                means = [float(np.mean([row[column] for row in mine])) for column in COLUMNS]
                *four, sparse, independent = (fixed(value, 2) for value in means)
                yield [name, rows, str(len(mine)), *four, f"{sparse}, {independent}"]


def public_rows() -> Iterator[list[str]]:
    """Means over the folds of each public set."""
    for name, words in PUBLIC.items():
        for rows in ROWS:
            mine = [row for row in kept("real") if (row["set"], row["rows"]) == (name, rows)]
            columns = ("r2", "r2_ridge", "covered", "weight", "weight_independent")
            *three, sparse, independent = (float(np.mean([row[column] for row in mine])) for column in columns)
            r2, ridge, covered = (fixed(value, 3) for value in three)
            yield [words, rows, r2, ridge, covered, f"{fixed(sparse, 2)}, {fixed(independent, 2)}"]


def connectome_figures() -> list[str]:
    rows = kept("connectome")
    covered = float(np.mean([row["covered"] for row in rows]))
    return [bare(explained(rows, way), 2) for way in WAYS] + [bare(covered, 2)]


PREDICTION_QUOTES: list[Quote] = [
    Rows("docs/criticism.md", "look-alikes", look_alike_rows),
    Rows("docs/criticism.md", "public sets", public_rows),
    Sentence(
        "docs/lab.md",
        "the sparse fit explains {} of the variance, with independent noise {} (so this set was made), the two weighed with a "
        "ridge {}, and a tuned ridge {}; 95 % intervals of the weighed prediction cover {} of the values",
        connectome_figures,
    ),
]
