"""Torch's gradients: fairscale's bucketer, and DistributedDataParallel."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import process_groups
import pytest
import ranks
import torch

import levada

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
        for cap in (-1, 0, 0.25, 25):
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
        tell(order=order, buckets=bucketer._reduce.stats.buckets)
        for other in (even if rank % 2 else odd, None):
            try: bucketer.reduce_scatter_async([torch.ones(1)], other)
            except levada.InvalidArgument as error: tell(error=str(error))
        dist.destroy_process_group()
        """,
    )
    for only, *errors in told:
        assert only["order"] == [True] * 64
        assert only["buckets"] == 1, "groups of the same ranks share one"
        assert len(errors) == 2 and all("a process group that this process belongs to" in each["error"] for each in errors)


def test_fairscales_bucketer_reduces_on_devices_and_after_its_group_was_recreated(tmp_path: pathlib.Path) -> None:
    """CPU tensors stand in for the devices' buckets; on another device only torch's part differs."""
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        from levada.dropin import fairscale
        bucketer = fairscale.ReduceScatterBucketer()
        def reduced(group):
            results = []
            bucketer.reduce_scatter_async([torch.full((2,), 1.0 + rank + to) for to in range(2)], group, results.append)
            bucketer.flush()
            return [each.tolist() for each in results]
        tell(first=reduced(dist.group.WORLD))
        before = bucketer._membership(dist.group.WORLD)
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method="file://" + os.path.abspath(__file__) + ".store", rank=rank, world_size=2)
        tell(second=reduced(dist.group.WORLD), anew=bucketer._membership(dist.group.WORLD) is not before)
        try: bucketer.reduce_scatter_async([torch.ones(1, device="meta")] * 2, dist.group.WORLD)
        except levada.Unsupported as error: tell(error=str(error))
        fairscale.on_cpu = levada.reduce.reduce.on_cpu = lambda inputs: False
        tell(device=reduced(dist.group.WORLD), buckets=bucketer._reduce.stats.buckets)
        """,
    )
    for rank, mine in enumerate(told):
        sums = [[3.0 + 2 * rank] * 2]
        assert mine[0] == {"first": sums} and mine[1] == {"second": sums, "anew": True}
        assert mine[2] == {"error": "this process group has no backend for tensors on meta"}
        assert mine[3] == {"device": sums, "buckets": 2}


def test_the_example_trains_identically_with_the_hook() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    script = [EXAMPLES / "ddp_hook.py", "--steps", "5", "--width", "64"]
    ran = subprocess.run([*command, *script], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"largest relative difference (\S+)", ran.stdout)
    assert found and float(found[1]) < 1e-5, ran.stdout


def test_sums_over_c10d_follow_the_order_of_ranks(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        4,
        """
        job = levada.join(dist.group.WORLD, engine="c10d")
        given = torch.full((4,), [1e8, 1.0, -1e8, 1.0][rank])
        halves = torch.full((8,), [256.0, 1.0, 1.0, 1.0][rank], dtype=torch.bfloat16)
        with levada.ReduceScatter(job) as reduce:
            sizes = [1, 0, 1000, 100_000]
            whole = [reduce(torch.arange(4 * size, dtype=torch.int64) + rank) for size in sizes]
            sums = reduce(given), reduce(halves), reduce(given, op="average")
        right = [bool((each.wait() == 4 * torch.arange(rank * size, rank * size + size) + 6).all())
                 for each, size in zip(whole, sizes)]
        tell(right=right, sum=sums[0].wait().item(), halves=sums[1].wait()[0].item(), average=sums[2].wait().item())
        try:
            with levada.ReduceScatter(job) as reduce: reduce(torch.zeros(8 if rank == 2 else 4))
        except levada.InvalidArgument as error:
            tell(error=str(error))
        """,
    )
    for sums, disagreed in told:
        assert sums["right"] == [True] * 4
        assert sums["sum"] == 1.0 and sums["average"] == 0.25, "((1e8 + 1) - 1e8) + 1"
        assert sums["halves"] == 260.0, "259 in float32, rounded once"
        assert "input 0 is float32 [1] on rank 0, float32 [2] on rank 2" in str(disagreed["error"])


def test_a_rank_killed_during_a_reduction_is_named_promptly(tmp_path: pathlib.Path) -> None:
    started = process_groups.start(
        tmp_path,
        3,
        """
        job = levada.join(dist.group.WORLD, engine="c10d")
        reduce = levada.ReduceScatter(job)
        last = time.monotonic()
        try:
            for number in range(10**9):
                if rank == 1 and number == 20: os.kill(os.getpid(), signal.SIGKILL)
                reduce(torch.ones(300_000)).wait()
                last = time.monotonic()
        except levada.PeerLost as error:
            tell(lost=error.rank, seconds=time.monotonic() - last)
        # To the others, a rank that ends first has died, too.
        other = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{2 - rank}.jsonl")
        for _ in range(1000):
            if os.path.exists(other): break
            time.sleep(0.02)
        os._exit(0)
        """,
    )
    outcomes = process_groups.finish(started, tmp_path)
    for rank in (0, 2):
        (only,) = outcomes[rank].told[0] or [{"errors": outcomes[rank].errors}]
        assert only["lost"] == 1 and only["seconds"] < ranks.CAP, only


def test_the_bucketer_asserts_and_calls_back_as_fairscales_does(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        from levada.dropin.fairscale import ReduceScatterBucketer
        bucketer, world, recorded = ReduceScatterBucketer(timeout=20), dist.group.WORLD, []
        def scaled(result): recorded.append((result * torch.ones(1, requires_grad=True)).requires_grad)
        bucketer.reduce_scatter_async([torch.ones(2)] * 2, world, scaled)
        bucketer.reduce_scatter_async([torch.ones(2, dtype=torch.int64)] * 2, world)
        bucketer.reduce_scatter_async([torch.ones(4_000_000)] * 2, world, scaled)
        for call in (bucketer.teardown, lambda: bucketer.reduce_scatter_async([torch.ones(2)] * 3, world)):
            try: call()
            except AssertionError as error: tell(error=str(error), known=isinstance(error, levada.InvalidArgument))
        bucketer.flush()
        keys = sorted(str(dtype) for dtype, device, group in bucketer.buckets if device.type == "cpu" and group is world)
        tell(recorded=recorded, keys=keys, groups=all(each.group is world for each in bucketer.buckets.values()))
        bucketer.teardown()
        """,
    )
    for teardown, length, only in told:
        assert teardown["known"] and "Incorrect call of teardown: 2 inputs are not reduced yet" in str(teardown["error"])
        assert length == {"error": "reduce_scatter received 3 inputs, expected group.size() (2)", "known": True}
        assert only == {"recorded": [False, False], "keys": ["torch.float32", "torch.int64"], "groups": True}


