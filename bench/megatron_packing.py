#!/usr/bin/env python3
"""Measures sequence packing: Megatron-LM's functions over gloo against those of levada.dropin.megatron.

The functions are wrap_data_iterator() and get_batch_on_this_rank_for_sequence_packing(), in processes of this host, in
turn. Compares what they return, and their schedules for random lengths; counts the messages that arrive at all ranks in
a step; and prints medians of the slowest rank's time.

  bench/megatron_packing.py --upstream DIR [--meshes tp2,dp2 ...] [--samples N] [--longest N] [--steps N] [--json]

--upstream: a checkout of Megatron-LM, of which two files of megatron/core/datasets are used; the rest of megatron.core
is the installed one. These files ask for CUDA and for Transformer Engine's partition, which are replaced by the CPU and
by stubs.

"levada" has the schedule of Megatron-LM, over shared memory; "over gloo" is the engine c10d; "balanced" is Levada's
schedule. A message is what arrives at one rank from another; of an all-to-all, only parts that are not empty count.
"gathers" are the messages of all-gathers, and of gathering the holdings on rank 0; the bytes of rank 0's answers are
not counted. The ratio is the median over steps of Megatron-LM's time to the row's. Work is the operations of a
transformer of hidden size 4096, on the busiest data-parallel rank, over the mean; it and the number of micro-batches
are means over steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np

CHUNK = 1 << 20
"""Maximum size of a message of an exchange in shared memory, in bytes."""
WAYS = ("megatron", "levada", "levada over gloo", "levada balanced")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upstream", type=pathlib.Path, required=True)
    parser.add_argument("--meshes", nargs="+", default=["tp2,dp2", "dp2,pp2", "dp2,cp2", "tp2,dp2,pp2"], help="also vpp: virtual stages")
    parser.add_argument("--samples", type=int, default=32, help="of a step on each data-parallel rank")
    parser.add_argument("--longest", type=int, default=8192, help="tokens of a sample and of a micro-batch")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(options, *options.rank)
        return
    rows = {mesh: run_mesh(options, mesh) for mesh in options.meshes}
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{options.samples} samples a data-parallel rank, lognormal (mean 1500), at most {options.longest} tokens; "
          f"{options.steps} steps of each, in turn")
    print(f"{'mesh':<14}{'':<18}{'messages':>10}{'gathers':>9}{'MB':>9}{'ms':>9}{'ratio':>8}{'micro':>8}{'work':>8}")
    for mesh, ways in rows.items():
        for way, row in ways.items():
            print(f"{mesh:<14}{way:<18}{row['messages']:>10,}{row['gathers']:>9,}{row['bytes'] / 1e6:>9.2f}{row['ms']:>9.2f}"
                  f"{row['ratio']:>8.2f}"
                  f"{row['micro']:>8.1f}{row['work']:>8.3f}")


def run_mesh(options: argparse.Namespace, mesh: str) -> dict[str, Any]:
    size = size_of(axes_of(mesh))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = []
        for rank in range(size):
            with open(f"{folder}/errors.{rank}", "w") as errors:
                command = [sys.executable, *sys.argv, "--rank", mesh, str(rank), folder]
                started.append(subprocess.Popen(command, env=environment, stderr=errors))
        for rank, process in enumerate(started):
            if process.wait() != 0:
                for each in started:
                    each.kill()
                sys.exit(f"rank {rank} of {mesh} failed:\n" + pathlib.Path(f"{folder}/errors.{rank}").read_text())
        rows: dict[str, Any] = json.loads(pathlib.Path(f"{folder}/rows").read_text())
        return rows


def axes_of(mesh: str) -> dict[str, int]:
    return {"tp": 1, "cp": 1, "dp": 1, "pp": 1, "vpp": 1} | {name: int(size) for name, size in re.findall(r"([a-z]+)(\d+)", mesh)}


def size_of(axes: dict[str, int]) -> int:
    return math.prod(size for name, size in axes.items() if name != "vpp")


def run_rank(options: argparse.Namespace, mesh: str, rank: str, folder: str) -> None:
    import torch
    import torch.distributed as dist

    axes = axes_of(mesh)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=size_of(axes)
    )
    from megatron.core import parallel_state

    vpp = axes["vpp"] if axes["vpp"] > 1 else None
    parallel_state.initialize_model_parallel(axes["tp"], axes["pp"], vpp, context_parallel_size=axes["cp"])
    import levada
    from levada.dropin import megatron

    upstream = load(options.upstream)
    over_gloo = levada.join(dist.new_group(), engine="c10d")
    config = types.SimpleNamespace(
        max_seqlen_per_dp_cp_rank=options.longest // axes["cp"],
        sequence_packing_scheduler="dp_balanced",
        virtual_pipeline_model_parallel_size=vpp,
        microbatch_group_size_per_vp_stage=axes["pp"],
        hidden_size=4096,
    )

    def step(way: str, items: list[Any] | None) -> list[Any]:
        iterator: Any = None if items is None else iter(items)
        if vpp:
            chunks = [iterator] + [None] * (vpp - 1)
            iterator = chunks if parallel_state.is_pipeline_first_stage(ignore_virtual=True) else chunks[::-1]
        if way == "megatron":
            wrap, get = upstream.wrap_data_iterator, upstream.get_batch_on_this_rank_for_sequence_packing
            new, micros, *sums = wrap(iterator, config, options.samples)
        else:
            get = megatron.get_batch_on_this_rank_for_sequence_packing
            scheduler = "balanced" if way == "levada balanced" else "dp_balanced"
            group = over_gloo if way == "levada over gloo" else None
            new, micros, *sums = megatron.wrap_data_iterator(
                iterator, config, options.samples, scheduler=scheduler, group=group
            )
        if vpp:
            batches = [get(each, vpp, vp_stage=chunk) for chunk, each in enumerate(new) for _ in range(micros)]
            return [batches, micros, sums]
        return [[get(new) for _ in range(micros)], micros, sums]

    for number in range(3):
        items = items_of(options, parallel_state, number)
        compare(step("megatron", items), step("levada", items))
        compare(step("levada over gloo", items), step("levada", items))
    rows = {way: measure_messages(step, way, items) for way in WAYS}
    if dist.get_rank() == 0:
        compare_schedules(upstream)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    micros: dict[str, list[int]] = {way: [] for way in WAYS}
    works: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.steps):
        items = items_of(options, parallel_state, number)
        for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
            dist.barrier()
            begin = time.perf_counter()
            batches, count, _ = step(way, items)
            times[way].append(largest(time.perf_counter() - begin))
            micros[way].append(count)
            works[way].append(work_ratio(batches))
    for way in WAYS:
        rows[way] |= {"micro": statistics.mean(micros[way]), "work": statistics.mean(works[way])}
        rows[way]["ms"] = 1000 * statistics.median(times[way])
        rows[way]["ratio"] = statistics.median(theirs / ours for theirs, ours in zip(times["megatron"], times[way]))
    if dist.get_rank() == 0:
        pathlib.Path(folder, "rows").write_text(json.dumps(rows))
    dist.barrier()


def load(checkout: pathlib.Path) -> Any:
    """Returns Megatron-LM's module data_schedule, with the CPU in place of CUDA."""
    import torch

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.Tensor.cuda = lambda self, *_, **__: self
    for name in ("data_schedule_utils", "data_schedule"):
        path = checkout / "megatron/core/datasets" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"megatron.core.datasets.{name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)

    def partition(bounds: Any, total: int, size: int, rank: int) -> Any:
        chosen = []
        for begin, end in zip(bounds.tolist(), bounds.tolist()[1:]):
            chunks = torch.arange(begin, end).view(2 * size, -1)
            chosen += [chunks[rank], chunks[2 * size - 1 - rank]]
        return torch.cat(chosen)

    module.tex = types.SimpleNamespace(thd_get_partitioned_indices=partition)
    return module


