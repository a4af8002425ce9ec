"""Three holders of shares: who holds what of whose columns, and what each computes of it. Plain arithmetic, no secrets kept.

The holders stand in a circle. Columns X are split into three shares, X = x₀ + x₁ + x₂ modulo 2⁶⁴; holder h has x_h and
x_{h+1}. For columns X and Y

    XᵀY  =  Σ_h  x_hᵀ(y_h + y_{h+1}) + x_{h+1}ᵀy_h ,

and holder h can compute its term. A site that holds shares itself knows its own columns, so that one share (the one it does not
hold) may be zero: i sends x_i to the holder before it and makes x_{i+1} from a seed it gives to the next one. A site that holds
none makes x₀ and x₁ from seeds and sends x₂ to the two holders that need it. One holder alone sees uniform numbers; any two
have all shares.

*Own blocks.* A site states the products G of its own columns. That they belong to the columns it shared is checked by opening
w = Xr + z for weights r that are drawn after it has committed to everything, and a uniform z that it has shared as well:
wᵀw must be rᵀGr + rᵀa + aᵀr + b, where a = Xᵀz and b = zᵀz were shared before r was known. w is uniform, the right hand side
follows from it and G, so nothing is learned; the site takes no part in the opening, so it cannot help a lie.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from intarsia.wire.ring import Ring, product
from intarsia.wire.study import Study
from intarsia.wire.study_parts import SERVER

CHECKS = 16  # check columns per site, and weights r of an own block
TAIL = 2**40  # number of the stream that hides a and b; those of blocks are below
_ZEROS = memoryview(bytes(1 << 20))


def stream(secret: bytes, number: int, shape: tuple[int, ...]) -> Ring:
    """Uniform numbers of the ring: ChaCha20 under a secret, one nonce per message number."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    out = np.empty(shape, dtype="<u8")
    cipher = Cipher(ChaCha20(secret, bytes(4) + number.to_bytes(12, "little")), None).encryptor()
    view = out.reshape(-1).data.cast("B")
    for a in range(0, view.nbytes, len(_ZEROS)):
        piece = view[a : a + len(_ZEROS)]
        cipher.update_into(_ZEROS[: piece.nbytes], piece)
    return out.astype(np.uint64, copy=False)


def derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes for one purpose; whoever is shown them learns nothing of the secret or of those for another purpose."""
    return hashlib.sha256(f"intarsia gram {purpose} 1|".encode() + secret).digest()


def commitment(secret: bytes) -> str:
    """What a site states of 32 secret bytes before it opens them."""
    return hashlib.sha256(b"intarsia gram commitment 1|" + secret).hexdigest()


def check_weights(seed: bytes, columns: int) -> Ring:
    """The secret weights (columns × CHECKS) by which a site makes its check columns of its own."""
    return stream(seed, 0, (columns, CHECKS))


def opening_weights(coins: Mapping[str, bytes], site: str, columns: int) -> Ring:
    """r (columns × CHECKS) for a site's own block: made of all sites' coins, so known to nobody before the last one is shown."""
    text = b"|".join(name.encode() + b"=" + coins[name] for name in sorted(coins))
    return stream(derived(text, f"opening of {site}"), 0, (columns, CHECKS))


def digest(numbers: Ring) -> bytes:
    """What a site commits to before a share is used. The share is uniform by itself, so its digest tells nothing."""
    return hashlib.sha256(numbers.astype("<u8", copy=False).tobytes()).digest()


def times(A: Ring, W: Ring) -> Ring:
    """A·W modulo 2⁶⁴ for few columns of W."""
    return product(np.ascontiguousarray(A.T), W)


@dataclass(frozen=True)
class Cut:
    """One message's subjects: rows start to stop of the agreed order, all of one fold."""

    fold: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def cuts(folds: tuple[int, ...], rows: int | None) -> tuple[Cut, ...]:
    """The subjects in messages of at most so many; `folds` are the numbers of subjects by fold, in the agreed order."""
    out, at = [], 0
    for fold, n in enumerate(folds):
        step = rows or n
        out += [Cut(fold, start, min(start + step, at + n)) for start in range(at, at + n, step)]
        at += n
    return tuple(out)


@dataclass(frozen=True)
class Sharing:
    """The sites in the order of the roster, and the three holders in a circle (two sites and the server, or three sites)."""

    sites: tuple[str, ...]
    holders: tuple[str, ...]

    @classmethod
    def of(cls, study: Study) -> "Sharing":
        return cls(study.names, study.holders)

    @property
    def server_holds(self) -> bool:
        return SERVER in self.holders

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """Pairs of sites whose columns are multiplied, by their places on the roster ("0-1")."""
        number = len(self.sites)
        return {f"{i}-{j}": (self.sites[i], self.sites[j]) for i in range(number) for j in range(i + 1, number)}

    def held(self, holder: str) -> tuple[int, int]:
        """The numbers of the two shares that a holder has of everybody's columns."""
        h = self.holders.index(holder)
        return h, (h + 1) % 3

    def seeded(self, site: str) -> tuple[int, ...]:
        """The shares that a site makes from seeds."""
        return ((self.holders.index(site) + 1) % 3,) if site in self.holders else (0, 1)

    def sent(self, site: str) -> int:
        """The share that a site sends as numbers."""
        return self.holders.index(site) if site in self.holders else 2

    def openers(self, site: str) -> dict[str, int]:
        """Who opens a site's w, and by which share: all holders but itself."""
        if site not in self.holders:
            return {holder: h for h, holder in enumerate(self.holders)}
        i = self.holders.index(site)
        return {self.holders[(i + 1) % 3]: (i + 1) % 3, self.holders[(i + 2) % 3]: i}

    def opened_by(self, holder: str) -> tuple[str, ...]:
        """The sites whose w a holder opens, in the order of the roster."""
        return tuple(site for site in self.sites if holder in self.openers(site))

    def tail_to(self, site: str) -> str:
        """The holder that gets a site's a and b as numbers, less the others' streams: the one that opens the share sent."""
        return next(holder for holder, share in self.openers(site).items() if share == self.sent(site))


def terms(sharing: Sharing, holder: str, shares: Mapping[str, Mapping[int, Ring]]) -> dict[str, Ring]:
    """A holder's terms of all products between sites; `shares` are those it holds, by site and number (zero ones left out)."""
    h, after = sharing.held(holder)
    out = {}
    for name, (first, second) in sharing.pairs.items():
        x, y = shares[first], shares[second]
        total: Ring | None = None
        if h in x:
            right = y[h] + y[after] if h in y and after in y else y[h if h in y else after]
            total = product(x[h], np.asarray(right))
        if after in x and h in y:
            more = product(x[after], y[h])
            total = more if total is None else total + more
        assert total is not None  # two sites' zero shares are different ones
        out[name] = total
    return out


def opening(share: Ring, weights: Ring, mask: Ring) -> Ring:
    """A holder's part of w: its share of the columns (check columns left out) times r, and its part of z."""
    return np.asarray(times(share[:, : len(weights)], weights) + mask)


def expected_opening(G: Ring, weights: Ring) -> Ring:
    """rᵀGr."""
    return times(np.ascontiguousarray(times(G, weights).T), weights)


def tail_part(tail: Ring, weights: Ring) -> Ring:
    """Of shares of a and b, stacked ((columns + CHECKS) × CHECKS): the share of rᵀa + aᵀr + b."""
    c = len(weights)
    crossed = product(weights, np.ascontiguousarray(tail[:c]))
    return np.asarray(crossed + crossed.T + tail[c:])