def test_gradients_on_a_device_are_averaged_by_its_backend(tmp_path: pathlib.Path) -> None:
    """CPU tensors stand in for the device's; on another device only torch's part differs."""
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        import levada.ddp
        from torch.nn.parallel import DistributedDataParallel
        def gradients(through_levada):
            torch.manual_seed(1)
            model = DistributedDataParallel(torch.nn.Linear(5, 3))
            if through_levada: model.register_comm_hook(levada.ddp.State(), levada.ddp.average)
            model(torch.full((2, 5), 1.0 + rank)).square().sum().backward()
            return [each.grad.flatten().tolist() for each in model.parameters()]
        theirs, ours = gradients(False), gradients(True)
        levada.ddp.on_cpu = lambda tensor: False
        tell(theirs=theirs, ours=ours, on_device=gradients(True))
        class Elsewhere:
            is_cpu, device = False, "cuda:0"
        try: levada.ReduceScatter().all_reduce(Elsewhere())
        except levada.Unsupported as error: tell(error=str(error))
        """,
    )
    for found, refused in told:
        for ours, theirs, on_device in zip(found["ours"], found["theirs"], found["on_device"], strict=True):
            assert ours == pytest.approx(theirs) and on_device == pytest.approx(theirs)
        assert refused["error"] == "all_reduce() takes a tensor on the CPU, got one on cuda:0; use torch.distributed's own"


def test_an_average_on_a_device_overflows_only_if_the_result_does(tmp_path: pathlib.Path) -> None:
    """CPU tensors stand in for the device's; on another device only torch's part differs."""
    told = process_groups.succeed(
        tmp_path,
        3,
        """
        import types
        import levada.ddp
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
        from levada.reduce.device import DeviceReduce
        def bucket(values): return types.SimpleNamespace(buffer=lambda: values)
        half = torch.tensor([60000.0, 30000.0 + 16 * rank, 1.0 + rank, -60000.0, 0.1, 7.0 / (1 + rank)], dtype=torch.float16)
        hooked = allreduce_hook(None, bucket(half.clone())).wait().tolist()
        levada.ddp.on_cpu = lambda tensor: False
        ours = levada.ddp.average(levada.ddp.State(), bucket(half.clone())).wait().tolist()
        tell(hooked=hooked, ours=ours)
        for capacity in (4096, 0):
            reduce = DeviceReduce(capacity, 2, 30.0)
            handles = [reduce.reduce_scatter(dist.group.WORLD, half, op, None) for op in ("average", "sum")]
            kept = half.tolist()
            average, total = [handle.wait().tolist() for handle in handles]
            tell(average=average, total=total, kept=kept == half.tolist())
        """,
    )
    for rank, (hooks, *reduced) in enumerate(told):
        assert hooks["ours"] == hooks["hooked"]
        assert hooks["ours"][0] == pytest.approx(60000.0, rel=2e-3)
        for each in reduced:
            assert each["average"] == pytest.approx(hooks["ours"][2 * rank : 2 * rank + 2], rel=2e-3)
            assert each["total"][0] == [float("inf"), 6.0, pytest.approx(0.3, rel=2e-3)][rank] and each["kept"]


def test_callbacks_on_a_device_run_at_the_same_places_on_every_rank(tmp_path: pathlib.Path) -> None:
    """CPU tensors stand in for the device's, with delays that differ between ranks."""
    told = process_groups.succeed(
        tmp_path,
        3,
        """
        import random
        from levada.reduce.device import DeviceReduce
        dawdle, world = random.Random(rank), dist.group.WORLD
        log = []
        for seed in range(8):
            reduce, chance = DeviceReduce(16 * 3, 1 + seed % 3, 30.0), random.Random(seed)
            def give(number):
                log.append(["enqueues", number])
                def call_back(result):
                    log.append(["called back", number, result.tolist() == [3.0 * number] * 4])
                    if number < 1000 and random.Random(number * 100 + seed).random() < 0.4:
                        give(1000 * (number + 1))
                return reduce.reduce_scatter(world, [torch.full((4,), float(number))] * 3, "sum", call_back)
            for number in range(12):
                time.sleep(dawdle.random() * 0.002)
                handle = give(number)
                if chance.random() < 0.1: handle.wait()
                if chance.random() < 0.1: reduce.flush()
            reduce.flush()
        tell(log=log)
        """,
    )
    ((first,), (second,), (third,)) = told
    assert first == second == third
    assert all(entry[2] for entry in first["log"] if entry[0] == "called back")


