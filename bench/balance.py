#!/usr/bin/env python3
"""Measures balanced steps: the work of the busiest data-parallel rank, the number of micro-batches, and the step time.

Work is compared with a lower bound, and the time follows from the cost 24576 L + L L. Lengths are lognormal (mean
1,500, sigma 1.2, cut at 32,768, or at the capacity of a micro-batch).

  bench/balance.py [--build DIR] [--steps N] [--peers DIR [--peer-seconds S]]

--peers: a folder with verl.py and slime.py, copies of those projects' verl/utils/seqlen_balancing.py and
slime/utils/seqlen_balancing.py; their get_seqlen_balanced_partitions divides as many of the same steps as it can in S
seconds.
"""

import argparse
import importlib.util
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time
import unittest.mock

import numpy as np

COST = "flops(linear=24576,quadratic=1)"


def work_of(lengths):
    return 24576 * lengths + lengths * lengths


def lengths_of(steps, samples, longest):
    random = np.random.default_rng(1)
    return np.clip(random.lognormal(math.log(1500) - 1.2**2 / 2, 1.2, (steps, samples)), 1, longest).astype(np.int64)


def plans_of(build, steps, ranks, sizes, max_tokens=0):
    lines = "".join(" ".join(map(str, lengths)) + "\n" for lengths in steps.tolist())
    command = [build / "bench/plan_steps", COST, str(ranks), sizes, str(max_tokens)]
    run = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def peer(path):
    """Returns another project's function. The module's other imports do not matter to it and are mocked."""
    names = ["torch", "torch.distributed", "verl", "verl.protocol", "verl.utils", "verl.utils.device"]
    spec = importlib.util.spec_from_file_location(path.stem + "_seqlen_balancing", path)
    module = importlib.util.module_from_spec(spec)
    with unittest.mock.patch.dict(sys.modules, {name: unittest.mock.MagicMock() for name in names}):
        spec.loader.exec_module(module)
    return module.get_seqlen_balanced_partitions


def busiest(parts, work):
    return max(int(work[part].sum()) for part in parts)


def chunks(samples, ranks):
    return np.array_split(np.arange(samples), ranks)


def lower_bound(work, ranks, equal=False):
    """Returns a lower bound of the busiest rank's work: the mean, or the costliest sample; with equal counts also the k
    costliest samples over k ranks, with the cheapest other samples that fill their counts."""
    bound = max(int(work.sum()) / ranks, int(work.max()))
    if equal:
        ascending = np.sort(work)
        others = len(work) // ranks - 1
        counts = np.arange(1, ranks + 1)
        sums = np.cumsum(ascending[::-1])[:ranks] + np.concatenate(([0], np.cumsum(ascending)))[counts * others]
        bound = max(bound, float((sums / counts).max()))
    return bound


def figures(ratios):
    return (f"mean {np.mean(ratios):.6f}, p99 {np.quantile(ratios, 0.99):.6f}, worst {max(ratios):.6f}, "
            f"above 1.002 {np.mean(np.array(ratios) > 1.002):.1%}")


def measure_ranks(options, ranks, samples):
    steps = lengths_of(options.steps, samples, 32768)
    works = work_of(steps)
    print(f"{samples} samples over {ranks} ranks, {options.steps} steps: busiest rank / lower bound")
    bounds = [lower_bound(work, ranks) for work in works]
    unbalanced = [busiest(chunks(samples, ranks), work) for work in works]
    print(f"  unbalanced           {figures([a / b for a, b in zip(unbalanced, bounds)])}")
    means = [most / (work.sum() / ranks) for most, work in zip(unbalanced, works)]
    print(f"  unbalanced, of mean  {figures(means)}")
    for sizes in ("any", "equal"):
        plans = plans_of(options.build, steps, ranks, sizes)
        most = [busiest(plan["micros"], work) for plan, work in zip(plans, works)]
        ours = [a / b for a, b in zip(most, bounds)]
        took = statistics.median(plan["seconds"] for plan in plans)
        print(f"  {sizes:<20} {figures(ours)}; {took * 1e6:.0f} us a call; "
              f"step time unbalanced / balanced {sum(unbalanced) / sum(most):.3f}")
        if sizes == "equal":
            tight = [a / lower_bound(work, ranks, True) for a, work in zip(most, works)]
            print(f"  {'  of equal counts':<20} {figures(tight)}")
        for name in ("verl", "slime") if options.peers else ():
            compare(peer(options.peers / f"{name}.py"), name, options, ranks, works, bounds, ours, took, sizes)


def compare(partition, name, options, ranks, works, bounds, ours, took, sizes):
    ratios, seconds = [], []
    for work, bound in zip(works, bounds):
        if sum(seconds) > options.peer_seconds:
            break
        costs = work.tolist()
        begin = time.process_time()
        parts = partition(costs, ranks, equal_size=sizes == "equal")
        seconds.append(time.process_time() - begin)
        ratios.append(busiest(parts, work) / bound)
    excess = [a - b for a, b in zip(ours, ratios)]
    print(f"    {name}, {len(ratios)} steps: {figures(ratios)}; {statistics.median(seconds) * 1e6:.0f} us a call, "
          f"{statistics.median(seconds) / took:.0f}x ours; ours is worse on {np.mean(np.array(excess) > 0):.1%}, "
          f"by at most {max(max(excess), 0):.1e}", flush=True)


def next_fit(lengths, max_tokens):
    """Cuts the samples into micro-batches in their order."""
    micros, room = [[]], max_tokens
    for length in lengths:
        if length > room:
            micros.append([])
            room = max_tokens
        micros[-1].append(length)
        room -= length
    return [np.array(micro) for micro in micros]


