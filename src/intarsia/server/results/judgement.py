"""What is thought of a fit, worked out once: its convergence, its selection, and how it predicts rows it has not seen.

It is kept with the draws (group `constant_data` of the posterior), so that the report and whoever opens the file later read
the same numbers and compute nothing again.
"""

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from intarsia.server.results.diagnostics import diagnose
from intarsia.server.results.groups import Group
from intarsia.server.results.leave_one_out import LeaveOneOut, Rows, leave_one_out
from intarsia.server.results.posterior import Posterior
from intarsia.server.results.selection import Selection, select
from intarsia.server.results.stacking import Weighed, from_all_rows, interval_of_explained
from intarsia.server.results.verdict import Diagnosis

Array = NDArray[np.float64]

_DIAGNOSIS = ("rhat", "rhat_folded", "ess_bulk", "ess_tail", "mcse", "mcse_sd")
_LOO = {"elpd": ("row",), "pareto_k": ("row",), "r2": ("response",), "r2_se": ("response",), "mean": ("row", "response")}
_SELECTION = {
    "selected": ("feature",), "by_response": ("feature", "response"), "local_fdr": ("feature",),
    "local_fdr_by_response": ("feature", "response"), "sign": ("feature",), "sign_by_response": ("feature", "response"),
    "expected_fdr_by_response": ("response",),
}  # fmt: skip
_NUMBERS = ("expected_fdr", "fdr")
_UNSHRUNK = ("unshrunk_mean", "unshrunk_sd")
_WEIGHED = {
    "coefficients": ("feature", "response"), "effects": ("covariate", "response"), "spread": ("response",), "r2": ("response",),
    "r2_se": ("response",), "alike": ("response",), "rows": ("response",),
}  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """Convergence, selection and, where the rows were at hand, leave-one-out, what to predict with and effects unshrunk."""

    diagnosis: Diagnosis
    selection: Selection
    loo: LeaveOneOut | None = None
    weighed: Weighed | None = None
    unshrunk: tuple[Array, Array] | None = None  # mean and sd (feature, response) under a flat prior of their own (`unshrunk`)

    def with_weights(self, weighed: Weighed | None) -> "Judgement":
        """With what refits say of prediction.

        Their R² takes the place of leave-one-out's: weighting the draws is too hopeful when there are more features than rows.
        """
        if weighed is None:
            return self
        loo = None if self.loo is None else replace(self.loo, r2=weighed.r2, r2_se=weighed.r2_se)
        return replace(self, loo=loo, weighed=weighed)

    def expected_r2(self, noise: Array, probability: float) -> tuple[Array, Array, Array] | None:
        """The share of variance (Q) that predictions for new subjects explain, and the ends of its interval; None where no row
        was left out, or only by weighting the draws where there are more features than rows. `noise` (Q) are the noise
        variances, of standardised responses.
        """
        if self.weighed is not None:
            found, rows = from_all_rows(self.weighed.alike, noise), self.weighed.rows
        elif self.loo is not None and len(self.loo.elpd) >= len(self.selection.selected):
            found, rows = self.loo.r2, np.full(len(noise), len(self.loo.elpd))
        else:
            return None
        found = np.clip(found, 0.0, 1.0)  # predictions that do worse than the mean explain nothing; they do not explain less
        return found, *interval_of_explained(found, rows, probability)

    def summary(self, features: list[str], responses: list[str]) -> dict[str, Any]:
        """For fit.json and `--json`: the verdict first, then what was found, called provisional unless converged."""
        chosen = self.selection
        found: dict[str, Any] = {
            "converged": bool(self.diagnosis.converged),
            "verdict": str(self.diagnosis.verdict),
            "provisional": not self.diagnosis.converged,
            "selected": [features[p] for p in np.flatnonzero(chosen.selected)],
            "groups": [[features[p] for p in group.members] for group in chosen.groups],
            "expected_fdr": chosen.expected_fdr,
            "features": len(features),
            "responses": responses,
        }
        if self.loo is not None:
            found |= {
                "r2_loo": [round(float(v), 4) for v in self.loo.r2],
                "not_predicted": [responses[q] for q in np.flatnonzero(self.loo.unpredicted)],
                "elpd_loo": self.loo.total,
                "weight_of_sparse_prediction": None if self.weighed is None else round(self.weighed.weight, 4),
                "weight_with_independent_noise": None if self.weighed is None else round(self.weighed.weight_independent, 4),
                "unreliable_rows": self.loo.unreliable,
            }
        return found


