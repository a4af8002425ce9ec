"""What the columns of a site's message must be, whatever the kind of study."""

from collections.abc import Sequence
from typing import Protocol

from intarsia.errors import FederationError
from intarsia.wire.study import Study


class Columns(Protocol):
    """A sketch, or a site's own block of a Gram matrix."""

    @property
    def features(self) -> Sequence[str]: ...
    @property
    def responses(self) -> Sequence[str]: ...
    @property
    def covariates(self) -> Sequence[str]: ...
    @property
    def response_scales(self) -> Sequence[float]: ...


def check_columns(study: Study, sender: str, sent: Columns) -> None:
    """Only columns that study.toml lists for the site, and scales of responses just where the study shares them."""
    foreign = study.site(sender).foreign(sent.features, sent.responses, sent.covariates)
    if foreign is not None:
        what, labels = foreign
        raise FederationError(
            f"Site {sender!r} sent {len(labels)} {what}(s) that study.toml does not list for it, the first is {labels[0]!r}."
        )
    if bool(sent.response_scales) != (study.deliver.share_scales and bool(sent.responses)):
        said = "shares" if study.deliver.share_scales else "does not share"
        raise FederationError(
            f"The study {said} the scales of responses ([deliver] share_scales); site {sender!r} did otherwise."
        )