def packed_rows(lengths, max_tokens):
    """Packs the same documents into rows of max_tokens, best-fit decreasing."""
    rows, rooms = [], []
    for length in sorted(lengths, reverse=True):
        fits = [i for i, room in enumerate(rooms) if room >= length]
        if fits:
            best = min(fits, key=rooms.__getitem__)
        else:
            best = len(rows)
            rows.append([])
            rooms.append(max_tokens)
        rows[best].append(length)
        rooms[best] -= length
    return [np.array(row) for row in rows]


def time_of(ranks):
    """Returns the time of a step if ranks wait for each other at its end, and if they wait after each micro-batch.
    `ranks` holds the work by rank and micro-batch."""
    count = max(map(len, ranks))
    by_micro = [[rank[i] if i < len(rank) else 0 for rank in ranks] for i in range(count)]
    return max(map(sum, ranks)), sum(map(max, by_micro))


def times_of_packed_rows(steps, ranks, max_tokens):
    """Like time_of(), for all steps together. Each step has as many rows as the documents of one fill, in random
    order."""
    works = []
    for step in steps:
        # The padding of a row costs work, too.
        works += [24576 * max_tokens + int((row * row).sum()) for row in packed_rows(step.tolist(), max_tokens)]
    np.random.default_rng(2).shuffle(works)
    count = round(len(works) / len(steps) / ranks)
    whole = np.array(works)[: len(works) // (count * ranks) * count * ranks].reshape(-1, ranks, count)
    times = [time_of(step.tolist()) for step in whole]
    return [sum(time[i] for time in times) * len(works) / whole.size for i in (0, 1)]


def measure_micro_batches(options, ranks, samples, max_tokens):
    steps = lengths_of(options.steps, samples, max_tokens)
    fewest = [math.ceil(int(step.sum()) / (ranks * max_tokens)) for step in steps]
    bounds = [lower_bound(work_of(step), ranks) for step in steps]
    unbalanced = []
    for step in steps:
        micros = [next_fit(step[part], max_tokens) for part in chunks(samples, ranks)]
        unbalanced.append(time_of([[int(work_of(micro).sum()) for micro in of_rank] for of_rank in micros]))
    totals = {
        "unbalanced": [sum(time[i] for time in unbalanced) for i in (0, 1)],
        "packed rows": times_of_packed_rows(steps, ranks, max_tokens),
    }
    print(f"micro-batches of at most {max_tokens} tokens, {samples} samples over {ranks} ranks, {options.steps} steps")
    for sizes in ("any", "equal", "micro"):
        plans = plans_of(options.build, steps, ranks, sizes, max_tokens)
        works = [[int(work_of(step[m]).sum()) for m in plan["micros"]] for step, plan in zip(steps, plans)]
        times = [time_of(np.array(work).reshape(ranks, -1).tolist()) for work in works]
        extra = np.array([plan["num_micro"] for plan in plans]) - fewest
        used = [step.sum() / (ranks * plan["num_micro"] * max_tokens) for step, plan in zip(steps, plans)]
        most = [max(work) / max(sum(work) / len(work), work_of(step.max())) for work, step in zip(works, steps)]
        name = 'any, wait="micro"' if sizes == "micro" else sizes
        print(f"  {name}: busiest rank / bound {figures([a / b for (a, _), b in zip(times, bounds)])}")
        print(f"    num_micro: mean {np.mean([plan['num_micro'] for plan in plans]):.2f}, above the fewest by 0 on "
              f"{np.mean(extra == 0):.1%}, by 1 on {np.mean(extra == 1):.1%}, by more on {np.mean(extra > 1):.1%}; "
              f"{1 - np.mean(used):.1%} of max_tokens unused (padding, where rows must be of one length)")
        print(f"    costliest micro-batch / bound: {figures(most)}")
        waits = [plan["waiting"] / plan["waiting_bound"] for plan in plans]
        print(f"    time of ranks that wait in each micro-batch / its bound: {figures(waits)}")
        print(f"    {statistics.median(plan['seconds'] for plan in plans) * 1e6:.0f} us a call")
        for name, total in totals.items():
            gains = [total[i] / sum(time[i] for time in times) for i in (0, 1)]
            print(f"    step time of {name} / ours: {gains[0]:.3f}, with a wait after each micro-batch {gains[1]:.3f}")


def measure_delay(options, ranks, samples):
    steps = lengths_of(options.steps, samples, 32768)
    lines = "".join(" ".join(map(str, lengths)) + "\n" for lengths in steps.tolist())
    print(f"long samples that wait, {samples} samples over {ranks} ranks, {options.steps} steps: step time / mean of the ranks")
    for max_delay in (0, 4, 16, 64):
        command = [options.build / "bench/plan_steps", COST, str(ranks), "any", "0", str(max_delay)]
        total = json.loads(subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout)
        print(f"  at most {max_delay:2} steps: {total['busiest'] / total['mean']:.3f}; {total['delayed'] / total['samples']:.2%} "
              f"wait, {total['waited'] / max(total['delayed'], 1):.1f} steps on average, at most {total['longest_wait']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--build", type=pathlib.Path, default=root / "build/release", help="of the release preset")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--peer-seconds", type=float, default=60)
    options = parser.parse_args()
    measure_ranks(options, 8, 256)
    measure_ranks(options, 64, 4096)
    measure_micro_batches(options, 8, 256, 8192)
    measure_micro_batches(options, 8, 1024, 32768)
    print("max_tokens is the longest sample that there can be:")
    for ranks in (4, 8, 64):
        measure_micro_batches(options, ranks, 32 * ranks, 32768)
    measure_delay(options, 8, 64)
    measure_delay(options, 64, 512)


if __name__ == "__main__":
    main()
