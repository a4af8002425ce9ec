"""A differentially private sketch: rows clipped to a public bound, Gaussian sketch, local noise of the site's own.

Nothing here may depend on the data but through the clipped rows: centres, scales and the bound are public constants
of the study; a missing value becomes the public centre; columns are neither centred nor scaled by what they hold. The
noise comes from the operating system's generator, never from the key the sites share, and lies on a grid together with the
sketch (`intarsia.privacy.grid`), so that the spacing of floating-point numbers tells nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError, PrivacyError
from intarsia.site.data.row_blocks import block_rows
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.sketch.clipping import Bound, ClippedNoise
from intarsia.site.sketch.partial import Design
from intarsia.site.sketch.sketch import sketch
from intarsia.site.sketch.stream import gaussian_columns
from intarsia.site.sketch.terms import SketchTerms
from intarsia.site.units import Units
from intarsia.wire.messages import Sketch

Array = NDArray[np.float64]


def public_bound(
    labels: Sequence[str],
    site: str,
    row_bound: Mapping[str, float],
    centres: Mapping[str, Mapping[str, float]],
    scales: Mapping[str, Mapping[str, float]],
) -> Bound:
    """A site's constants from the study file: by column label, or "*" for all other columns of the site."""
    if site not in row_bound:
        raise InputError(f"Differential privacy needs a public row bound for site {site!r}: add row_bound.{site} to study.toml.")

    def constants(table: Mapping[str, Mapping[str, float]], what: str) -> Array:
        own = table.get(site, {})
        missing = [label for label in labels if label not in own and "*" not in own]
        if missing:
            raise InputError(
                f"Differential privacy needs public {what} for {len(missing)} columns of site {site!r}, first "
                f'{missing[0]!r}: add them to [privacy.{what}.{site}] in study.toml, or one for all as "*". They must '
                "not be computed from the data."
            )
        return np.array([own.get(label, own.get("*", np.nan)) for label in labels], float)

    return Bound(constants(centres, "centres"), constants(scales, "scales"), float(row_bound[site]))


@dataclass(frozen=True)
class PrivateResult:
    """`message` goes to the server; the rest is for the site alone: its units, and max ‖φ_i‖ of the real Φ, for the guarantee
    against a party that knows it.
    """

    message: Sketch
    units: Units
    longest: float


def private_sketch(
    table: Table, key: SketchKey, terms: SketchTerms, private: ClippedNoise, *, order: Any = None
) -> PrivateResult:
    """The private sketch of a site's table: N(0, w²/n) on every entry of the gaussian sketch of the clipped rows."""
    if not 0 < private.w < np.inf:
        raise PrivacyError(f"The noise scale must be positive; {private.w} came. Nothing leaves a private study without noise.")
    result = sketch(table, key, terms, order=order, private=private)
    return PrivateResult(result.message, result.units, longest_column(terms.design(key, result.message.n)))


def longest_column(phi: Design) -> float:
    """max_i ‖φ_i‖ of the real gaussian Φ, streamed."""
    longest, step = 0.0, block_rows(phi.m)
    for a in range(0, phi.n, step):
        G = gaussian_columns(phi.subkey, phi.m, a, min(a + step, phi.n))
        longest = max(longest, float(np.sqrt((G * G).sum(axis=0).max() / phi.n)))
    return longest