def judge(
    posterior: Posterior,
    rows: Rows | None = None,
    *,
    X: Array | None = None,
    method: Literal["bfdr", "mixture"] = "bfdr",
    fdr: float = 0.05,
) -> Judgement:
    """Diagnose, select and leave one out; `keep` puts the judgement with the draws.

    `rows` are the rows in the posterior's units; X the features as the sampler saw them (covariates projected out).
    """
    return Judgement(
        diagnose(posterior),
        select(posterior, method=method, fdr=fdr, X=X),
        None if rows is None else leave_one_out(posterior, rows),
    )


def keep(posterior: Posterior, judgement: Judgement) -> Judgement:
    """Write the judgement into the posterior's group `constant_data`, and return it."""
    d, s, loo = judgement.diagnosis, judgement.selection, judgement.loo
    data: dict[str, Any] = {f"diagnosis_{name}": (("feature", "response"), getattr(d, name)) for name in _DIAGNOSIS}
    if d.noise is not None:
        data |= {f"diagnosis_noise_{name}": (("response",), getattr(d.noise, name)) for name in _DIAGNOSIS}
    for name, dims in _SELECTION.items():
        values = np.asarray(getattr(s, name))
        data[f"selection_{name}"] = (dims, values.astype(np.int8) if values.dtype == bool else values)
    if loo is not None:
        data |= {f"loo_{name}": (dims, getattr(loo, name)) for name, dims in _LOO.items()}
    if judgement.weighed is not None:
        data |= {f"weighed_{name}": (dims, getattr(judgement.weighed, name)) for name, dims in _WEIGHED.items()}
    if judgement.unshrunk is not None:
        data |= {name: (("feature", "response"), values) for name, values in zip(_UNSHRUNK, judgement.unshrunk, strict=True)}
    groups = [
        {"members": g.members.tolist(), "local_fdr": g.local_fdr, "mean": g.mean.tolist(), "sd": g.sd.tolist(),
         "correlation": g.correlation} for g in s.groups
    ]  # fmt: skip
    words: dict[str, Any] = {"selection_method": s.method, "selection_groups": json.dumps(groups)}
    words |= {f"selection_{name}": float(getattr(s, name)) for name in _NUMBERS}
    words |= {"diagnosis_chains": d.chains, "diagnosis_draws": d.draws}
    if loo is not None:
        words["loo_p_loo"] = loo.p_loo
    if judgement.weighed is not None:
        words["weighed_weight"] = judgement.weighed.weight
        words["weighed_weight_independent"] = judgement.weighed.weight_independent
    child = posterior.tree.children.get("constant_data")
    before = xr.Dataset(coords={"feature": posterior.columns["feature"].values}) if child is None else child.to_dataset()
    before = before.drop_vars([name for name in data if name in before])
    posterior.tree["constant_data"] = xr.DataTree(before.assign(data).assign_attrs(**(before.attrs | words)))
    return judgement


def kept(posterior: Posterior) -> Judgement | None:
    """The judgement that was kept with the draws; None when there is none."""
    child = posterior.tree.children.get("constant_data")
    if child is None or "selection_selected" not in child.dataset:
        return None
    data, words = child.dataset, child.attrs
    size: dict[str, Any] = {"chains": int(words["diagnosis_chains"]), "draws": int(words["diagnosis_draws"])}
    whole: dict[str, Any] = {name: data[f"diagnosis_{name}"].values for name in _DIAGNOSIS}
    noise = None
    if "diagnosis_noise_rhat" in data:
        of_noise: dict[str, Any] = {name: data[f"diagnosis_noise_{name}"].values for name in _DIAGNOSIS}
        noise = Diagnosis(**of_noise, **size)
    diagnosis = Diagnosis(**whole, **size, features=posterior.features, responses=posterior.responses, noise=noise)
    parts: dict[str, Any] = {name: data[f"selection_{name}"].values for name in _SELECTION}
    for name in ("selected", "by_response"):
        parts[name] = parts[name].astype(bool)
    groups = tuple(
        Group(np.array(g["members"]), g["local_fdr"], np.array(g["mean"]), np.array(g["sd"]), g["correlation"])
        for g in json.loads(words["selection_groups"])
    )
    parts |= {name: float(words[f"selection_{name}"]) for name in _NUMBERS}
    selection = Selection(**parts, method=str(words["selection_method"]), groups=groups)
    loo = None
    if "loo_elpd" in data:
        loo = LeaveOneOut(p_loo=float(words["loo_p_loo"]), **{name: data[f"loo_{name}"].values for name in _LOO})
    weighed = None
    if "weighed_weight" in words:
        weighed = Weighed(
            **{name: data[f"weighed_{name}"].values for name in _WEIGHED},
            weight=float(words["weighed_weight"]),
            weight_independent=float(words.get("weighed_weight_independent", 0.0)),
        )
    unshrunk = (data[_UNSHRUNK[0]].values, data[_UNSHRUNK[1]].values) if _UNSHRUNK[0] in data else None
    return Judgement(diagnosis, selection, loo, weighed, unshrunk)
