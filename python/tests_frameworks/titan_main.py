"""Stands in for `torchtitan.components.data` of TorchTitan's main, which no release has yet: the names that
docs/frameworks/torchtitan.md uses, over Grain itself."""

from __future__ import annotations

import glob
import importlib.util
import json
import sys
import types
from dataclasses import dataclass
from typing import Any

import grain.python as grain
import numpy as np
import torch
import torchtitan.hf_datasets.text_datasets
from grain import experimental
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.config import Configurable

FIELDS = ("input_ids", "labels", "positions")


class IndexedJsonlSource(Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        patterns: tuple[str, ...]

    def __init__(self, config: Config, *, dataset_iteration_policy: Any) -> None:
        self._lines: list[str] = []
        for path in sorted(path for pattern in config.patterns for path in glob.glob(pattern)):
            with open(path) as file:
                self._lines += file.read().splitlines()

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> Any:
        return json.loads(self._lines[number])


class TextProcessor(Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    def __init__(self, config: Config, *, context: Any) -> None:
        self._tokenizer = context.tokenizer

    def __call__(self, row: Any, generator: np.random.Generator) -> Any:
        tokens = np.asarray(self._tokenizer.encode(row["text"], add_bos=True, add_eos=True), np.int64)
        return {"input_ids": tokens[:-1], "labels": tokens[1:], "positions": np.arange(len(tokens) - 1)}


@dataclass(frozen=True, kw_only=True)
class SingleDatasetConfig:
    source: Any
    processor: Any
    post_filters: tuple[Any, ...] = ()

    def build(self, *, context: Any, dataset_iteration_policy: Any) -> grain.MapDataset:
        policy = dataset_iteration_policy
        rows = grain.MapDataset.source(self.source.build(dataset_iteration_policy=policy))
        rows = rows.random_map(self.processor.build(context=context), seed=policy.seed)
        for keep in self.post_filters:
            rows = rows.filter(keep)
        if policy.shuffle:
            rows = rows.shuffle(seed=policy.seed)
        begin, end = (len(rows) * rank // policy.dp_world_size for rank in (policy.dp_rank, policy.dp_rank + 1))
        return rows[begin:end].repeat() if policy.repeat else rows[begin:end]


@dataclass(frozen=True, kw_only=True)
class FirstFitPackingConfig:
    dataset: Any

    def build(self, *, context: Any, dataset_iteration_policy: Any) -> grain.IterDataset:
        rows = self.dataset.build(context=context, dataset_iteration_policy=dataset_iteration_policy)
        return experimental.FirstFitPackIterDataset(
            rows.to_iter_dataset(),
            length_struct=dict.fromkeys(FIELDS, context.num_tokens_per_batch),
            padding_struct={"input_ids": 0, "labels": IGNORE_INDEX, "positions": 0},
            num_packing_bins=8,
            meta_features=("labels", "positions"),
            seed=dataset_iteration_policy.seed,
            shuffle_bins=dataset_iteration_policy.shuffle,
        )


class BaseDataLoader(Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass


class GrainDataLoader(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        dataset: Any
        seed: int = 42
        shuffle: bool = True
        repeat: bool = True
        num_prefetch_batches: int = 2

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **context: Any) -> None:
        if dp_world_size > 1 and not config.repeat:
            raise ValueError("repeat=False with data parallelism")
        self._dp_world_size, self._key = dp_world_size, f"dp_rank_{dp_rank}"
        policy = types.SimpleNamespace(
            seed=config.seed, shuffle=config.shuffle, repeat=config.repeat, dp_rank=dp_rank, dp_world_size=dp_world_size
        )
        rows = config.dataset.build(context=types.SimpleNamespace(**context), dataset_iteration_policy=policy)
        batches = rows.batch(1, drop_remainder=config.repeat, batch_fn=_collate)
        self._iterator = iter(experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=config.num_prefetch_batches))

    def __iter__(self) -> Any:
        return self._iterator

    def state_dict(self) -> dict[str, Any]:
        return {"version": 1, "dp_world_size": self._dp_world_size, self._key: self._iterator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["dp_world_size"] != self._dp_world_size:
            raise ValueError("another data-parallel degree")
        self._iterator.set_state(state[self._key])

    def close(self) -> None:
        self._iterator.close()


def _collate(rows: list[dict[str, Any]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    tokens, labels, positions = (torch.cat([torch.as_tensor(row[name]) for row in rows]) for name in FIELDS)
    return {"input": tokens, "positions": positions}, labels


def install() -> None:
    """Adds the package to torchtitan, unless the installed torchtitan has it."""
    if importlib.util.find_spec("torchtitan.components.data") is not None:
        return
    package = types.ModuleType("torchtitan.components.data")
    for each in (FirstFitPackingConfig, GrainDataLoader, IndexedJsonlSource, SingleDatasetConfig):
        setattr(package, each.__name__, each)
    loader = types.ModuleType("torchtitan.components.data.loader")
    loader.BaseDataLoader = BaseDataLoader  # type: ignore[attr-defined]
    sys.modules |= {package.__name__: package, loader.__name__: loader}
    torchtitan.hf_datasets.text_datasets.TextProcessor = TextProcessor
