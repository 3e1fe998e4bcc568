"""The work of each process of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levada import _levada
from levada.corpus.corpus import Corpus
from levada.pipeline.options import Options
from levada.pipeline.sources import divides_itself
from levada.pipeline.steps import Elsewhere, Step

_CALLABLES = {"source": "source", "map": "function", "filter": "predicate", "flat_map": "function", "transform": "open"}
"""The argument, by operation, that must be sent only to the process that runs the stage."""


@dataclass
class Task:
    """The work of one process."""

    role: str
    """ "dispatcher" or "worker"."""
    number: int
    """Index of a worker, from 0."""
    steps: list[Step]
    options: Options
    place: tuple[int, int]
    """The rank that runs the pipeline, and the number of ranks."""

    @property
    def title(self) -> str:
        return "the dispatching process" if self.role == "dispatcher" else f"worker {self.number}"


def tasks_of(
    steps: Sequence[Step], roles: Mapping[str, str], options: Options, place: tuple[int, int], *, dispatches: bool
) -> list[Task]:
    """Returns the tasks of all processes but this one. `roles`: kind of process that runs each stage, by name."""
    processes = [("dispatcher", 0)] if dispatches else []
    processes += [("worker", number) for number in range(options.workers)]
    return [
        Task(role, number, [_sent(step, role, roles[step.name]) for step in steps], options, place) for role, number in processes
    ]


def tokenize_texts(steps: Sequence[Step], roles: Mapping[str, str]) -> None:
    """Tokenizes the corpora that workers read. Otherwise, the workers would wait for each other to do so."""
    for step in steps:
        source = step.arguments.get("source")
        if isinstance(source, Corpus) and roles[step.name] == "worker":
            _levada.open_corpus(**source.options())


def _sent(step: Step, role: str, runs_it: str) -> Step:
    """Returns the step for a process of `role`, without the arguments that only other processes need."""
    name = _CALLABLES.get(step.operation)
    if name is None or runs_it == role:
        return step
    divides = divides_itself(step.arguments["source"]) if step.operation == "source" else "no"
    return step._replace(arguments={**step.arguments, name: Elsewhere(divides)})
