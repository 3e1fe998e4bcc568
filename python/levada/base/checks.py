"""Checks of arguments. A wrong value raises InvalidArgument, and a wrong type InvalidType, which is also a
TypeError."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

from levada.base.errors import InvalidArgument, InvalidType

_MAX_SECONDS = 1e8


def check_seconds(name: str, seconds: Any) -> None:
    """Raises InvalidArgument unless `seconds` is a timeout that every wait supports."""
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not is_number or not 0 < float(seconds) <= _MAX_SECONDS:
        error = InvalidArgument if is_number else InvalidType
        raise error(f"{name} must be a number of seconds, positive and at most {_MAX_SECONDS:.0e}, got {seconds!r}")


def whole_number(name: str, number: Any) -> int:
    """Returns `number` as an int. Raises InvalidType for a bool and for anything that is not an integer."""
    if not isinstance(number, bool):
        try:
            return operator.index(number)
        except TypeError:
            pass
    raise InvalidType(f"{name} must be a whole number, got {number!r}")


def flag(name: str, value: Any) -> bool:
    """Returns `value` as a bool. Raises InvalidType for anything but a bool, a number and None: the text "False" is
    true, and so is a sampler in the place of `shuffle`."""
    if hasattr(type(value), "__bool__"):
        return bool(value)
    raise InvalidType(f"{name} must be True or False, got {value!r}")


def epoch_number(epoch: Any, end: int, end_text: str) -> int:
    """Returns `epoch` as an int. Raises InvalidArgument unless it is an integer in [0, `end`)."""
    number = whole_number("epoch", epoch)
    if not 0 <= number < end:
        raise InvalidArgument(f"epoch must be from 0 to {end_text} - 1, got {number}")
    return number


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        error = InvalidArgument if isinstance(value, str) else InvalidType
        raise error(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_function(name: str, function: Any) -> None:
    if not callable(function):
        raise InvalidType(f"{name} must be a function, got {function!r}")
