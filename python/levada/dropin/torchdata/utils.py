"""Arguments of workers' functions."""

from typing import NamedTuple


class WorkerInfo(NamedTuple):
    """A worker's place among the workers."""

    num_workers: int
    worker_id: int
