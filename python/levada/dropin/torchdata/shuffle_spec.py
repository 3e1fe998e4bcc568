"""Descriptions of how a loader shuffles, for subclasses to define."""

from abc import ABC


class ShuffleSpec(ABC):
    """Base class of descriptions of a shuffle. Levada does not use them."""
