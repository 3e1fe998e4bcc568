"""Writes the activity of all ranks in a pass of a feed, as an HTML page and as a trace for Perfetto."""

from __future__ import annotations

import os
from typing import Any

from levada import _levada
from levada._levada import Membership, Mesh, Pass
from levada.corpus.corpus import PathLike
from levada.feed.passes import JoinedFeed
from levada.feed.stats import FeedStats


def rank_report(job: Membership, mesh: Mesh, readers: str, stats: FeedStats) -> dict[str, Any]:
    """Returns the report on one rank's batches."""
    return {
        "rank": job.rank,
        "coords": {name: mesh.coordinate(job.rank, name) for name, _ in mesh.axes},
        "batches": stats.batches,
        "samples": stats.samples,
        "bytes": stats.bytes,
        "wait_s": stats.waited_seconds,
        "seconds": stats.seconds,
        "copied_batches": stats.copied_batches,
        "bytes_sent": stats.bytes_sent,
        "reader": job.rank in _levada.readers_of(readers, mesh, job.host_of),
    }


def write_feed_history(
    joined: JoinedFeed,
    core: Pass,
    stats: FeedStats,
    pipeline: bytes | None,
    data: dict[str, Any],
    *,
    page: PathLike | None,
    trace: PathLike | None,
    error: str = "",
) -> None:
    """Writes the files on rank 0. Collective. `stats`: this rank's counts of the pass. `data`: the name of the source,
    its tokens per sample (or 0), and the samples per dp rank per step."""
    feed, job = joined
    mine = rank_report(job, feed.mesh, feed.readers, stats)
    mine["bytes_read"] = stats.bytes_read
    of_feed = {
        **data,
        "mesh": str(feed.mesh),
        "engine": job.engine,
        "engine_choice": job.engine_choice,
        "readers": feed.readers,
        "steps": core.step,
        "end": (core.end or {"cause": "left"})["cause"],
        "balance": core.balance,
        "error": error,
    }
    _levada.write_feed_history(
        job,
        feed.mesh,
        of_feed,
        mine,
        core.trace,
        pipeline,
        page=os.fspath(page or ""),
        trace_file=os.fspath(trace or ""),
        timeout=feed.timeout,
    )