def test_an_interrupt_in_a_callback_on_a_device_defers_later_callbacks_to_the_next_flush(tmp_path: pathlib.Path) -> None:
    ((interrupted, flushed, later),) = process_groups.succeed(
        tmp_path,
        1,
        """
        from levada.reduce.device import DeviceReduce
        reduce, called = DeviceReduce(4096, 2, 30.0), []
        def enqueue(number):
            def call_back(result):
                called.append(number)
                if number == 0: raise KeyboardInterrupt
            reduce.reduce_scatter(dist.group.WORLD, [torch.ones(1)], "sum", call_back)
        for number in range(3): enqueue(number)
        try: reduce.flush()
        except KeyboardInterrupt: tell(called=list(called), pending=reduce.pending())
        reduce.flush()
        tell(called=list(called), pending=reduce.pending())
        enqueue(3)
        reduce.flush()
        tell(called=called, pending=reduce.pending())
        """,
    )
    assert interrupted == {"called": [0], "pending": 2}
    assert flushed == {"called": [0, 1, 2], "pending": 0}
    assert later == {"called": [0, 1, 2, 3], "pending": 0}


def test_buckets_on_a_device_behave_as_on_the_cpu(tmp_path: pathlib.Path) -> None:
    """CPU tensors stand in for the device's; on another device only torch's part differs."""
    told = process_groups.succeed(
        tmp_path,
        3,
        """
        from levada.reduce.device import DeviceReduce
        reduce, world, order = DeviceReduce(4096, 2, 30.0), dist.group.WORLD, []
        def give(name, inputs, op="sum", group=world):
            return reduce.reduce_scatter(group, inputs, op, lambda result: order.append([name, result.flatten().tolist()[:3]]))
        give("small", [torch.full((2, 5), 10.0 * rank + to).t() for to in range(3)])
        give("big", torch.ones(3000))
        last = give("small2", torch.arange(7.0).requires_grad_(), "average")
        give("empty", torch.zeros(0, 4))
        give("integer", [torch.tensor(rank)] * 3)
        if rank < 2: give("pair", torch.ones(2), group=dist.new_group([0, 1], use_local_synchronization=True))
        tell(done=last.done(), pending=reduce.pending())
        reduce.flush()
        tell(order=order, last=last.wait().tolist(), pending=reduce.pending())
        many = [give("many", torch.full((300,), float(n))) for n in range(20)]
        def raises(result): raise KeyError("of a callback")
        reduce.reduce_scatter(world, torch.ones(3), "sum", raises)
        try: reduce.flush()
        except KeyError as error: tell(many=[each.get()[0].item() for each in many], raised=str(error))
        wrong = reduce.reduce_scatter(world, torch.ones(6 if rank else 3), "sum", None)
        for call in (reduce.flush, wrong.wait, lambda: give("", [torch.ones(1)]), lambda: give("", torch.ones(3), "max"),
                     lambda: give("", [torch.ones(1), torch.ones(1), torch.ones(2)]), lambda: give("", torch.tensor(True)),
                     lambda: give("", torch.ones(3).bool()), lambda: levada.ReduceScatter()(torch.empty(4, device="meta"))):
            try: call()
            except Exception as error: tell(error=f"{type(error).__name__}: {error}")
        """,
    )
    for rank, mine in enumerate(told):
        begun, ended, many, *errors = mine
        assert begun == {"done": False, "pending": 4 + (rank < 2)}
        small2 = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 0.0, 0.0]][rank]
        order = [["big", [3.0] * 3], ["small", [30.0 + 3 * rank] * 3], ["empty", []], ["small2", small2], ["integer", [3]]]
        assert ended == {"order": order + [["pair", [2.0]]] * (rank < 2), "last": small2, "pending": 0}
        assert many == {"many": [3.0 * n for n in range(20)], "raised": "'of a callback'"}
        texts = [str(each["error"]) for each in errors]
        assert texts[0] == texts[1] == "InvalidArgument: ranks disagree: input 0 is [1] on rank 0, [2] on rank 1"
        for text, part in zip(texts[2:], ["each of the 3 ranks of the group, got 1", 'op is "max"',
                                          "tensor 2 is torch.float32 [2]", "cannot be divided", "sum does not support bool", "no backend for tensors on meta"],
                              strict=True):  # fmt: skip
            assert part in text


