"""The arguments of a DataLoader: validates them, or takes them from a torch DataLoader."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from levada.base.checks import check_choice, check_function, whole_number
from levada.base.errors import InvalidArgument
from levada.base.packages import is_of
from levada.base.tables import expect_no_table
from levada.batch.balance import Balance, Cost
from levada.corpus.corpus import Corpus
from levada.feed.loaders import why_partial
from levada.loader.balanced import Lengths
from levada.loader.orders import Parts
from levada.pipeline.options import CONTEXTS

FEED = (
    "data_axes", "layout", "prefetch", "max_steps", "on_peer_lost", "access", "device", "prefetch_to_device", "device_buffers",
    "allow_pickle", "check", "group", "record",
)  # fmt: skip
"""Arguments of Feed that a DataLoader accepts, too."""
_SEEDS = 1 << 64


def dataset_of(dataset: Any) -> Any:
    """Returns the data set; a dict of several becomes one. Raises InvalidArgument if it cannot be read by index."""
    if isinstance(dataset, Mapping) or is_of(dataset, "datasets.dataset_dict", "DatasetDict"):
        if is_of(dataset, "datasets.dataset_dict", "DatasetDict"):
            raise InvalidArgument(f"a DatasetDict has the splits {', '.join(dataset)}; pass one of them, or dict() of it for all")
        if not dataset or not all(isinstance(name, str) for name in dataset):
            raise InvalidArgument("a dict of data sets has a name, which is a str, for each; it must have one at least")
        return Parts({name: dataset_of(each) for name, each in dataset.items()})
    name = type(dataset).__name__
    if isinstance(dataset, (str, bytes, os.PathLike)):
        raise InvalidArgument(f"the data set is {dataset!r}, a {name}; pass the data themselves, or use levada.Corpus for files of text")
    if isinstance(dataset, Corpus):
        raise InvalidArgument("a Corpus is read by levada.Feed(corpus, batch_size=...), in the same order for the same seed")
    if hasattr(dataset, "dataset") and hasattr(dataset, "batch_sampler") and not hasattr(dataset, "__getitem__"):
        raise InvalidArgument(f"the data set is a loader, a {name}; pass its dataset, or use levada.DataLoader.like(loader)")
    expect_no_table("the data set", dataset)
    if not _is_by_number(dataset):
        raise InvalidArgument(
            f"{name} cannot be read by number: it has no __getitem__ and __len__; an iterable is for levada.Feed, which reads it "
            "in its own order"
        )
    return dataset


def _is_by_number(dataset: Any) -> bool:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return False
    torch_data: Any = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(dataset, torch_data.Dataset):
        return True
    return not isinstance(dataset, torch_data.IterableDataset) and type(dataset).__getitem__ is not torch_data.Dataset.__getitem__


def seed_of(seed: Any, generator: Any) -> int:
    """Returns `seed`, or the initial seed of a generator, without drawing from it."""
    number = whole_number("seed", seed)
    if not 0 <= number < _SEEDS:
        raise InvalidArgument(f"seed must be from 0 to 2**64 - 1, got {number}")
    if generator is None:
        return number
    if number != 0:
        raise InvalidArgument("generator and seed both set the seed: pass only one of them")
    if not hasattr(generator, "initial_seed"):
        raise InvalidArgument(f"generator must be a torch.Generator, got {generator!r}; seed= takes a number")
    return int(generator.initial_seed()) % _SEEDS


def check_order(*, shuffle: bool, sampler: Any, batch_sampler: Any, weights: Any, num_samples: Any, epochs: Any) -> None:
    """Raises InvalidArgument if two arguments decide the order, and for a sampler of only one rank's part."""
    given = [name for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler), ("weights", weights)) if value is not None]
    if len(given) > 1:
        raise InvalidArgument(f"{' and '.join(given)} each decide which items are drawn: pass only one of them")
    lists = [name for name in given if name != "weights"]
    if lists and (shuffle or num_samples is not None):
        raise InvalidArgument(f"{lists[0]} decides the order and the number of draws: omit shuffle and num_samples")
    if lists and epochs != 1:
        raise InvalidArgument(f"{lists[0]} is listed for one epoch at a time: omit epochs")
    if weights is not None and not isinstance(weights, Mapping) and shuffle:
        raise InvalidArgument("weights draw items at random, with replacement: omit shuffle")
    for name, each in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if (why := why_partial(each)) is not None:
            raise InvalidArgument(f"{name} cannot be used, since the loader divides the items itself: {why}")


