"""Makes the errors for unknown keyword arguments name the right ones."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_SYNONYMS = {
    "batch": ("batch_size",),
    "block_size": ("seq_length",),
    "collate": ("collate_fn",),
    "depth": ("prefetch",),
    "device_mesh": ("mesh",),
    "drop_last": ('tail="drop"',),
    "even_batches": ('tail="pad"', "pad_last=True"),
    "max_length": ("seq_length",),
    "max_seq_length": ("seq_length",),
    "num_workers": ("workers",),
    "process_group": ("group",),
    "sequence": ("seq_length",),
    "shuffle_seed": ("shuffle=True, seed=...",),
    "split_batches": ('divide="split"',),
    "steps": ("max_steps",),
    "torch_device_mesh": ("mesh",),
}
"""Other libraries' names for arguments, with Levada's. A function has at most one of the latter."""

_functions: dict[str, frozenset[str]] = {}
"""The arguments of the functions that explain_unknown() has wrapped, by function name."""


def explain_unknown(name: str, more: Collection[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function raise TypeError for an unknown keyword, naming the right argument or the function that has it.
    `name`: the function's name for users. `more`: keywords that it accepts in addition to those in its signature."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        known = frozenset(each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
        _functions[name] = known = known.union(more) - {"self"}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for given in kwargs:
                if given not in known:
                    raise TypeError(_why_unknown(name, given, known))
            return function(*args, **kwargs)

        return checked

    return decorate


def _why_unknown(function: str, given: str, known: Collection[str]) -> str:
    text = f"{function}() has no argument '{given}'"
    for synonym in _SYNONYMS.get(given, ()):
        if synonym.split("=")[0] in known:
            return f"{text}; did you mean {synonym}?"
    others = [other for other, arguments in _functions.items() if given in arguments]
    if others:
        return f"{text}; it is an argument of {' and of '.join(sorted(others))}"
    close = difflib.get_close_matches(given, known, n=1)
    return f"{text}; did you mean {close[0]}?" if close else text