def lengths_of(options: argparse.Namespace, data: int, number: int) -> list[int]:
    random = np.random.default_rng([number, data])
    lengths = random.lognormal(math.log(1500) - 1.2**2 / 2, 1.2, options.samples)
    return np.clip(lengths, 1, options.longest - 16).astype(int).tolist()


def items_of(options: argparse.Namespace, state: Any, number: int) -> list[Any] | None:
    """Returns the samples of a step, each padded to a multiple of 16, on the ranks that read in Megatron-LM; else
    None."""
    import torch

    ends = (0, state.get_pipeline_model_parallel_world_size() - 1)
    if state.get_tensor_model_parallel_rank() != 0 or state.get_pipeline_model_parallel_rank() not in ends:
        return None
    data = state.get_data_parallel_rank()
    items = []
    for at, length in enumerate(lengths_of(options, data, number)):
        padded = -(-length // 16) * 16
        tokens = torch.arange(padded) + 1_000_000 * data + 10_000 * at
        loss_mask = (torch.arange(padded) < length).float()
        items.append({
            "tokens": tokens, "labels": tokens + 1, "loss_mask": loss_mask, "position_ids": torch.arange(padded),
            "original_seq_len": torch.tensor([length]), "padded_seq_len": torch.tensor([padded]),
        })
    return items


def largest(value: float) -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor)


def summed(values: list[int]) -> list[int]:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(values)
    dist.all_reduce(tensor)
    return tensor.tolist()