def balance_of(balance: Balance | Cost | None, max_tokens: int | None, lengths: Any, on_error: str) -> Balance | None:
    """Returns how to balance steps, or None. Raises InvalidArgument for options that token counts do not support."""
    if balance is None and max_tokens is None:
        return None
    made = balance if isinstance(balance, Balance) else Balance() if balance is None else Balance(balance)
    if made.max_cp > 1:
        raise InvalidArgument("max_cp cuts packed rows, which a Corpus makes, or a levada.Feed of an iterable of samples")
    if lengths is None:
        raise InvalidArgument("balance and max_tokens need lengths=, the tokens of each item: an array, a column's name, or a function of the number")
    if made.weight is not None or made.too_long != "error":
        raise InvalidArgument(
            "a cost as a field or function of samples, and too_long, need the items themselves: use a cost of lengths such as "
            '"flops", and cut items in __getitem__'
        )
    if on_error == "skip":
        raise InvalidArgument('on_error="skip" excludes balance and max_tokens: which rank has an item depends on all of them')
    return made


def check_steps(batch_size: Any, *, is_batched: bool, drops: bool, pads: bool, in_order: bool) -> None:
    """Raises InvalidArgument for contradictory arguments. `is_batched`: whether there is a batch_sampler."""
    if is_batched and (batch_size not in (None, 1) or drops):
        raise InvalidArgument("batch_sampler makes the batches: omit batch_size and drop_last")
    if drops and pads:
        raise InvalidArgument("drop_last leaves out the last step, and pad_last fills it: choose one")
    if not in_order:
        raise InvalidArgument("in_order=False cannot be had: which batch a step has would depend on the workers' speed")


def check_functions(**functions: Any) -> None:
    """Raises InvalidArgument for an argument that is neither callable nor None."""
    for name, function in functions.items():
        if function is not None:
            check_function(name, function)


def lengths_of(lengths: Any, dataset: Any, items: int | None) -> Lengths | None:
    """Returns the number of tokens of each item, or None if this rank does not know them."""
    if lengths is None or (isinstance(lengths, str) and dataset is None):
        return None
    if callable(lengths):
        return Lengths(lengths)
    import numpy as np

    array = _column(lengths, dataset) if isinstance(lengths, str) else np.asarray(lengths)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (items is not None and len(array) != items):
        raise InvalidArgument(
            f"lengths has the shape {array.shape} of {array.dtype}, and the data set {items or 0:,} items: pass one whole number per item"
        )
    return Lengths(array)


def _column(name: str, dataset: Any) -> Any:
    import numpy as np

    if name not in (getattr(dataset, "column_names", None) or ()):
        raise InvalidArgument(f"lengths is {name!r}, and {type(dataset).__name__} has no column of that name")
    table = dataset.with_format("arrow")[:] if hasattr(dataset, "with_format") else dataset
    column = table[name].combine_chunks()
    if hasattr(column, "value_lengths"):  # a column of lists, of which only the lengths are needed
        column = column.value_lengths()
    return np.asarray(column.to_numpy(zero_copy_only=False))


def context_name(context: Any) -> str:
    """Returns the name of a start method, or of the start method of a multiprocessing context."""
    if context is None:
        return "forkserver"
    name = context if isinstance(context, str) else getattr(context, "get_start_method", lambda: None)()
    check_choice("multiprocessing_context", name, CONTEXTS)
    return str(name)


