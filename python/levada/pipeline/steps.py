"""The stages of a pipeline, as values that can be sent to other processes."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from levada._levada import Graph, OpenContext
from levada.base.checks import check_function, flag, whole_number
from levada.base.errors import InvalidArgument
from levada.base.iterators import Ended
from levada.corpus.corpus import Corpus
from levada.pipeline.lines import ByteRanges
from levada.pipeline.sources import SourceOpener, describe, divides_itself


class Step(NamedTuple):
    """A recipe for a stage. Can be pickled."""

    operation: str
    name: str
    inputs: tuple[int, ...]
    arguments: dict[str, Any]


class Elsewhere:
    """Replaces a stage's argument in processes that do not run the stage, so that the argument is not sent."""

    def __init__(self, divides: str) -> None:
        self.divides = divides

    def __call__(self, *_: Any) -> Any:
        raise AssertionError("a stage is run in a process that it was not placed in")


_FUNCTIONS = ("function", "predicate", "length")
_WHOLE_NUMBERS = (
    "branches",
    "buffer",
    "count",
    "depth",
    "max_documents",
    "max_tokens",
    "pad_to",
    "seed",
    "sequence",
    "size",
    "threads",
    "times",
)


def checked_arguments(operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a stage, with integers as int. Raises InvalidArgument, naming the argument, for a value
    of the wrong type."""
    checked = dict(arguments)
    for key, value in arguments.items():
        name = f"{key} of {operation}()"
        if key in _FUNCTIONS:
            check_function(name, value)
        elif key == "drop_last":
            checked[key] = flag(name, value)
        elif key in _WHOLE_NUMBERS and value is not None:
            checked[key] = whole_number(name, value)
            if key == "seed" and not 0 <= checked[key] < 2**64:
                raise InvalidArgument(f"{name} must be from 0 to 2**64 - 1, got {value}")
    return checked


class Stage:
    """A stage and its inputs. Immutable."""

    def __init__(self, operation: str, name: str | None, inputs: tuple[Stage, ...], arguments: dict[str, Any]) -> None:
        if not isinstance(name, (str, type(None))):
            raise InvalidArgument(f"name of {operation}() must be a str, got {name!r}")
        self.operation = operation
        self.name = name
        self.inputs = inputs
        self.arguments = arguments


def _inputs_first(end: Stage) -> list[Stage]:
    """Returns all stages, inputs first."""
    found: dict[int, Stage] = {}
    waiting: list[tuple[Stage, bool]] = [(end, False)]
    while waiting:
        stage, is_ready = waiting.pop()
        if id(stage) in found:
            continue
        if is_ready:
            found[id(stage)] = stage
        else:
            waiting.append((stage, True))
            waiting.extend((before, False) for before in reversed(stage.inputs))
    return list(found.values())


def steps_of(end: Stage) -> list[Step]:
    """Returns the stages with their names. Default names are "map", "map_2", ..."""
    stages = _inputs_first(end)
    names = {stage.name for stage in stages if stage.name is not None}
    numbers = {id(stage): at for at, stage in enumerate(stages)}
    steps = []
    for stage in stages:
        name = stage.name or _unused(stage.operation, names)
        names.add(name)
        steps.append(Step(stage.operation, name, tuple(numbers[id(before)] for before in stage.inputs), stage.arguments))
    return steps


def _unused(name: str, names: set[str]) -> str:
    """Returns the name, with a number appended if it is already used."""
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in names)


_WITH_STATE = ("source", "flat_map", "transform")
"""Operations on iterables that may have a state_dict()."""


def build(steps: Iterable[Step], on_error: str = "raise", allow_pickle: bool = False) -> Graph:
    """Returns the graph of these steps. `on_error`: the default of the stages. `allow_pickle`: applies to the states of
    iterables."""
    made: list[Any] = []
    for step in steps:
        inputs = [made[at] for at in step.inputs]
        arguments = dict(step.arguments)
        if "on_error" in arguments:
            arguments["on_error"] = arguments["on_error"] or on_error
        if step.operation in _WITH_STATE:
            arguments["allow_pickle"] = allow_pickle
        if step.operation == "source":
            made.append(_source(step.name, **arguments))
        elif step.operation == "fork":
            made.append(inputs[0].fork(name=step.name, **arguments))
        elif step.operation == "branch":
            made.append(inputs[0][arguments["index"]])
        else:
            made.append(Graph.stage(step.operation, inputs, arguments, step.name))
    return cast(Graph, made[-1])


def _source(name: str, source: Any, allow_pickle: bool, ended: Ended | None = None) -> Graph:
    if isinstance(source, Corpus):
        return Graph.stage("corpus", [], {"tensors": source.tensors, "options": source.options()}, name)
    if isinstance(source, Elsewhere):
        arguments = {"open": source, "what": "elsewhere", "divides": source.divides}
    else:
        opener = SourceOpener(source, ended or Ended())
        arguments = {"open": opener, "what": describe(source), "divides": divides_itself(source)}
    return Graph.stage("source", [], {**arguments, "allow_pickle": allow_pickle}, name)


class FieldLength:
    """Returns the length of a field of a dict."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __call__(self, item: Any) -> int:
        return len(item[self.field])


class Transformer:
    """Opens a transform by calling the user's function with only the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, inputs: list[Iterator[Any]], _: OpenContext) -> Any:
        return self.function(*inputs)


_DECISIVE = {
    "batch": ("size",),
    "bucket_batch": ("boundaries", "size", "max_tokens"),
    "interleave": ("weights", "seed"),
    "pack": ("sequence", "method", "buffer", "pad_to", "max_documents", "tokens"),
    "shuffle": ("buffer", "seed"),
    "skip": ("count",),
}
"""The parameters, by operation, that decide a stage's items."""
_ENDING = {"batch": ("drop_last",), "bucket_batch": ("drop_last",), "take": ("count",), "repeat": ("times",)}
"""The parameters that decide only how a stage ends."""
_PASS_ON = ("batch", "cache", "dispatch", "filter", "fullsync", "map", "prefetch", "shard", "take", "unbatch")
"""Stages that end when their input does, and make the same items before that wherever it ends."""


def parameters_of(steps: Sequence[Step]) -> list[str]:
    """Returns for each stage the parameters that must be the same in a run that resumes. Those of from_lines() include
    a digest of its files."""
    texts = []
    for at, step in enumerate(steps):
        is_passed_on = all(each.operation in _PASS_ON for each in steps[at + 1 :])
        names = _DECISIVE.get(step.operation, ()) + (() if is_passed_on else _ENDING.get(step.operation, ()))
        texts.append(_parameters_of(step, names))
    return texts


def _parameters_of(step: Step, names: Sequence[str]) -> str:
    given = {name: step.arguments[name] for name in names}
    if (weights := given.get("weights")) and (total := sum(weights)) > 0:
        given["weights"] = [round(weight / total, 12) for weight in weights]
    source = step.arguments.get("source")
    if isinstance(source, ByteRanges):
        given = {"range_bytes": source.size, "files": source.sampled}
    return ", ".join(f"{name}={value}" for name, value in given.items())


_FORWARD = ("batch", "filter", "map", "take")
"""Stages that take no items ahead, unless they have threads, and yield at most one item for each that they take."""


def can_rebatch(steps: list[Step], at: int) -> bool:
    """Returns whether the size of a batch() may differ in a run without workers that resumes: no stage after it makes
    earlier items again."""
    forward = all(step.operation in _FORWARD and not step.arguments.get("threads") for step in steps[at:])
    return steps[at].operation == "batch" and forward


_ONE_EACH = ("map", "cache", "prefetch", "dispatch", "fullsync")


def takes_turns(end: Stage, on_error: str) -> bool:
    """Returns whether item j of rank r of R is item j * R + r of a single rank. This requires a shard that deals items
    in turn, followed only by stages that make one item from each item. `on_error`: the default of the stages."""
    stage = end
    while stage.operation in _ONE_EACH and (stage.arguments.get("on_error") or on_error) == "raise":
        stage = stage.inputs[0]
    if stage.operation != "shard" or any(each.operation == "shard" for each in _inputs_first(stage.inputs[0])):
        return False
    before = stage.inputs[0]
    return before.operation != "source" or divides_itself(before.arguments["source"]) != "in parts"


def warn_of_copies(steps: list[Step], roles: dict[str, str], workers: int) -> None:
    """Warns if several workers each yield all items, or each count items that should be counted together."""
    if workers < 2:
        return
    if all(step.operation not in ("dispatch", "shard") for step in steps) and "dispatcher" not in roles.values():
        warnings.warn(
            f"nothing divides the items of {' > '.join(step.name for step in steps)} among its {workers} workers, so that each "
            "yields all of them; put shard() after the source, or dispatch() where the workers' part begins",
            stacklevel=5,
        )
    for step in steps:
        if step.operation in ("take", "skip") and roles[step.name] == "worker":
            warnings.warn(
                f"{step.name} counts the items of each of the {workers} workers, and not all items; put it before dispatch(), "
                "or pass ordered=True",
                stacklevel=5,
            )
