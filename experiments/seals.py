"""What a seal of the key agreement costs: X25519 with ML-KEM-768 (what is used) beside X25519 alone (what was).

    python -m experiments.seals        # a second; prints one JSON object

Microseconds of processor time for one seal and one opening of 64 bytes, and the bytes of an offered key and of a seal.
"""

import json
from collections.abc import Callable
from time import process_time

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from intarsia.site.hybrid_seal import new_run_key, opened, public_half, seal

TIMES = 2000


def microseconds(function: Callable[[], object], times: int) -> float:
    begin = process_time()
    for _ in range(times):
        function()
    return round((process_time() - begin) / times * 1e6, 1)


def measure(times: int = TIMES) -> dict[str, dict[str, float]]:
    content, context, run_key, curve = bytes(64), b"benchmark", new_run_key(), X25519PrivateKey.generate()
    public, alone = public_half(run_key), Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
    sealed, before = seal(content, public, context), alone.encrypt(content, curve.public_key(), context)
    return {
        "hybrid": {
            "key_bytes": len(public), "sealed_bytes": len(sealed),
            "seal_us": microseconds(lambda: seal(content, public, context), times),
            "open_us": microseconds(lambda: opened(sealed, run_key, context), times),
        },
        "curve alone": {
            "key_bytes": 32, "sealed_bytes": len(before),
            "seal_us": microseconds(lambda: alone.encrypt(content, curve.public_key(), context), times),
            "open_us": microseconds(lambda: alone.decrypt(before, curve, context), times),
        },
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure()))
