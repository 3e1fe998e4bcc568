"""The random generators of a process: Python's, numpy's and torch's."""

from __future__ import annotations

import hashlib
import random
import sys

_BYTES_OF_SEED = 7
_NUMPY_SEEDS = 1 << 32


def seed_of_generators() -> int:
    """Returns a number that depends on the states of all generators, without drawing from them."""
    numpy = sys.modules.get("numpy")
    digest = hashlib.blake2b(repr(random.getstate()).encode(), digest_size=_BYTES_OF_SEED)
    if numpy is not None:
        state = numpy.random.get_state(legacy=True)
        digest.update(repr((state[0], state[2:])).encode() + state[1].tobytes())
    torch = sys.modules.get("torch")
    if torch is not None:
        digest.update(torch.get_rng_state().numpy().tobytes())
    return int.from_bytes(digest.digest(), "little")


def seed_generators(seed: int) -> None:
    """Seeds all of them."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % _NUMPY_SEEDS)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
