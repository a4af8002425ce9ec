"""Two sites that do not want a server to see how their subjects overlap: private set intersection (extra `psi`).

Elliptic-curve Diffie–Hellman by OpenMined's library, over the keyed tokens of the ids, so that a relay that has no
study key learns nothing from the messages but their sizes. The receiver learns which of its subjects the sender has
and tells the sender by the keyed tokens of the common ones. The keyed alignment is a hundred times faster, so this is
for two parties who refuse to show a server the pattern of overlap.

    sender                                  receiver
    setup(n of the receiver)  ───────────►
                              ◄───────────  request()
    respond(request)          ───────────►  cohort(setup, response)
    settle(common)            ◄───────────  common(keep)
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import AlignmentError, FederationError, MessageError
from intarsia.site.align import Tokens
from intarsia.wire.alignment import TOKEN_BYTES, Cohort, halves
from intarsia.wire.container import pack, unpack
from intarsia.wire.study import Study

FALSE_POSITIVES = 1e-9


def _library() -> Any:
    try:
        import private_set_intersection.python as psi
    except ImportError:
        raise FederationError("Private set intersection needs pip install 'intarsia[psi]'.") from None
    return psi


def _two(study: Study) -> None:
    if len(study.names) != 2 or study.alignment.mode != "intersect":
        raise AlignmentError("Private set intersection is for intersecting studies of two sites.")


def _items(tokens: Tokens) -> list[str]:
    return [bytes(token).hex() for token in tokens.tokens]


class PsiSender:
    """The site that answers; it learns the common subjects from the receiver at the end."""

    def __init__(self, study: Study, tokens: Tokens):
        _two(study)
        self.tokens, self.psi = tokens, _library()
        self._server = self.psi.server.CreateWithNewKey(True)

    def setup(self, receiver_n: int) -> bytes:
        made = self._server.CreateSetupMessage(FALSE_POSITIVES, int(receiver_n), _items(self.tokens), self.psi.DataStructure.RAW)
        return bytes(made.SerializeToString())

    def respond(self, request: bytes) -> bytes:
        read = _parse(self.psi.Request(), request)
        try:
            return bytes(self._server.ProcessRequest(read).SerializeToString())
        except Exception:
            raise MessageError("The other site's request for the intersection is not usable.") from None

    def settle(self, site: str, study: Study, common: bytes) -> Cohort:
        """This site's selection from the tokens the receiver found in common; all must be this site's own."""
        header, arrays = unpack(common, "common-tokens")
        theirs = arrays.get("tokens")
        if header.get("study_hash") != study.hash or theirs is None or theirs.ndim != 2:
            raise MessageError("The list of common subjects is of another study or damaged.")
        if theirs.dtype != np.uint8 or theirs.shape[1] != TOKEN_BYTES or not len(theirs):
            raise MessageError("The list of common subjects has the wrong form.")
        keep = _member(self.tokens.tokens, theirs)
        if int(keep.sum()) != len(theirs):
            raise AlignmentError(
                f"{len(theirs) - int(keep.sum())} of {len(theirs)} subjects said to be common are not at site {site!r}."
            )
        return Cohort(site, study.hash, "intersect", int(keep.sum()), keep)


class PsiReceiver:
    """The site that asks and learns which of its own subjects are common."""

    def __init__(self, study: Study, tokens: Tokens):
        _two(study)
        self.tokens, self.psi = tokens, _library()
        self._client = self.psi.client.CreateWithNewKey(True)

    def request(self) -> bytes:
        return bytes(self._client.CreateRequest(_items(self.tokens)).SerializeToString())

    def cohort(self, site: str, study: Study, setup: bytes, response: bytes) -> Cohort:
        read = _parse(self.psi.ServerSetup(), setup), _parse(self.psi.Response(), response)
        try:
            found = self._client.GetIntersection(*read)
        except Exception:
            raise MessageError("The other site's answer about the intersection is not usable.") from None
        keep = np.zeros(self.tokens.n, dtype=bool)
        keep[np.asarray(found, dtype=np.int64)] = True
        if not keep.any():
            raise AlignmentError("The two sites have no subject in common. Check the ids and their canonical rules.")
        return Cohort(site, study.hash, "intersect", int(keep.sum()), keep)

    def common(self, study: Study, cohort: Cohort) -> bytes:
        assert cohort.keep is not None
        return pack("common-tokens", {"study_hash": study.hash}, {"tokens": self.tokens.tokens[cohort.keep]})


def _member(own: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which of this site's tokens are in the list."""
    listed = set(zip(*(half.tolist() for half in halves(theirs)), strict=True))
    return np.array([pair in listed for pair in zip(*(half.tolist() for half in halves(own)), strict=True)])


def _parse(message: Any, raw: bytes) -> Any:
    try:
        message.ParseFromString(raw)
    except Exception:
        raise MessageError("A message of the private set intersection is damaged.") from None
    return message
