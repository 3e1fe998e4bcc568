"""The loaders, each as its own documentation uses it. An arm imports its packages when it is made."""

from __future__ import annotations

import io
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from work import FIRST_ID, SEED, Decoder, Records, Workload, collate, collate_arrays, make_records, tokenizer, write_megatron, write_records

RANKS = 4
BATCH = 8
WORKERS = 2


class Place(NamedTuple):
    """A rank of the mesh: which part of the data it reads."""

    rank: int
    mesh: str
    data_rank: int
    data_size: int
    tp: int


def place_of(rank: int, mesh: str) -> Place:
    sizes = dict(axis.split("=") for axis in mesh.split(","))
    tp = int(sizes.get("tp", 1))
    return Place(rank, mesh, rank // tp, int(sizes.get("dp", 1)), tp)


class Arm:
    """A loader. prepare() writes the records as it wants them, open() returns an iterable of batches."""

    title = ""
    storage = "records"
    """Arms of the same storage share its files."""
    loader: Any
    sampler: Any

    def prepare(self, work: Workload, source: pathlib.Path, folder: pathlib.Path) -> None:
        write_records(work, make_records(work, source), folder)

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        raise NotImplementedError

    def ids(self, work: Workload, batch: Any) -> list[int]:
        ids: list[int] = batch["id"].tolist()
        return ids

    def state(self, loader: Any, batches: Any, steps: int) -> Any:
        return loader.state_dict()

    def adapt(self, states: list[Any], size: int) -> list[Any]:
        """Returns the states of the data-parallel ranks for another number of them. Is called before the job starts."""
        return states

    def resume(self, loader: Any, states: list[Any], place: Place) -> Iterable[Any]:
        """Returns the batches that follow a state. `states` has that of each data-parallel rank."""
        loader.load_state_dict(states[place.data_rank])
        return loader  # type: ignore[no-any-return]

    def close(self, loader: Any) -> None:
        pass


class Torch(Arm):
    title = "torch DataLoader"

    def __init__(self) -> None:
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        self.loader, self.sampler = DataLoader, DistributedSampler

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        records = Records(folder, decode)
        sampler = self.sampler(records, place.data_size, place.data_rank, shuffle=True, seed=SEED)
        return self.loader(records, BATCH, sampler=sampler, num_workers=WORKERS, collate_fn=collate)

    def state(self, loader: Any, batches: Any, steps: int) -> Any:
        return steps * loader.sampler.num_replicas

    def resume(self, loader: Any, states: list[Any], place: Place) -> Iterable[Any]:
        return itertools.islice(loader, states[0] // place.data_size, None)


class Stateful(Torch):
    title = "StatefulDataLoader"

    def __init__(self) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        self.loader, self.sampler = StatefulDataLoader, StatefulDistributedSampler

    state, resume = Arm.state, Arm.resume


class Datasets(Arm):
    """Streams parquet. Its documentation resumes with StatefulDataLoader."""

    title = "datasets, streaming"
    storage = "parquet"

    def __init__(self) -> None:
        import datasets
        from datasets.distributed import split_dataset_by_node
        from torchdata.stateful_dataloader import StatefulDataLoader

        datasets.disable_progress_bars()
        self.load, self.split, self.loader = datasets.load_dataset, split_dataset_by_node, StatefulDataLoader

    def prepare(self, work: Workload, source: pathlib.Path, folder: pathlib.Path) -> None:
        import pyarrow
        from pyarrow import parquet

        records = make_records(work, source)
        for shard in range(work.shards):
            ids, data = zip(*itertools.islice(records, work.records // work.shards))
            parquet.write_table(pyarrow.table({"id": ids, "data": data}), folder / f"{shard:06}.parquet")

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        files = sorted(map(str, folder.glob("*.parquet")))
        stream = self.load("parquet", data_files=files, split="train", streaming=True, cache_dir=str(folder / "cache"))
        if work.buffer:
            stream = stream.shuffle(seed=SEED, buffer_size=work.buffer)
        stream = self.split(stream, place.data_rank, place.data_size)
        stream = stream.map(lambda row: decode(row["id"], row["data"]), remove_columns=["data"])
        return self.loader(stream, BATCH, num_workers=WORKERS, collate_fn=collate)


class Lit(Arm):
    """Its documentation has no argument for ranks that share data. It reads the variables that name the ranks."""

    title = "litData"
    storage = "litdata"

    def __init__(self) -> None:
        os.environ["DISABLE_LITDATA_VERSION_CHECK"] = "1"
        import litdata

        self.litdata = litdata

    def item_loader(self, work: Workload) -> Any:
        return self.litdata.TokensLoader(block_size=work.seq) if work.kind == "tokens" else None

    def prepare(self, work: Workload, source: pathlib.Path, folder: pathlib.Path) -> None:
        import torch

        records = dict(make_records(work, source))
        each = work.records // work.shards

        def write(number: int) -> Any:
            if work.kind == "tokens":
                return torch.from_numpy(np.frombuffer(records[number], np.int32).copy())
            return {"id": number, "data": records[number]}

        self.litdata.optimize(
            write,
            list(range(work.records)),
            str(folder),
            chunk_size=each * work.seq if work.kind == "tokens" else each,
            num_workers=1,
            item_loader=self.item_loader(work),
            start_method="fork",
            verbose=False,
        )

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        os.environ.update(WORLD_SIZE=str(place.data_size), GLOBAL_RANK=str(place.data_rank))

        def transform(item: Any) -> Any:
            if work.kind == "tokens":
                data = item.numpy()
                return decode(int(data[0]) - FIRST_ID, data)
            return decode(item["id"], item["data"])

        cache = f"{decode.log}.cache-{place.rank}"
        dataset = self.litdata.StreamingDataset(str(folder), cache, self.item_loader(work), shuffle=True, seed=SEED, transform=transform)
        return self.litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, collate_fn=collate)


class Mosaic(Arm):
    title = "MosaicML Streaming"
    storage = "mds"

    def __init__(self) -> None:
        import torch

        for name in ("nms", "qnms"):  # torchvision of PyPI has its operators only beside a torch with CUDA; none is used
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import streaming
        import streaming.base.util

        class Decoded(streaming.StreamingDataset):
            def __init__(self, decode: Decoder, **options: Any) -> None:
                super().__init__(**options)
                self.decode = decode

            def __getitem__(self, at: Any) -> Any:
                item = super().__getitem__(at)
                return self.decode(int(item["id"]), item["data"])

        self.streaming, self.dataset = streaming, Decoded

    def prepare(self, work: Workload, source: pathlib.Path, folder: pathlib.Path) -> None:
        records = list(make_records(work, source))
        size = sum(len(data) + 24 for _, data in records) // work.shards + 400
        with self.streaming.MDSWriter(out=str(folder), columns={"id": "int", "data": "bytes"}, size_limit=size, exist_ok=True) as out:
            for number, data in records:
                out.write({"id": number, "data": data})

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        self.streaming.base.util.clean_stale_shared_memory()
        same = place.tp if place.tp > 1 else None
        dataset = self.dataset(decode, local=str(folder), shuffle=True, shuffle_seed=SEED, batch_size=BATCH, replication=same)
        return self.streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, collate_fn=collate)


class Energon(Arm):
    """Its stream has no end, and its states are those of such a stream. Its command adapts them to other ranks, which
    must have as many workers together."""

    title = "Megatron-Energon"
    storage = "webdataset"

    def __init__(self) -> None:
        import megatron.energon as energon

        @energon.edataclass
        class Item(energon.Sample):  # type: ignore[misc]
            value: dict[str, Any]

        class Encoder(energon.DefaultTaskEncoder):  # type: ignore[misc]
            decoder = None

            def __init__(self, decode: Decoder) -> None:
                super().__init__()
                self.cookers = [energon.Cooker(self.cook)]
                self.decode = decode

            @energon.stateless  # type: ignore[untyped-decorator]
            def cook(self, raw: dict[str, Any]) -> Item:
                data = raw[self.decode.work.suffix]
                data = data.encode() if isinstance(data, str) else data
                return Item(**energon.basic_sample_keys(raw), value=self.decode(int(raw["__key__"].rpartition("/")[2]), data))

            @energon.stateless  # type: ignore[untyped-decorator]
            def batch(self, samples: list[Item]) -> dict[str, Any]:
                return collate([sample.value for sample in samples])

        self.energon, self.encoder = energon, Encoder
        self.command = pathlib.Path(sys.executable).with_name("energon")

    def prepare(self, work: Workload, source: pathlib.Path, folder: pathlib.Path) -> None:
        records = make_records(work, source)
        for shard in range(work.shards):
            with tarfile.open(folder / f"{shard:06}.tar", "w") as tar:
                for number, data in itertools.islice(records, work.records // work.shards):
                    info = tarfile.TarInfo(f"{number:06}.{work.suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        command: list[Any] = [self.command, "prepare", folder, "--non-interactive", "--no-progress", "--num-workers", "2"]
        subprocess.run([*command, "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"], check=True, stdout=subprocess.DEVNULL)

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        count = WORKERS if work.buffer else WORKERS * RANKS // place.data_size
        workers = self.energon.WorkerConfig(rank=place.data_rank, world_size=place.data_size, num_workers=count)
        options = {"shuffle_buffer_size": work.buffer, "max_samples_per_sequence": 100, "repeat": work.buffer is None}
        dataset = self.energon.get_train_dataset(folder, worker_config=workers, batch_size=BATCH, task_encoder=self.encoder(decode), **options)
        return self.energon.get_savable_loader(dataset)

    def state(self, loader: Any, batches: Any, steps: int) -> Any:
        return loader.save_state_rank()

    def adapt(self, states: list[Any], size: int) -> list[Any]:
        import torch

        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            before = [folder / f"state-{rank}.pt" for rank in range(len(states))]
            for state, file in zip(states, before):
                torch.save(state, file)
            (folder / "new").mkdir()
            subprocess.run([self.command, "checkpoint", "redist", *before, folder / "new", "--new-world-size", str(size)], check=True)
            return [torch.load(folder / "new" / file.name, weights_only=False) for file in before[:size]]

    def resume(self, loader: Any, states: list[Any], place: Place) -> Iterable[Any]:
        loader.restore_state_rank(states[place.data_rank])
        return loader  # type: ignore[no-any-return]


class Grain(Arm):
    title = "Grain"

    def __init__(self) -> None:
        import grain

        self.grain = grain

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        records = Records(folder, decode)
        part = self.grain.sharding.ShardOptions(place.data_rank, place.data_size)
        sampler = self.grain.samplers.IndexSampler(len(records), part, shuffle=True, num_epochs=1, seed=SEED)
        batch = self.grain.transforms.Batch(BATCH, batch_fn=collate_arrays)
        return iter(self.grain.DataLoader(data_source=records, sampler=sampler, operations=[batch], worker_count=WORKERS))

    def state(self, loader: Any, batches: Any, steps: int) -> Any:
        return loader.get_state()

    def resume(self, loader: Any, states: list[Any], place: Place) -> Iterable[Any]:
        loader.set_state(states[place.data_rank])
        return loader  # type: ignore[no-any-return]


class Spdl(Torch):
    """Decodes in threads. It has no state, so that a resumed run drops batches."""

    title = "SPDL"

    def __init__(self) -> None:
        import spdl.dataloader
        import spdl.source
        import torch  # noqa: F401

        self.loader, self.source = spdl.dataloader.DataLoader, spdl.source.DistributedRandomSampler

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        records = Records(folder, decode)
        self.size = place.data_size
        source = self.source(len(records), rank=place.data_rank, world_size=place.data_size, seed=SEED)
        return self.loader(source, preprocessor=records.__getitem__, batch_size=BATCH, aggregator=collate, num_threads=WORKERS, output_order="input")

    def state(self, loader: Any, batches: Any, steps: int) -> Any:
        return steps * self.size


class Levada(Arm):
    """A Corpus of tokens or text, a DataLoader of the others."""

    title = "Levada"
    context: str | None = None

    def __init__(self) -> None:
        import torch  # noqa: F401

        import levada

        self.levada = levada

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        mesh = self.levada.Mesh.parse(place.mesh)
        options = {"seed": SEED, "num_workers": WORKERS, "collate_fn": collate, "multiprocessing_context": self.context}
        return self.levada.DataLoader(Records(folder, decode), BATCH, True, mesh=mesh, **options)

    def close(self, loader: Any) -> None:
        loader.close()


class LevadaFork(Levada):
    """Workers that are forked when the loader is made, as torch's are when a pass begins."""

    title = "Levada, fork"
    context = "fork"


class LevadaCorpus(Levada):
    storage = "corpus"

    def prepare(self, work: Workload, source: pathlib.Path, folder: pathlib.Path) -> None:
        if work.kind == "tokens":
            write_megatron(work, make_records(work, source), folder)
        else:
            list(make_records(work, source))
            shutil.copy(source / "texts.jsonl", folder)

    def open(self, work: Workload, folder: pathlib.Path, decode: Decoder, place: Place) -> Any:
        options: dict[str, Any] = {"seq_length": work.seq, "shuffle": True, "seed": SEED, "tensors": "torch"}
        if work.kind == "text":
            options |= {"tokenizer": str(decode.folder / "tokenizer.json"), "packing": "best-fit", "cache_dir": f"{decode.log}.cache"}
        self.text: Any = tokenizer(decode.folder) if work.kind == "text" else None
        corpus = self.levada.Corpus(str(folder), **options)
        return self.levada.Feed(corpus, mesh=self.levada.Mesh.parse(place.mesh), batch_size=BATCH, tail="pad")

    def ids(self, work: Workload, batch: Any) -> list[int]:
        if work.kind == "tokens":
            return [int(row[0]) - FIRST_ID for row in batch["tokens"]]
        found = []
        for row, positions, mask in zip(batch["tokens"], batch["position_ids"], batch["loss_mask"]):
            found += [int(self.text.decode(row[at : at + 16].tolist())[:8]) for at in (positions == 0).nonzero()[:, 0].tolist() if mask[at]]
        return found


ARMS: dict[str, type[Arm]] = {
    "torch": Torch,
    "torchdata": Stateful,
    "datasets": Datasets,
    "litdata": Lit,
    "mosaic": Mosaic,
    "energon": Energon,
    "grain": Grain,
    "spdl": Spdl,
    "levada": Levada,
    "levada-fork": LevadaFork,
}


def arm_of(name: str, work: Workload) -> type[Arm] | None:
    """Returns the class of an arm for a workload, or None where it is no other than another arm's."""
    if work.kind in ("tokens", "text"):
        return {"levada": LevadaCorpus, "levada-fork": None}.get(name, ARMS[name])
    return ARMS[name]
