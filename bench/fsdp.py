"""Compares FSDP2's reduce-scatter on the CPU over levada.fsdp.ReduceScatter and over gloo, alternately.

    python -m torch.distributed.run --standalone --nproc-per-node 4 bench/fsdp.py [--rounds 25]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

import levada.fsdp

WARM_UP = 5
ELEMENTS = (1 << 16, 1 << 20, 1 << 22)


def seconds(call):
    dist.barrier()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25, help="rounds that count")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    comm, world, options = levada.fsdp.ReduceScatter(), dist.group.WORLD, dist.ReduceScatterOptions()
    for elements in ELEMENTS:
        given, output = torch.randn(elements), torch.empty(elements // world.size())
        calls = {
            "gloo": lambda: world._reduce_scatter_base(output, given, options).wait(),
            "levada": lambda: comm(output, given, world, dist.ReduceOp.SUM),
        }
        times = {name: [] for name in calls}
        for _ in range(WARM_UP + rounds):
            for name, call in calls.items():
                times[name].append(seconds(call))
        gloo, ours = (statistics.median(times[name][WARM_UP:]) for name in calls)
        if world.rank() == 0:
            print(f"{elements * 4 >> 10} KiB: gloo {gloo * 1e3:.2f} ms, levada {ours * 1e3:.2f} ms, ratio {gloo / ours:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