def arguments_like(loader: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a DataLoader that reads the same data as a torch DataLoader, with changes."""
    given = _arguments_of(loader)
    if "seed" in changes:
        given.pop("generator", None)
    changed = {name for name, value in changes.items() if value is not None}
    replaced: set[str] = set()
    if not {"shuffle", "weights", "sampler", "batch_sampler"}.isdisjoint(changed):
        replaced |= {"shuffle", "weights", "sampler"}
        if not {"batch_sampler", "batch_size"}.isdisjoint(changed):  # otherwise the size of the batches is unknown
            replaced.add("batch_sampler")
    if not {"sampler", "batch_sampler"}.isdisjoint(changed):
        replaced.add("num_samples")
    if "batch_sampler" in changed:
        replaced |= {"batch_size", "drop_last"}
    return {name: value for name, value in given.items() if name not in replaced} | dict(changes)


def _arguments_of(loader: Any) -> dict[str, Any]:
    torch_data: Any = sys.modules.get("torch.utils.data")
    if torch_data is None or not hasattr(loader, "batch_sampler") or not hasattr(loader, "dataset"):
        raise InvalidArgument(f"DataLoader.like() takes a torch.utils.data.DataLoader, got a {type(loader).__name__}")
    given: dict[str, Any] = {"dataset": loader.dataset, "batch_size": loader.batch_size, "num_workers": loader.num_workers}
    given |= {"drop_last": loader.drop_last, "pin_memory": loader.pin_memory, "worker_init_fn": loader.worker_init_fn}
    given |= {"collate_fn": _collate_of(loader), "in_order": getattr(loader, "in_order", True)}
    given["persistent_workers"] = loader.persistent_workers
    if loader.timeout > 0:
        given["timeout"] = loader.timeout
    if loader.prefetch_factor is not None:
        given["prefetch_factor"] = loader.prefetch_factor
    if not _is_by_number(loader.dataset):
        return given  # the constructor rejects them
    batches = loader.batch_sampler
    if batches is None:
        return given | _order_of(loader.sampler, len(loader.dataset), torch_data)
    if type(batches) is not torch_data.BatchSampler:
        given["batch_size"], given["drop_last"] = 1, False
        return given | {"batch_sampler": batches}
    given |= {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    return given | _order_of(batches.sampler, len(loader.dataset), torch_data)


def _collate_of(loader: Any) -> Any:
    name = getattr(loader.collate_fn, "__module__", ""), getattr(loader.collate_fn, "__name__", "")
    is_default = name[0] == "torch.utils.data._utils.collate" and name[1] in ("default_collate", "default_convert")
    return None if is_default else loader.collate_fn


def _order_of(sampler: Any, items: int, torch_data: Any) -> dict[str, Any]:
    """Returns the arguments that draw as a sampler does. Keeps a sampler of other data, such as of the first items."""
    if type(sampler) is torch_data.distributed.DistributedSampler:
        if len(sampler.dataset) != items:
            raise InvalidArgument(
                f"the DistributedSampler divides {len(sampler.dataset):,} items, and the loader's data set has {items:,}: make "
                "the sampler from the loader's data set, or pass a torch Subset of the items as the data set"
            )
        return {"shuffle": sampler.shuffle, "seed": sampler.seed}
    if type(sampler) is torch_data.WeightedRandomSampler and sampler.replacement and len(sampler.weights) == items:
        return {"weights": sampler.weights.tolist(), "generator": sampler.generator, "num_samples": sampler.num_samples}
    is_known = type(sampler) in (torch_data.SequentialSampler, torch_data.RandomSampler)
    if not is_known or len(sampler.data_source) != items:
        return {"sampler": sampler}
    if type(sampler) is torch_data.SequentialSampler:
        return {}
    num_samples = None if sampler.num_samples == items else sampler.num_samples
    if sampler.replacement:
        return {"weights": [1.0] * items, "generator": sampler.generator, "num_samples": num_samples}
    return {"shuffle": True, "generator": sampler.generator, "num_samples": num_samples}
