"""The metrics that `levada feed --metrics` exports on each rank."""

from __future__ import annotations

import os
import pathlib

from levada._levada import Membership
from levada.base.errors import EngineError, InvalidArgument
from levada.base.metrics import MetricsExporter, address_of
from levada.feed.feed import Feed

_MAX_PORT = 65535
_FILE_INTERVAL = 5.0
"""Seconds between two replacements of a file."""


def check_metrics(target: str, ranks: int) -> None:
    """Raises InvalidArgument if there are fewer ports than ranks, or if the file's folder is not writable."""
    address = address_of(target, "--metrics")
    if address is None:
        path = pathlib.Path(target)
        if not os.access(path.absolute().parent, os.W_OK) or (path.exists() and not path.is_file()):
            raise InvalidArgument(f"--metrics {target} cannot be written; name a file in a folder that can be")
    elif not 1 <= address[1] <= _MAX_PORT - (ranks - 1):
        raise InvalidArgument(
            f"--metrics {target}: ports range from 1 to {_MAX_PORT}, and each further rank of a host uses the next one"
        )


def start_metrics(target: str, job: Membership, feed: Feed) -> MetricsExporter:
    """Starts exporting this rank's metrics, at the port after those of the host's lower ranks, or to a file, which is
    named after the rank if there are several. Raises EngineError if that fails."""
    own: str | pathlib.Path
    address = address_of(target, "--metrics")
    if address is None:
        path = pathlib.Path(target)
        own = path if job.size == 1 else path.with_name(f"{path.stem}.rank{job.rank}{path.suffix}")
    else:
        own = f"{address[0]}:{address[1] + job.host_of[: job.rank].count(job.host_of[job.rank])}"
    try:
        return MetricsExporter(own, feed, every=_FILE_INTERVAL, labels={"rank": str(job.rank)})
    except OSError as error:
        raise EngineError(f"--metrics: cannot listen on {own}: {error.strerror or error}; choose another port") from error
