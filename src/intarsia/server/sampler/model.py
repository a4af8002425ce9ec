"""What is fitted: the user's choices, checked."""

from dataclasses import dataclass

from intarsia.errors import InputError
from intarsia.server.sampler import priors
from intarsia.wire.study_parts import LOCALS, NOISES


@dataclass(frozen=True)
class Model:
    """The choices of a fit.

    local   `row`: one local scale per feature; `element`: one per entry of B (the paper's).
    rank    R; None means R = Q.
    law     of the local scales.
    noise   `correlated`: a full covariance Sigma of the responses' noise (one response: as `independent`); `independent`: a
            half-Cauchy noise level per response; `jeffreys`: the paper's improper prior per response.
    power   of the likelihood: below 1 it is a fractional posterior (paper, §5).
    expected_features   how many features you expect to matter: it sets the scale of the global scales' half-Cauchy law
            (`schedule.Plan.expecting`); None: C⁺(0, 1), which expects nothing, or with many features per row, where some stand
            out, the default of `schedule.expected_features`.
    """

    local: str = "row"
    rank: int | None = None
    law: str = "horseshoe"
    noise: str = "correlated"
    power: float = 1.0
    expected_features: float | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("Local scales", self.local, LOCALS),
            ("Local law", self.law, priors.LAWS),
            ("Noise prior", self.noise, NOISES),
        ):
            if value not in known:
                raise InputError(f"{what} {value!r} not known; expected one of {', '.join(known)}.")
        if not 0 < self.power <= 1:
            raise InputError(f"The likelihood's power is {self.power!r}; expected 0 < power <= 1 (1: the ordinary posterior).")

        if self.expected_features is not None and not 0 < self.expected_features < float("inf"):
            raise InputError(f"expected_features is {self.expected_features!r}; expected a positive number, or None.")

    def rank_of(self, responses: int) -> int:
        """R for so many responses."""
        R = responses if self.rank is None else self.rank
        if not 1 <= R <= responses:
            raise InputError(f"Rank {R} does not fit {responses} response(s); expected 1 ≤ rank ≤ {responses}.")
        return R
