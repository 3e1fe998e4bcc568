"""`levada feed module:callable`: feeds the iterable that the callable returns to every rank of a mesh, and reports."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from levada import _levada
from levada._levada import Digests, Membership, Mesh
from levada.base.checks import check_seconds
from levada.base.errors import EngineError, Error, InvalidArgument, SourceError
from levada.base.exception_texts import failure_text
from levada.cli.metrics import check_metrics, start_metrics
from levada.cli.output import Parser, write
from levada.feed.feed import Feed
from levada.feed.history import rank_report
from levada.feed.readers import ITERATE
from levada.job.job import join
from levada.pipeline.pipeline import Pipeline

_CALLABLE = re.compile(r"([A-Za-z_][\w.]*|[\w./~-]+\.py):[A-Za-z_][\w.]*")
_NAMES = ("--text-field", "--eod")
"""Options of a feed of files whose values are names in the data, which may look like a callable."""
_FAILED, _BAD_USAGE, _INTERRUPTED = 1, 2, 130
_MAX_RANKS = 256


def names_callable(arguments: list[str]) -> bool:
    """Returns whether this module handles a `levada feed` with these arguments."""
    return any(
        _CALLABLE.fullmatch(argument) and before not in _NAMES and not os.path.exists(argument)
        for before, argument in itertools.pairwise(["", *arguments])
    )


def feed(arguments: list[str]) -> int:
    """Runs the command as a rank of a job, or with ranks that it starts. Returns the exit status."""
    try:
        options = _parse(arguments)
        check_seconds("--timeout", options.timeout)
        place = _levada.place()
        if place is None or place[0] == 0:
            _levada.check_history_files(options.report, options.trace)
        mesh = _mesh_of(options)
        if options.metrics:
            check_metrics(options.metrics, mesh.size)
    except Error as error:
        _levada.report_failed_start(type(error).__name__, str(error))
        return _BAD_USAGE if isinstance(error, InvalidArgument) else _FAILED
    try:
        if place is not None:
            signal.signal(signal.SIGINT, _interrupt_once)
            return _feed_as_rank(options, mesh)
        if mesh.size > _MAX_RANKS:
            raise InvalidArgument(f"the mesh has {mesh.size} ranks, but one machine starts at most {_MAX_RANKS}")
        status, message = _levada.run_local(mesh.size, [sys.executable, "-m", "levada", "feed", *arguments])
        if message:
            print(f"levada: {message}", file=sys.stderr)
        return status
    except Error as error:
        _levada.report_error(type(error).__name__, str(error), getattr(error, "rank", -1))
        return _BAD_USAGE if isinstance(error, InvalidArgument) else _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED


def _interrupt_once(*_: object) -> None:
    """Raises KeyboardInterrupt, but only once. A rank on this machine receives the signal from the terminal and again
    from its launcher, and the second one would interrupt its shutdown."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="levada feed",
        description="Deliver the batches of an iterable to every rank of a mesh. Joins a launched job (torchrun, SLURM, "
        "MPI); otherwise starts its own ranks on this machine.",
        epilog="Example: levada feed examples.feed:batches --mesh dp=2 --json",
    )
    parser.add_argument("source", metavar="MODULE:CALLABLE", help="returns the iterable; called on each reader")
    parser.add_argument("--mesh", default="", metavar="dp=2,tp=2", help="named axes of ranks [the job's ranks as dp]")
    parser.add_argument("--data-axes", default="", metavar="AXES", help="axes on which batches differ [dp, dp_shard, ...]")
    parser.add_argument("--readers", default="one", metavar="WHO", help="one, all, host, spread, or axes such as dp,pp")
    parser.add_argument("--iterate", choices=ITERATE, help="thread that iterates on each reader [depends on the source]")
    parser.add_argument("--divide", default="deal", choices=("deal", "split"), help="deal batches along the data axes, or split them")
    parser.add_argument("--batch", type=int, metavar="N", help="rows to split or samples to balance per dp rank")
    parser.add_argument("--balance", metavar="COST", help="divide the samples of each step by tokens, flops or 'field(NAME)'")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="divide a rank's samples over micro-batches of at most N tokens")
    parser.add_argument("--tail", default="drop", choices=("drop", "pad", "short"), help="handling of an incomplete round")
    parser.add_argument("--steps", type=int, metavar="N", help="maximum number of steps")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="steps to skip at the start")
    parser.add_argument("--depth", type=int, default=0, metavar="N", help="maximum batches that a rank may lag its reader")
    parser.add_argument("--timeout", type=_seconds, default=1800.0, metavar="TIME", help="timeout of each wait [30m]")
    parser.add_argument("--allow-pickle", action="store_true", help="send objects of any class as pickles")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes per reader of a levada.Pipeline")
    parser.add_argument("--report", default="", metavar="FILE.html", help="write a page that shows where time was spent")
    parser.add_argument("--trace", default="", metavar="FILE.json", help="write a trace of all ranks, for Perfetto")
    parser.add_argument("--metrics", default="", metavar="[HOST:]PORT|FILE", help="export metrics during the run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--help-all", action="help", help=argparse.SUPPRESS)
    for before, argument in itertools.pairwise(["", *arguments]):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            parser.error(f"{argument or before} has no value; pass one, or omit the option")
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    try:
        return _levada.parse_duration(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _mesh_of(options: argparse.Namespace) -> Mesh:
    if options.data_axes and not options.mesh:
        raise InvalidArgument("--data-axes names axes of --mesh, which is missing")
    if not options.mesh:
        return Mesh.from_env()
    return Mesh.parse(options.mesh, data_axes=options.data_axes.split(",") if options.data_axes else None)


def _feed_as_rank(options: argparse.Namespace, mesh: Mesh) -> int:
    job = join()
    source = _open_on_readers(job, mesh, options)
    passing = Feed(
        source,
        mesh,
        readers=options.readers,
        iterate=options.iterate,
        divide=options.divide,
        batch_size=options.batch,
        balance=options.balance,
        max_tokens=options.max_tokens,
        tail=options.tail,
        prefetch=options.depth,
        skip=options.skip,
        max_steps=options.steps,
        timeout=options.timeout,
        allow_pickle=options.allow_pickle,
        record=bool(options.report or options.trace),
    )
    digests = Digests()
    exporting = start_metrics(options.metrics, job, passing) if options.metrics else contextlib.nullcontext()
    try:
        with exporting, warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: _print_warning(message, job.rank)
            for batch in passing:
                digests.add(batch, allow_pickle=options.allow_pickle)
    except Error as error:
        # If all ranks know of the failure, they can still write the report and the trace.
        if passing.end is not None and passing.end.cause == "failed":
            try:
                _write_history(passing, options, str(error))
            except Error as second:
                if job.rank == 0:
                    print(f"levada: {second}", file=sys.stderr)
        raise
    mine = {**rank_report(job, mesh, options.readers, passing.stats), "fields": digests.describe()}
    gathered = _levada.agree(job, json.dumps(mine).encode(), options.timeout, "gathering the report")
    ranks = [json.loads(each) for each in gathered]
    _write_history(passing, options)
    _check_peers(mesh, options, ranks)
    if job.rank == 0:
        report = _report(job, mesh, options, passing, ranks)
        write(json.dumps(report) if options.json else _text(options, report))
    return 0


def _print_warning(message: Warning | str, rank: int) -> None:
    if rank == 0:
        print(f"levada: {message}", file=sys.stderr)


def _check_peers(mesh: Mesh, options: argparse.Namespace, ranks: list[dict[str, Any]]) -> None:
    """Raises EngineError, the same on every rank, if ranks that share their data received different data."""
    shared = [name for name, _ in mesh.axes if name not in mesh.data_axes]
    for rank, report in enumerate(ranks):
        first = mesh.group(rank, shared)[0]
        expected, found = ranks[first]["fields"], report["fields"]
        for name in {**expected, **found}:
            if expected.get(name) != found.get(name):
                raise EngineError(
                    f"ranks {first} and {rank} should hold the same {_levada.printable(name)}, but theirs differ; "
                    f"{options.source} must yield the same on every rank that reads, or one rank reads: --readers one"
                )


def _write_history(passing: Feed, options: argparse.Namespace, error: str = "") -> None:
    if not passing.record:
        return
    page, trace = options.report or None, options.trace or None
    passing._write_history(page, trace, source=options.source, error=error)
    for what, path in (("report", page), ("trace", trace)):
        if path is not None and join().rank == 0:
            print(f"levada: the {what} is in {path}", file=sys.stderr)


def _open_on_readers(job: Membership, mesh: Mesh, options: argparse.Namespace) -> Iterable[Any] | None:
    """Returns the iterable on reading ranks. An error on one rank is raised on all. Collective."""
    source, problem = None, ("", "")
    try:
        function = _find(options.source)
        if mesh.size == job.size and job.rank in _levada.readers_of(options.readers, mesh, job.host_of):
            source = _call(options.source, function)
            if isinstance(source, Pipeline):
                source = source.run(options.workers, alone=True)
            elif options.workers != 0:
                kind = type(source).__name__
                raise InvalidArgument(f"--workers needs a levada.Pipeline, but {options.source} returned a {kind}")
    except Error as error:
        problem = (type(error).__name__, str(error))
    sent = _levada.agree(job, json.dumps(problem).encode(), options.timeout, "opening the data")
    for kind, message in map(json.loads, sent):
        if kind:
            raise InvalidArgument(message) if kind == "InvalidArgument" else SourceError(message)
    return source


def _find(name: str) -> Any:
    """Imports the module of "module:callable". Raises InvalidArgument if the module or the callable does not exist."""
    module, _, path = name.partition(":")
    if module.endswith(".py") and (os.sep in module or os.path.isfile(module)):
        folder, file = os.path.split(module)
        where = f", from the folder {folder}" if folder else ""
        raise InvalidArgument(f"{module} is a file; name its module, as in levada feed {file[:-3]}:{path}{where}")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            raise InvalidArgument(f"there is no module {module}, looked for in {os.getcwd()} and in the packages") from None
        raise SourceError(f"importing {module} failed: {_sentence(error)}") from None
    except Exception as error:
        raise SourceError(f"importing {module} failed: {_sentence(error)}") from None
    for step in path.split("."):
        found = getattr(found, step, None)
    if not callable(found):
        raise InvalidArgument(f"{module} has no callable {path}")
    return found


def _call(name: str, function: Any) -> Iterable[Any]:
    try:
        made: Iterable[Any] = function()
    except Exception as error:
        raise SourceError(f"{name} failed: {_sentence(error)}") from None
    if not isinstance(made, Iterable) and not hasattr(type(made), "__getitem__"):
        raise SourceError(f"{name} returned a {type(made).__name__}, which is not iterable")
    return made


def _sentence(error: BaseException) -> str:
    return " ".join(failure_text(error).split())


def _report(
    job: Membership, mesh: Mesh, options: argparse.Namespace, passing: Feed, ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "steps": passing.step,
        "samples": sum(ranks[rank]["samples"] for rank in mesh.group(0, mesh.data_axes)),
        "bytes_sent": sum(rank["bytes_sent"] for rank in ranks),
        "bytes_delivered": sum(rank["bytes"] for rank in ranks),
        "seconds": max(rank["seconds"] for rank in ranks),
        "source": options.source,
        "mesh": str(mesh),
        "engine": job.engine,
        "engine_choice": job.engine_choice,
        "readers": options.readers,
        "iterate": passing.iterate,
        "divide": options.divide,
        "end": passing.end.cause if passing.end else "left",
        "peers_identical": True,  # otherwise, _check_peers() would have raised
        "ranks": ranks,
        **({} if passing.balance_report is None else {"balance": passing.balance_report}),
    }


def _text(options: argparse.Namespace, report: dict[str, Any]) -> str:
    names = list(dict.fromkeys(name for rank in report["ranks"] for name in rank["fields"]))
    rows = [["rank", "coords", "batches", "bytes", "wait", *map(_levada.printable, names)]]
    for rank in report["ranks"]:
        coordinates = " ".join(f"{axis}{at}" for axis, at in rank["coords"].items()) or "-"
        digests = [rank["fields"].get(name, {"digest": "-"})["digest"][:8] for name in names]
        row = [rank["rank"], coordinates, rank["batches"], rank["bytes"], f"{1000 * rank['wait_s']:.1f} ms", *digests]
        rows.append([str(cell) for cell in row])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    ended = "the data ended after" if report["end"] == "exhausted" else "stopped after"
    return "\n".join(
        [
            f"{report['mesh'] or 'one rank'}: batches of {options.source}, over {report['engine_choice']}",
            "",
            *table,
            "",
            f"  data   {ended} {report['steps']} steps, in {report['seconds']:.2f} s",
            "  proof  ranks of one data coordinate hold the same data",
        ]
    )