def test_a_lost_rank_ends_buckets_on_a_device_with_the_same_exception_in_every_later_call(tmp_path: pathlib.Path) -> None:
    told = process_groups.finish(process_groups.start(
        tmp_path,
        2,
        """
        from levada.reduce.device import DeviceReduce
        reduce, world = DeviceReduce(4096, 2, 5.0), dist.group.WORLD
        def give(dtype, size=4): return reduce.reduce_scatter(world, torch.ones(size, dtype=dtype), "sum", None)
        before = give(torch.float32)
        reduce.flush()
        first, second = give(torch.float32), give(torch.float64)
        dist.barrier()
        if rank == 1: os._exit(0)
        for call in (reduce.flush, reduce.flush, first.wait, first.get, second.wait, second.get, lambda: give(torch.int64),
                     lambda: give(torch.int64, 4096)):
            try: tell(result=str(call()))
            except Exception as error: tell(error=f"{type(error).__name__}: {error}")
        tell(done=first.done() and second.done(), pending=reduce.pending(), before=before.wait().tolist())
        os._exit(0)
        """,
    ), tmp_path)[0].told[0]  # fmt: skip
    *errors, end = told
    assert len(errors) == 8 and all(each == errors[0] for each in errors) and "error" in errors[0], errors
    assert end == {"done": True, "pending": 0, "before": [2.0, 2.0]}


def test_an_input_without_memory_on_a_device_is_not_enqueued_and_may_be_retried(tmp_path: pathlib.Path) -> None:
    ((told,),) = process_groups.succeed(
        tmp_path,
        1,
        """
        import levada.reduce.device as device
        from unittest import mock
        reduce, results = device.DeviceReduce(4096, 2, 30.0), []
        def give(dtype): reduce.reduce_scatter(dist.group.WORLD, torch.ones(2, dtype=dtype), "sum", results.append)
        give(torch.float32)
        failures = 0
        for method in ("__init__", "add"):
            for dtype in (torch.float64, torch.float32):
                with mock.patch.object(device._Bucket, method, side_effect=torch.OutOfMemoryError("too few bytes")):
                    try: give(dtype)
                    except torch.OutOfMemoryError: failures += 1
        reduce.flush()
        give(torch.float64)
        reduce.flush()
        tell(failures=failures, results=[str(each.dtype) for each in results], pending=reduce.pending())
        """,
    )
    assert told == {"failures": 3, "results": ["torch.float32"] * 2 + ["torch.float64"], "pending": 0}


