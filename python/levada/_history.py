"""What happened in a feed or a pipeline, as a page to look at and a trace for Perfetto."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from levada import _levada
from levada._errors import InvalidArgument
from levada._job import join
from levada._levada import Membership, Mesh

if TYPE_CHECKING:
    from levada._feed import Feed
    from levada._runs import Run

PathLike = str | os.PathLike[str]


def rank_report(job: Membership, mesh: Mesh, readers: str, stats: dict[str, Any]) -> dict[str, Any]:
    """What one rank was given."""
    return {
        "rank": job.rank,
        "coords": {name: mesh.coordinate(job.rank, name) for name, _ in mesh.axes},
        "batches": stats["batches"],
        "samples": stats["samples"],
        "bytes": stats["bytes"],
        "wait_s": stats["waited_seconds"],
        "seconds": stats["seconds"],
        "copied_batches": stats["copied_batches"],
        "reader": _levada.reads(readers, mesh, job.host_of, job.rank),
    }


def write_feed_history(
    feed: Feed, *, page: PathLike | None, trace: PathLike | None, source: str | None = None, error: str = ""
) -> None:
    """Writes, on rank 0, what all ranks did in the feed's last pass. Collective."""
    core = feed._last
    if core is None or not feed.record:
        raise InvalidArgument("nothing was recorded of this feed; make it with record=True and iterate it first")
    job = join(feed.group)
    mine = rank_report(job, feed.mesh, feed.readers, core.stats)
    mine["bytes_read"] = core.stats["bytes_read"]
    of_feed = {
        "mesh": str(feed.mesh),
        "engine": job.engine,
        "engine_choice": job.engine_choice,
        "readers": feed.readers,
        "steps": core.step,
        "end": (core.end or {"cause": "left"})["cause"],
        "batch": feed.batch,
        "balance": core.balance,
        "sequence": getattr(feed.source, "sequence", 0) if feed._is_corpus else 0,
        "source": source or f"a {type(feed.source).__name__}",
        "error": error,
    }
    _levada.write_feed_history(
        job,
        feed.mesh,
        of_feed,
        mine,
        core.trace,
        feed._pipeline_story(),
        page=_name(page),
        trace_file=_name(trace),
        timeout=feed.timeout,
    )


def write_pipeline_history(run: Run[Any], *, page: PathLike | None, trace: PathLike | None) -> None:
    story = run._story()
    if story is None:
        raise InvalidArgument("this pipeline has given no items yet; iterate it first")
    _levada.write_pipeline_history(story, page=_name(page), trace_file=_name(trace))


def _name(path: PathLike | None) -> str:
    return "" if path is None else os.fspath(path)
