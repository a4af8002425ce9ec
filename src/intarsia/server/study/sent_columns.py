"""What the columns of a site's message must be, whatever the kind of study."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from intarsia.errors import FederationError
from intarsia.wire.alignment import AlignmentReport, other_subjects, same
from intarsia.wire.announcement import Announcement
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.server.study.folder import StudyFolder


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


class Stated(Columns, Protocol):
    """What a site states of columns that it shares: its own block of a Gram matrix, or of a screen."""

    @property
    def n(self) -> int: ...
    @property
    def order_mac(self) -> str: ...
    @property
    def key_fingerprint(self) -> str: ...


def check_agreed(folder: "StudyFolder", sender: str, sent: Stated, what: str) -> None:
    """Over the cohort that was agreed; by files alone the sites prove that to each other."""
    if folder.missing("alignment"):
        return
    announced = AlignmentReport.from_bytes(folder.whole("alignment", sender)).mac
    strict = folder.study.alignment.mode == "strict"
    if sent.n != folder.cohorts()[sender].n or (strict and not same(announced, sent.order_mac)):
        verb = "are" if what.endswith("s") else "is"
        raise FederationError(f"The {what} of site {sender!r} {verb} over other subjects than were agreed. Refused.")


def check_beside(folder: "StudyFolder", sender: str, sent: Stated, kind: Any) -> None:
    """Beside what other sites sent before, messages of the same `kind`: one key, one cohort, and every column once."""
    own = {*sent.features, *sent.responses, *sent.covariates}
    for name in folder.present("sketch"):
        other = kind.from_bytes(folder.whole("sketch", name))
        if other.key_fingerprint != sent.key_fingerprint:
            raise FederationError(f"Sites {name!r} and {sender!r} used different study keys. Agree on the key again.")
        if (other.n, other.order_mac) != (sent.n, sent.order_mac):
            raise FederationError(other_subjects(name, other.n, sender, sent.n))
        if twice := own & {*other.features, *other.responses, *other.covariates}:
            raise FederationError(f"Column {min(twice)!r} comes from sites {name!r} and {sender!r}: a column has one owner.")
