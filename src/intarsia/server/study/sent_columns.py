"""What the columns of a site's message must be, whatever the kind of study."""

from collections.abc import Sequence
from typing import Protocol

from intarsia.errors import FederationError
from intarsia.wire.announcement import Announcement
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


def check_columns(study: Study, sender: str, sent: Columns, announced: Announcement | None) -> None:
    """Only columns that study.toml lists for the site, no more than it announced; scales just where they are shared."""
    foreign = study.site(sender).foreign(sent.features, sent.responses, sent.covariates)
    if foreign is not None:
        what, labels = foreign
        raise FederationError(
            f"Site {sender!r} sent {len(labels)} {what}(s) that study.toml does not list for it, the first is {labels[0]!r}."
        )
    columns = len(sent.features) + len(sent.responses) + len(sent.covariates)
    if announced is not None and (columns > announced.columns or len(sent.covariates) > announced.covariates):
        # The other sites' gates counted what was announced.
        raise FederationError(f"Site {sender!r} sent more columns than it announced. Refused; start a new run of the study.")
    if bool(sent.response_scales) != (study.deliver.share_scales and bool(sent.responses)):
        said = "shares" if study.deliver.share_scales else "does not share"
        raise FederationError(
            f"The study {said} the scales of responses ([deliver] share_scales); site {sender!r} did otherwise."
        )
