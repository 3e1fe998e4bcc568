"""Data loaders for DLIO, which finds them by `reader.data_loader_classname`: its own torch loader and Levada, both over its
own data set and readers."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import levada
import psutil
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.data_loader.torch_data_loader import TorchDataLoader, TorchDataset


def used_by(process: psutil.Process) -> tuple[float, int]:
    """Returns the seconds of processor time of a process and the bytes that it has read by system calls."""
    return sum(process.cpu_times()[:4]), process.io_counters().read_chars


class Measured(BaseDataLoader):
    """Notes the processor time and the bytes read of this rank and its workers, from the opening of the loader to the end
    of the epoch."""

    def open(self) -> None:
        raise NotImplementedError

    def read(self) -> None:
        if self.dataset_type is DatasetType.TRAIN:
            self._begun = time.monotonic(), *used_by(psutil.Process())
        self.open()

    def finalize(self) -> None:
        if self.dataset_type is not DatasetType.TRAIN:
            return
        begun, cpu, read = self._begun
        seconds = time.monotonic() - begun
        own = psutil.Process()
        each = [used_by(process) for process in (own, *own.children(recursive=True))]
        used = {"seconds": seconds, "cpu": sum(of[0] for of in each) - cpu, "read": sum(of[1] for of in each) - read}
        pathlib.Path(self._args.output_folder, f"used-{self._args.my_rank}.json").write_text(json.dumps(used))

    @contextlib.contextmanager
    def placed(self, rank: int, size: int) -> Iterator[None]:
        """Sets the place by which DLIO divides the samples."""
        args = self._args
        own = args.my_rank, args.comm_size
        args.my_rank, args.comm_size = rank, size
        args.reconfigure(self.epoch_number)
        try:
            yield
        finally:
            args.my_rank, args.comm_size = own


class NoLoader(Measured):
    """Yields batches that exist already: the emulation alone."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.SYNTHETIC)

    def open(self) -> None:
        pass

    def next(self) -> Iterator[Any]:
        for _ in range(self.num_samples // self.batch_size // self._args.comm_size):
            yield [self._args.resized_image] * self.batch_size


class TorchDataParallel(TorchDataLoader, Measured):  # type: ignore[misc]
    """DLIO's torch loader: each rank reads its own part."""

    def open(self) -> None:
        TorchDataLoader.read(self)

    read, finalize = Measured.read, Measured.finalize


class TorchTensorParallel(TorchDataParallel):
    """DLIO's torch loader on the ranks of a tp group: each reads the samples of rank 0."""

    def open(self) -> None:
        with self.placed(0, self._args.comm_size):
            super().open()


class LevadaLoader(Measured):
    axis = ""

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)
        self._passes = 0

    def open(self) -> None:
        args, mesh = self._args, levada.Mesh(**{self.axis: self._args.comm_size})
        parts = args.comm_size // mesh.data_size
        with self.placed(0, parts):
            samples = self.num_samples // parts
            dataset = TorchDataset(self.format_type, self.dataset_type, self.epoch_number, samples, args.read_threads, self.batch_size)
        self._loader = levada.DataLoader(
            dataset,
            self.batch_size,
            args.sample_shuffle is not Shuffle.OFF,
            seed=args.seed,
            num_workers=args.read_threads,
            prefetch_factor=1,  # with the batches that the feed holds, as many as prefetch_size
            pin_memory=True,
            drop_last=True,
            worker_init_fn=dataset.worker_init,
            multiprocessing_context=args.multiprocessing_context,
            mesh=mesh,
        )

    def next(self) -> Iterator[Any]:
        self._loader.set_epoch(self._passes)
        self._passes += 1
        yield from self._loader


class LevadaDataParallel(LevadaLoader):
    """Divides all samples over the ranks."""

    axis = "dp"


class LevadaTensorParallel(LevadaLoader):
    """Reads the samples of rank 0 once, for all ranks."""

    axis = "tp"
