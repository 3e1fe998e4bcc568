"""What functions of workers are called with."""

from typing import NamedTuple


class WorkerInfo(NamedTuple):
    """A worker's place among the workers."""

    num_workers: int
    worker_id: int
