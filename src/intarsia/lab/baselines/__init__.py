"""Competitors, written from their papers, with one interface: `fit`, `coef_` (Q×P), `interval`, `selected_`."""

from intarsia.lab.baselines.baseline import Baseline
from intarsia.lab.baselines.dridge import DRidge
from intarsia.lab.baselines.locus import Locus
from intarsia.lab.baselines.penalised import ElasticNet, Ridge, SketchedRidge
from intarsia.lab.baselines.srrr import SRRR

__all__ = ["SRRR", "Baseline", "DRidge", "ElasticNet", "Locus", "Ridge", "SketchedRidge"]
