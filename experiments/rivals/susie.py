"""susieR (Debian: r-cran-susier), one response at a time, many problems in one call of Rscript.

A problem is rows or, where `rows` is given, the matrices XᵀX, Xᵀy, yᵀy of so many rows (`susie_suff_stat`, which newer versions
call `susie_ss`). A feature's evidence is the largest of its inclusion probabilities over the responses. Named are the features
with .5 or more; the credible sets are those of all responses.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.rivals.answer import Answer, Array

EFFECTS = 20  # L
R = """
suppressMessages(library(susieR)); a <- commandArgs(TRUE); d <- a[1]; L <- as.integer(a[2])
read <- function(k, name, n, p) matrix(readBin(file.path(d, paste0(k, name)), "double", n * p), n, p)
told <- c()
for (line in readLines(file.path(d, "list"))) {
  v <- as.integer(strsplit(line, " ")[[1]]); k <- v[1]; n <- v[2]; p <- v[3]; Q <- v[4]; rows <- v[5]
  X <- read(k, "X", n, p); Y <- read(k, "Y", n, Q); began <- proc.time()
  for (q in seq_len(Q)) {
    fit <- if (rows > 0) susie_suff_stat(XtX = crossprod(X), Xty = drop(crossprod(X, Y[, q])), yty = sum(Y[, q]^2), n = rows,
        L = min(L, p), standardize = FALSE, max_iter = 500)
      else susie(X, Y[, q], L = min(L, p), standardize = FALSE, intercept = FALSE, max_iter = 500)
    words <- function(s) paste0("[", paste(s - 1L, collapse = ","), "]")
    sets <- if (is.null(fit$sets$cs)) character(0) else sapply(fit$sets$cs, words)
    told <- c(told, sprintf('{"problem": %d, "response": %d, "pip": [%s], "mean": [%s], "sets": [%s], "seconds": %f}', k, q - 1L,
      paste(signif(fit$pip, 8), collapse = ","), paste(signif(coef(fit)[-1], 8), collapse = ","), paste(sets, collapse = ","),
      sum((proc.time() - began)[1:2])))
    began <- proc.time()
  }
}
writeLines(told)
"""


def answers(problems: Sequence[tuple[Array, Array, int]]) -> list[Answer]:
    """Of each (X, Y, rows): rows is 0, or how many rows X and Y are a root of the Gram matrix of."""
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for k, (X, Y, rows) in enumerate(problems):
            for name, values in (("X", X), ("Y", Y)):
                np.asfortranarray(values, dtype="<f8").T.tofile(Path(folder) / f"{k}{name}")
            lines.append(f"{k} {X.shape[0]} {X.shape[1]} {Y.shape[1]} {rows}")
        (Path(folder) / "list").write_text("\n".join(lines) + "\n", encoding="utf-8")
        done = subprocess.run(["Rscript", "-e", R, folder, str(EFFECTS)], capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [_together([one for one in found if one["problem"] == k], X) for k, (X, _, _) in enumerate(problems)]


def _together(found: Sequence[dict[str, Any]], X: Array) -> Answer:
    """One answer from those of the responses."""
    pips = np.array([one["pip"] for one in found])
    sets = [np.array(members) for one in found for members in one["sets"]]
    evidence = pips.max(axis=0)
    coef = np.array([one["mean"] for one in found]).T
    return Answer(evidence, evidence >= 0.5, coef, sets, seconds=sum(one["seconds"] for one in found))
