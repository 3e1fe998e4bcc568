"""Gradients of torch: fairscale's bucketer, and DistributedDataParallel."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import ranks

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def test_fairscales_bucketer_by_changing_one_import(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        4,
        """
        import torch
        import torch.distributed as dist
        from levada.dropin.fairscale import ReduceScatterBucketer
        dist.init_process_group("gloo", init_method=f"file://{os.path.dirname(os.path.abspath(__file__))}/store",
                                rank=rank, world_size=4)
        odd, even = dist.new_group([1, 3]), dist.new_group([0, 2])
        mine = odd if rank % 2 else even
        order = []
        for cap in (0, 0.25, 25):
            bucketer = ReduceScatterBucketer(cap)
            for size in (0, 1, 7, 4096, 262144):
                for dtype in (torch.float32, torch.bfloat16, torch.int64):
                    inputs = [torch.arange(size).remainder(50).add(to).to(dtype) for to in range(4)]
                    expected = (torch.arange(size).remainder(50).add(rank) * 4).to(dtype)
                    bucketer.reduce_scatter_async(inputs, dist.group.WORLD,
                        lambda result, expected=expected: order.append(torch.equal(result, expected) and result.dtype == expected.dtype))
            pair = [torch.full((2, 3), float(rank), requires_grad=True).t() for _ in range(2)]
            bucketer.reduce_scatter_async(pair, mine, lambda result: order.append(
                result.shape == (3, 2) and not result.requires_grad and bool((result == 2 * (rank % 2) + 2).all())))
            bucketer.flush()
            bucketer.teardown()
        same = dist.new_group([0, 1, 2, 3])
        bucketer = ReduceScatterBucketer()
        bucketer.reduce_scatter_async([torch.ones(3)] * 4, dist.group.WORLD)
        bucketer.reduce_scatter_async([torch.ones(3)] * 4, same)
        bucketer.flush()
        tell(order=order, buckets=bucketer._reduce.stats["buckets"])
        dist.destroy_process_group()
        """,
    )
    for (only,) in told:
        assert only["order"] == [True] * 48
        assert only["buckets"] == 1, "groups of the same ranks share one"


def test_the_example_trains_alike_with_the_hook() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    script = [EXAMPLES / "ddp_hook.py", "--steps", "5", "--width", "64"]
    ran = subprocess.run([*command, *script], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"largest relative difference (\S+)", ran.stdout)
    assert found and float(found[1]) < 1e-5, ran.stdout
