"""Arguments of the functions that workers call."""

from typing import NamedTuple


class WorkerInfo(NamedTuple):
    """A worker's index and the number of workers."""

    num_workers: int
    worker_id: int
