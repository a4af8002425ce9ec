"""Figure 6 of the paper: the chosen edges as a connectogram and on outlines of the brain, drawn as the report draws them."""

import numpy as np

from experiments.paper.realdata import Analysis, RealData
from intarsia.report.assets import STYLE
from intarsia.report.brain import Edge, brain_views, connectogram, legend
from intarsia.report.html import Html, el, join


def figure6(study: RealData, analysis: Analysis, most: int = 60) -> Html:
    """A page with the selected edges; when there are none, with the `most` largest, and it says so."""
    chosen = np.flatnonzero(analysis.selected)
    note = f"{len(chosen)} edges selected at expected FDR ≤ .05"
    if len(chosen) == 0:
        chosen = np.argsort(analysis.signal)[::-1][:most]
        note = f"no edge reaches an expected FDR of .05; shown: the {most} largest in |mean|/sd"
    found = study.regions or []
    pairs, regions = study.edges(), {region.code: region for region in found}
    edges = []
    for i in chosen:
        a, b = (found[end].code for end in pairs[i])
        words = f"{study.features[i]}: {analysis.strength[i]:+.3f}"
        edges.append(Edge(a, b, float(analysis.strength[i]), study.features[i], words))
    nodes = list(regions)
    key = [el("span", el("span", "", class_=f"swatch {colour}"), name) for name, colour in legend(regions, nodes)]
    title = f"Figure 6. {study.name}, m = {analysis.m}"
    drawn = el("div", el("div", connectogram(edges, nodes, regions), class_="circle"),
               el("div", *brain_views(edges, regions, nodes), class_="views"), class_="brain")  # fmt: skip
    body = el("main", el("h1", title), el("p", note), drawn, el("p", *key, class_="key"), style="padding:1.5rem")
    head = el("head", el("meta", charset="utf-8"), el("title", title), el("style", Html(STYLE)))
    return join([Html("<!doctype html>"), el("html", head, el("body", body), lang="en")])
