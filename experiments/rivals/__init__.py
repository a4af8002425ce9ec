"""Competitors, written from their papers, with one interface: `fit`, `coef_` (Q×P), `interval`, `selected_`."""

from experiments.rivals.baseline import Baseline
from experiments.rivals.dridge import DRidge
from experiments.rivals.locus import Locus
from experiments.rivals.penalised import ElasticNet, Ridge, SketchedRidge
from experiments.rivals.srrr import SRRR

__all__ = ["SRRR", "Baseline", "DRidge", "ElasticNet", "Locus", "Ridge", "SketchedRidge"]