def compare(theirs: list[Any], ours: list[Any]) -> None:
    """Fails unless both ways returned the same. Megatron-LM sends sums as float32 to some ranks."""
    import torch

    assert theirs[1] == ours[1], (theirs[1], ours[1])
    assert np.allclose(theirs[2], ours[2], rtol=1e-6), (theirs[2], ours[2])
    for their_batch, our_batch in zip(theirs[0], ours[0], strict=True):
        for their, our in zip(their_batch, our_batch, strict=True):
            if isinstance(their, torch.Tensor):
                assert their.dtype == our.dtype and torch.equal(their, our)
            elif their is None:
                assert our is None
            else:
                for name in ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
                    assert torch.equal(getattr(their, name), getattr(our, name))
                assert (their.max_seqlen_q, their.qkv_format) == (our.max_seqlen_q, our.qkv_format)


def measure_messages(step: Callable[[str, Any], list[Any]], way: str, items: list[Any] | None) -> dict[str, Any]:
    """Counts the messages and bytes that arrive at all ranks in a step, and the messages of gathers."""
    import torch.distributed as dist
    from levada import _levada, exchange

    counts = [0, 0, 0]

    def arrives(messages: int, size: int, gathers: int = 0) -> None:
        counts[0] += messages
        counts[1] += size
        counts[2] += gathers

    originals = dist.broadcast, dist.all_gather, dist.all_to_all_single
    redistribute, agree = exchange.redistribute, _levada.agree

    def broadcast(tensor: Any, src: int, group: Any = None) -> None:
        originals[0](tensor, src, group=group)
        arrives(*(0, 0) if dist.get_rank() == src else (1, tensor.nbytes))

    def all_gather(tensors: list[Any], tensor: Any, group: Any = None) -> None:
        originals[1](tensors, tensor, group=group)
        others = len(tensors) - 1
        arrives(others, tensor.nbytes * others, others)

    def all_to_all(output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, group: Any) -> None:
        originals[2](output, input, output_split_sizes, input_split_sizes, group=group)
        others = [size for rank, size in enumerate(output_split_sizes) if size and rank != group.rank()]
        arrives(len(others), sum(others) * output.element_size())

    def redistributed(store: Any, wants: Any, keys: Any, *, group: Any, **options: Any) -> Any:
        plan = exchange.plan(exchange.all_gather(store, group), wants, keys, allow_absent=True)
        result = redistribute(store, wants, keys, group=group, **options)
        rank, others = dist.get_rank(), dist.get_world_size() - 1
        given = summed([result.agreed_bytes])[0] - result.agreed_bytes
        arrives(*(others, given, others) if rank == 0 else (1, 0, 1))  # the ranks' holdings, and rank 0's answer
        coming = [multicast.bytes for multicast in plan if rank in multicast.to]
        arrives(sum(math.ceil(size / CHUNK) for size in coming), result.received_bytes)
        return result

    def agreed(job: Any, mine: bytes, timeout: float, what: str) -> Any:
        told = agree(job, mine, timeout, what)
        arrives(len(told) - 1, sum(map(len, told)) - len(mine), len(told) - 1)
        return told

    dist.broadcast, dist.all_gather, dist.all_to_all_single = broadcast, all_gather, all_to_all
    exchange.redistribute, _levada.agree = redistributed, agreed
    try:
        step(way, items)
    finally:
        dist.broadcast, dist.all_gather, dist.all_to_all_single = originals
        exchange.redistribute, _levada.agree = redistribute, agree
    messages, size, gathers = summed(counts)
    return {"messages": messages, "gathers": gathers, "bytes": size}


def work_ratio(batches: list[Any]) -> float:
    """Returns the largest work of a rank over the mean. The ranks of one data-parallel rank have the same work."""
    import torch.distributed as dist

    lengths = [length for batch in batches for length in batch[5].cu_seqlens_q.diff().tolist()]
    work = sum(length * (6 * 4096 + length) for length in lengths)
    return largest(work) / (summed([work])[0] / dist.get_world_size())


def compare_schedules(upstream: Any, steps: int = 3000) -> None:
    """Fails unless random steps are packed identically, except those that Megatron-LM's scheduler refuses."""
    from levada.dropin.megatron import in_order

    random = np.random.default_rng(1)
    for _ in range(steps):
        ranks, multiple = (int(each) for each in random.integers(1, 5, 2))
        lengths = random.integers(1, 100, random.integers(1, 60)).tolist()
        scheduler = upstream.DpBalancedScheduler(150, 1, ranks, multiple)
        try:
            theirs = scheduler.get_groups_and_subsamples(list(enumerate(lengths)))
        except AssertionError:
            continue
        assert in_order(lengths, ranks, 150, multiple) == [[group[rank] for group in theirs] for rank in range(ranks)]


if __name__ == "__main__":
    main()
