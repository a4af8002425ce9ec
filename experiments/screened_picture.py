"""The picture of docs/screened.md: the chance to find an effect, by its size, three ways, and what each tells.

    python -m experiments.screened_picture          # writes docs/images/screened.svg

By the same theory as `intarsia privacy plan`: 20,000 people, 1,000 features, 3 responses, 20 of the features with an effect.
"""

from dataclasses import replace
from pathlib import Path

from intarsia.privacy import kinds_of_study
from intarsia.privacy.plan import Problem, plan

TARGET = Path(__file__).parents[1] / "docs" / "images" / "screened.svg"
PROBLEM = Problem.expected(20_000, 1000, 3, 20)
SIZES = tuple(round(0.004 * k, 3) for k in range(1, 56))  # sd
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 340, 60, 24, 48  # pixels
LARGEST = 0.22  # sd, at the right end of the axis
KINDS = ("pooled", "screened", "large", "small")
STYLE = """.t{fill:#333}.a{stroke:#888}.g{stroke:#ddd}path{fill:none;stroke-width:2.5}
.pooled{stroke:#777;stroke-dasharray:2 4}.screened{stroke:#8a4b14}.large{stroke:#2f6f8f}.small{stroke:#7fb0c6}
.lp{fill:#666}.ls{fill:#8a4b14}.ll{fill:#2f6f8f}.lm{fill:#4c8aa6}
@media (prefers-color-scheme:dark){.t{fill:#ddd}.a{stroke:#999}.g{stroke:#444}.lp{fill:#aaa}.ls,.screened{fill:#e0a060}
.screened{stroke:#e0a060;fill:none}.ll{fill:#7fc4e4}.large{stroke:#7fc4e4}.lm{fill:#a8d4e8}}"""


def curves() -> dict[str, tuple[str, float, list[float]]]:
    """By kind: what stands beside the curve, membership AUC, and the chance for every size."""
    out: dict[str, tuple[str, float, list[float]]] = {}
    kinds_of_study.EFFECTS = SIZES  # type: ignore[assignment]
    for kind, m in (("large", 2000), ("small", 500)):
        found = plan(PROBLEM, grid=[m])
        way = kinds_of_study.compare(PROBLEM, replace(found, recommended=m))[0]
        out[kind] = (f"sketch of {m:,} rows", way.membership_auc or 0.0, list(way.power))
    _, gram, screen, _ = kinds_of_study.compare(PROBLEM, plan(PROBLEM))
    out["pooled"] = ("exact Gram matrix of all columns", gram.membership_auc or 0.0, list(gram.power))
    out["screened"] = (screen.name, screen.membership_auc or 0.0, list(screen.power))
    return out


def x(effect: float) -> float:
    return LEFT + (WIDTH - LEFT - 16) * effect / LARGEST


def y(chance: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - chance)


def svg() -> str:
    """The picture as text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<title id="t">The chance to find an effect, three ways</title>',
        '<desc id="d">A screened study finds what the exact Gram matrix of all columns finds, at a membership AUC below .65; a '
        "sketch finds the same effects only when they are several times as large.</desc>",
        f"<style>{STYLE}</style>",
    ]
    for chance in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="g" x1="{LEFT}" x2="{WIDTH - 16}" y1="{y(chance):.1f}" y2="{y(chance):.1f}"/>')
        parts.append(f'<text class="t" x="{LEFT - 8}" y="{y(chance) + 4:.1f}" text-anchor="end">{chance:.0%}</text>')
    for effect in (0.02, 0.05, 0.1, 0.15, 0.2):
        parts.append(f'<text class="t" x="{x(effect):.1f}" y="{HEIGHT - 26}" text-anchor="middle">{effect:g}</text>')
    middle = (LEFT + WIDTH) / 2
    parts.append(
        f'<text class="t" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">effect, sd of the response for one sd</text>'
    )
    found = curves()
    for kind in KINDS:
        line = " ".join(
            f"{'L' if k else 'M'}{x(e):.1f} {y(p):.1f}" for k, (e, p) in enumerate(zip(SIZES, found[kind][2], strict=True))
        )
        parts.append(f'<path class="{kind}" d="{line}"/>')
    for k, (kind, colour) in enumerate(zip(KINDS, ("lp", "ls", "ll", "lm"), strict=True)):
        name, auc, _ = found[kind]
        at = f'x="{x(0.125):.1f}" y="{y(0.93) + 20 * k:.1f}"'
        parts.append(f'<text class="{colour}" {at}>{name}: membership AUC {auc:.2f}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(svg(), encoding="utf-8")
    print(f"wrote {TARGET}")
