"""How a loader shuffles, for subclasses to say."""

from abc import ABC


class ShuffleSpec(ABC):
    """The base of descriptions of a shuffle. Levada does not use them."""
