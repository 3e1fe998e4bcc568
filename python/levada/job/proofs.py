"""Proves that both ends of a TCP connection belong to one job, whose secret only its ranks know.

Each end sends a new challenge, and proves that it knows the secret by a hash of both challenges. A stranger, or a
replay of another connection, is therefore never accepted as a rank, and the secret itself is never sent:

    listener to caller   a challenge
    caller to listener   its rank, a challenge, a proof
    listener to caller   a proof
"""

from __future__ import annotations

import hashlib
import hmac
import os

SECRET_BYTES = 32
CHALLENGE_BYTES = PROOF_BYTES = 16
_RANK_BYTES = 4
CALL_BYTES = _RANK_BYTES + CHALLENGE_BYTES + PROOF_BYTES
"""Size of the caller's message."""


def derive(secret: bytes, purpose: str) -> bytes:
    """Returns 16 bytes that depend on the secret but do not reveal it."""
    return hashlib.blake2s(purpose.encode(), key=secret, digest_size=16).digest()


def _prove(secret: bytes, side: bytes, *parts: bytes) -> bytes:
    key = derive(secret, "connection")
    return hashlib.blake2s(side + b"".join(parts), key=key, digest_size=PROOF_BYTES).digest()


class Caller:
    """The end that connects."""

    def __init__(self, secret: bytes, rank: int, greeting: bytes) -> None:
        """`greeting`: the listener's challenge."""
        self._secret = secret
        own = os.urandom(CHALLENGE_BYTES)
        self._said = greeting + rank.to_bytes(_RANK_BYTES, "little") + own
        self.call = self._said[CHALLENGE_BYTES:] + _prove(secret, b"caller", self._said)
        """The caller's message."""

    def is_answered_by(self, proof: bytes) -> bool:
        """Returns whether the listener is a rank of the job."""
        return hmac.compare_digest(proof, _prove(self._secret, b"listener", self._said))


class Listener:
    """The end that accepts one connection."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.greeting = os.urandom(CHALLENGE_BYTES)
        """The listener's first message."""

    def answer(self, call: bytes) -> tuple[int, bytes] | None:
        """Returns the rank that sent `call` and the answer to it, or None if no rank of the job sent it."""
        if len(call) != CALL_BYTES:
            return None
        said = self.greeting + call[:-PROOF_BYTES]
        if not hmac.compare_digest(call[-PROOF_BYTES:], _prove(self._secret, b"caller", said)):
            return None
        return int.from_bytes(call[:_RANK_BYTES], "little"), _prove(self._secret, b"listener", said)
