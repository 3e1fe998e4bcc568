"""Ranks that differ in what they reduce on a device, simulated by CPU tensors. Run by `script/check python-torch`."""

from __future__ import annotations

import pathlib

import process_groups
import pytest


@pytest.mark.parametrize("capacity", [0, 64, 4096])
def test_an_input_that_a_rank_lacks_on_a_device_is_an_error_on_all_ranks_in_its_step(
    tmp_path: pathlib.Path, capacity: int
) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        f"""
        import random
        from levada.reduce.device import DeviceReduce
        drawn, errors, wrong = random.Random({capacity}), [], []
        reduce, world = DeviceReduce({capacity}, 2, 30.0), dist.group.WORLD
        lacking, where = drawn.randrange(4), drawn.randrange(2)
        for step in range(4):
            for number in range(4):
                if (step, number, rank) == (1, lacking, where): continue
                value = 10.0 * step + number
                def judge(result, step=step, value=value):
                    if step > 1 and result[0] != 2 * value: wrong.append([step, value, result.tolist()])
                try: reduce.reduce_scatter(world, [torch.full((4,), value)] * 2, "sum", judge)
                except levada.Error as error: errors.append([step, str(error)])
            try: reduce.flush()
            except levada.Error as error: errors.append([step, str(error)])
        tell(first=errors[0], wrong=wrong)
        """,
    )
    for (each,) in told:
        assert each["first"][0] == 1 and each["wrong"] == [] and "ranks disagree" in each["first"][1], each


def test_objects_on_devices_used_in_another_order_are_distinguished(tmp_path: pathlib.Path) -> None:
    """Torch's collectives have one order on all ranks, so another order is an error."""
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        from levada.reduce.device import DeviceReduce
        a, b = DeviceReduce(4096, 2, 30.0, "A"), DeviceReduce(4096, 2, 30.0, "B")
        for reduce in (b, a) if rank else (a, b):
            reduce.reduce_scatter(dist.group.WORLD, [torch.ones(2)] * 2, "sum", None)
            try: reduce.flush()
            except levada.InvalidArgument as error: tell(error=str(error))
        """,
    )
    first = "ranks disagree: the bucket is of A, sum of float32 on rank 0, of B, sum of float32 on rank 1"
    assert [each["error"] for each in told[0]] == [each["error"] for each in told[1]]
    assert told[0][0]["error"] == first and len(told[0]) == 2