@pytest.mark.parametrize("step", ["device, '_agree'", "device.DeviceReduce, '_launch'"])
def test_an_interrupted_reduction_on_a_device_ends_the_later_ones(tmp_path: pathlib.Path, step: str) -> None:
    ((told,),) = process_groups.succeed(
        tmp_path,
        1,
        f"""
        import levada.reduce.device as device
        from unittest import mock
        reduce = device.DeviceReduce(4096, 2, 30.0)
        handle = reduce.reduce_scatter(dist.group.WORLD, torch.ones(2), "sum", None)
        errors = []
        with mock.patch.object({step}, side_effect=KeyboardInterrupt):
            try: reduce.flush()
            except KeyboardInterrupt: errors.append("KeyboardInterrupt")
        for call in (reduce.flush, handle.wait):
            try: call()
            except levada.EngineError as error: errors.append(str(error))
        tell(errors=errors)
        """,
    )
    text = "KeyboardInterrupt interrupted a reduction of tensors on a device; ranks are out of step"
    assert told == {"errors": ["KeyboardInterrupt", text, text]}


def test_flush_reduces_on_the_cpu_even_if_a_callback_on_a_device_raises(tmp_path: pathlib.Path) -> None:
    """CPU tensors stand in for the device's part; on another device only torch's part differs."""
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        from levada.reduce.device import DeviceReduce
        reduce, results = levada.ReduceScatter(dist.group.WORLD, timeout=30.0), []
        reduce._devices = DeviceReduce(4096, 2, 30.0)
        def raises(_):
            if rank == 0: raise KeyError("of a callback")
        reduce._devices.reduce_scatter(dist.group.WORLD, torch.ones(2), "sum", raises)
        reduce(torch.ones(2), results.append)
        try: reduce.flush()
        except KeyError as error: tell(error=str(error))
        tell(results=[each.tolist() for each in results])
        dist.barrier()
        """,
    )
    assert told == [[{"error": "'of a callback'"}, {"results": [[2.0]]}], [{"results": [[2.0]]}]]


def test_tensors_that_torch_only_marks_as_negative_or_conjugate_are_reduced_as_they_read() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    given = [numbers.conj(), numbers.conj().imag, numbers.imag, numbers]
    reduce = levada.ReduceScatter()
    handles = [reduce([each]) for each in given]
    for handle, each in zip(handles, given, strict=True):
        assert torch.equal(handle.wait(), each)
    reduce.close()
    with pytest.raises(levada.InvalidArgument, match="is closed"):
        reduce.flush()


def test_streams_use_the_memory_of_a_bucket_on_a_device_one_after_another(tmp_path: pathlib.Path) -> None:
    """CPU tensors stand in for the device's, and its streams are simulated."""
    ((told,),) = process_groups.succeed(
        tmp_path,
        1,
        """
        import levada.reduce.device as device
        from unittest import mock
        class Stream:
            def __init__(self, name): self.name = name
            def wait_stream(self, other): log.append([self.name, "waits for", other.name])
        log, streams = [], {name: Stream(name) for name in "abc"}
        current = streams["a"]
        def record(tensor, stream): log.append([stream.name, "uses", tensor.numel()])
        with mock.patch.object(device._Ordered, "_current_stream", lambda self: current), \\
             mock.patch.object(torch.Tensor, "record_stream", record):
            reduce, results = device.DeviceReduce(4096, 2, 30.0), []
            handle = reduce.reduce_scatter(dist.group.WORLD, [torch.ones(2)], "sum", None)
            current = streams["b"]
            handle.wait()
            current = streams["c"]
            tell(before=list(log), result=handle.get().tolist(), after=log)
        """,
    )
    assert told["before"] == [["b", "waits for", "a"], ["b", "uses", 2]] * 2  # the launch: the result and the input
    assert told["after"][4:] == [["c", "waits for", "b"], ["c", "uses", 2]]
    assert told["result"] == [1.0, 1.0]
