"""Checks of a fitted study that fit again, on request: k-fold and split-half replication over the rows of its sketches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from intarsia.errors import StudyError
from intarsia.files import read_json, replace_json
from intarsia.server.assess.assessment import kept
from intarsia.server.assess.criticism import k_fold, split_half
from intarsia.server.assess.leave_one_out import Rows
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.pseudo_rows import check_rows
from intarsia.server.study.fit import posterior_of, settings_of
from intarsia.server.study.fold_checks import check_folds, replicate
from intarsia.server.study.folder import CHECKS, StudyFolder
from intarsia.server.study.kept import POSTERIOR, posterior_file
from intarsia.server.study.longer import on_own_backend
from intarsia.wire.plain import some

MOST_REFITTED = 20_000  # rows of a Gram study that are made for refits


def check(
    folder: StudyFolder,
    *,
    folds: int | None = None,
    halves: bool = False,
    workers: int | None = None,
    progress: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Make the checks asked for, add them to those made before in checks.json, and return all."""
    target = folder.path / POSTERIOR
    if not target.is_file():
        raise StudyError(f"{folder.path} has no posterior.nc yet: the study is not fitted. Run `intarsia fit` first.")
    study, joined = folder.study, folder.joined()
    posterior = Posterior.load(posterior_file(folder.path))
    assessment = kept(posterior)
    if assessment is None:
        raise StudyError(f"{target.name} was made by another version. Fit again.")
    settings = replace(on_own_backend(folder, settings_of(study)), workers=workers, progress=progress)
    found = read(folder)
    if study.sketch.folds:
        if folds is not None:
            parts = check_folds(folder, folds, settings)
            found["k_fold"] = {
                "folds": folds, "elpd": float(parts.elpd.sum()), "r2": parts.r2.tolist(), "r2_se": parts.r2_se.tolist(),
            }  # fmt: skip
        if halves:
            found["replication"] = replicate(folder, settings, posterior, assessment.findings.findings).to_dict(
                posterior.features
            )
        return _kept(folder, found)
    if study.sketch.shares and joined.m > MOST_REFITTED:
        raise StudyError(
            f"Refits of a Gram study without folds make all {joined.m:,} rows of a random rotation, at most {MOST_REFITTED:,}. "
            "The leave-one-out figures in the report come without refits; a study with folds under [sketch] has its own parts."
        )
    rows = check_rows(joined, MOST_REFITTED)
    if rows is None:
        raise StudyError("Too few rows of this study have every response to leave some out. This check needs them.")

    def refit(some: Rows) -> Posterior:
        part: dict[str, Any] = {"X": some.X, "Y": some.Y, "m": len(some.Y)}
        if some.Z.shape[1]:
            part["Z"] = some.Z
        return posterior_of(study, replace(joined, **part), settings)[0]

    if folds is not None:
        result = k_fold(refit, rows, folds, study.fit.seed)
        found["k_fold"] = {
            "folds": folds, "elpd": result.total, "r2": result.r2.tolist(), "r2_se": result.r2_se.tolist(),
        }  # fmt: skip
    if halves:
        replication = split_half(refit, rows, posterior, assessment.findings.findings, study.fit.seed)
        found["replication"] = replication.to_dict(posterior.features)
    return _kept(folder, found)


def _kept(folder: StudyFolder, found: dict[str, Any]) -> dict[str, Any]:
    replace_json(folder.path / CHECKS, found)
    folder.note("checked", checks=sorted(found))
    return found


def read(folder: StudyFolder) -> dict[str, Any]:
    """The checks made before; empty when none."""
    file = folder.path / CHECKS
    return read_json(file, "Delete it and make the checks again (`intarsia check`).") if file.is_file() else {}


def sentences(found: dict[str, Any], responses: list[str]) -> list[str]:
    """The checks in words."""
    said = []
    if "k_fold" in found:
        r2 = np.asarray(found["k_fold"]["r2"])
        each = ", ".join(f"{responses[q]} {value:.2f}" for q, value in enumerate(r2[:12]))
        said.append(f"{found['k_fold']['folds']}-fold, out-of-sample R²: {each}")
    if "replication" in found:
        rows = found["replication"]
        missing = ["/".join(row["features"]) for row in rows if not row["replicates"]]
        said.append(f"{len(rows) - len(missing)} of {len(rows)} findings replicate in both halves of the rows")
        if missing:
            said.append(f"not replicated: {some(missing, 12)}")
    return said
