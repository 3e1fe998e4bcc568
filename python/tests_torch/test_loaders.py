"""A feed combined with torch's loaders: as a dataset, as a stateful loader, on a device."""

from __future__ import annotations

import gc
import multiprocessing
import pathlib
import time
import weakref
from types import SimpleNamespace
from typing import Any

import levada
import numpy as np
import pytest
import ranks
import torch
from levada.batch import devices as _devices
from torch.utils.data import DataLoader


def test_a_data_loader_accepts_a_feed_as_an_iterable_dataset(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        """
        import torch
        class Squares(torch.utils.data.Dataset):
            epoch = 0
            def set_epoch(self, epoch): self.epoch = epoch
            def __len__(self): return 12
            def __getitem__(self, i): return {"x": torch.tensor([i * i]), "epoch": self.epoch}
        class Sampler(torch.utils.data.SequentialSampler):
            epochs = []
            def set_epoch(self, epoch): self.epochs.append(epoch)
        dataset = Squares()
        inner = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=Sampler(dataset))
        feed = levada.Feed(inner)
        loader = torch.utils.data.DataLoader(feed, batch_size=None)
        for epoch in range(2):
            loader.dataset.set_epoch(epoch)
            tell(length=len(loader), got=[[b["x"].ravel().tolist(), b["epoch"].tolist()] for b in loader])
        tell(epochs=Sampler.epochs)
        """,
    )
    for rank, mine in enumerate(told):
        for epoch, each in zip((0, 1), mine[:2], strict=True):
            batches = [[4 * step + 2 * rank, 4 * step + 2 * rank + 1] for step in range(3)]
            assert each["length"] == 3
            assert each["got"] == [[[i * i for i in batch], [epoch] * 2] for batch in batches]
        assert mine[2] == {"epochs": [0, 1]}


def test_a_program_that_ends_while_its_loader_is_inside_torch_does_not_abort(tmp_path: pathlib.Path) -> None:
    outcome = ranks.run(
        tmp_path,
        1,
        """
        import torch
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 2
            def __getitem__(self, i):
                item, until = torch.ones(300, 300), time.monotonic() + 5 * i
                while time.monotonic() < until: item = torch.tanh(item @ item)
                return item
        for _ in levada.Feed(torch.utils.data.DataLoader(Slow())):
            break
        """,
    )
    assert outcome.status == 0 and "terminate" not in outcome.errors, outcome.errors


@pytest.mark.parametrize("iterate", ["thread", "inline"])
def test_a_stateful_loader_resumes_in_mid_epoch_bit_for_bit(tmp_path: pathlib.Path, iterate: str) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        f"""
        import torch
        from torchdata.stateful_dataloader import StatefulDataLoader
        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 48
            def __getitem__(self, i): return torch.tensor([i, i * i])
        def feed(seed):
            torch.manual_seed(seed)
            loader = StatefulDataLoader(Numbers(), batch_size=3, shuffle=True, num_workers=2)
            return levada.Feed(loader, iterate={iterate!r}, prefetch=3)
        def run():
            whole = [batch.tolist() for batch in feed(1)]
            stopped = feed(1)
            batches = iter(stopped)
            first = [next(batches).tolist() for _ in range(3)]
            time.sleep(0.2)  # for the reader to go ahead
            file = {str(tmp_path)!r} + f"/{{rank}}.pt"
            torch.save(stopped.state_dict(), file)
            stopped.close()
            resumed = feed(2)
            resumed.load_state_dict(torch.load(file))
            tell(whole=whole, first=first, rest=[batch.tolist() for batch in resumed])
        if __name__ == "__main__":
            run()
        """,
    )
    for (mine,) in told:
        assert len(mine["whole"]) == 8 and mine["first"] + mine["rest"] == mine["whole"]


def test_a_feed_follows_changes_of_its_data_loader_between_passes() -> None:
    loader = torch.utils.data.DataLoader([torch.tensor(number) for number in range(4)], batch_size=2, collate_fn=torch.stack)
    feed = levada.Feed(loader)
    assert [batch.tolist() for batch in feed] == [[0, 1], [2, 3]]
    loader.collate_fn = lambda items: -torch.stack(items)
    assert [batch.tolist() for batch in feed] == [[0, -1], [-2, -3]] == [batch.tolist() for batch in loader]
    loader.__dict__["dataset"] = [torch.tensor(number + 10) for number in range(4)]
    assert [batch.tolist() for batch in feed] == [[-10, -11], [-12, -13]]


def test_a_feed_does_not_use_the_workers_that_its_data_loader_has_kept() -> None:
    numbers: Any = range(4)
    loader = torch.utils.data.DataLoader(numbers, batch_size=2, num_workers=1, persistent_workers=True)
    feed = levada.Feed(loader)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]] == [batch.tolist() for batch in feed]


def test_workers_of_a_data_loader_end_when_its_pass_is_left() -> None:
    feed = levada.Feed(DataLoader(list(range(100)), num_workers=2))
    before = set(multiprocessing.active_children())
    batches = iter(feed)
    next(batches)
    assert len(set(multiprocessing.active_children()) - before) == 2
    feed.close()
    gc.collect()
    deadline = time.monotonic() + 60
    while (left := set(multiprocessing.active_children()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_only_tensors_move_to_the_device() -> None:
    tensor = torch.arange(6.0)
    batches = [{"x": tensor, "same": tensor, "meta": (torch.ones(2, dtype=torch.bfloat16), "text", 5)}]
    batches[0]["more"] = SimpleNamespace(x=tensor, odd={(0, 1): tensor})
    (moved,) = levada.Feed(batches, device="meta")
    assert moved["x"].device.type == "meta" and moved["x"].shape == (6,) and moved["x"] is moved["same"]
    assert moved["meta"][0].dtype == torch.bfloat16 and moved["meta"][0].device.type == "meta"
    assert moved["meta"][1:] == ("text", 5)
    assert moved["more"].x is moved["x"] and moved["more"].odd[0, 1] is moved["x"]
    (stayed,) = levada.Feed(batches, device=torch.device("cpu"))
    assert torch.equal(stayed["x"], tensor) and stayed["x"].device.type == "cpu"
    with pytest.raises(levada.InvalidArgument, match="nowhere"):
        levada.Feed(batches, device="nowhere")


def test_tensors_that_flattening_makes_are_moved_each_by_itself() -> None:
    class Ragged:
        def __init__(self, values: torch.Tensor, rows: int) -> None:
            self.values, self.rows = values, rows

    levada.register(Ragged, lambda it: ([it.values[: it.rows]], it.rows), lambda rows, parts: Ragged(parts[0], rows))
    moved = _devices.to_device([Ragged(torch.zeros(10, rows), rows) for rows in range(2, 8)], torch.device("meta"))
    assert [tuple(each.values.shape) for each in moved] == [(rows, rows) for rows in range(2, 8)]


def test_moved_tensors_are_freed_with_their_last_reference() -> None:
    gc.disable()
    try:
        moved = weakref.ref(_devices.to_device([torch.ones(3)], torch.device("meta"))[0])
        assert moved() is None
    finally:
        gc.enable()


def test_tensors_on_a_device_are_not_copied_through_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates pinned memory and events, which torch does not have here, and uses meta as the device."""

    class Stage:
        begun: list[Any] = []
        held: list[Any] = []

        def __init__(self, device: Any) -> None: ...

        def sent(self) -> None: ...

        def release(self) -> None: ...

        def begin(self, tensors: Any, registered: Any, wait: Any) -> None:
            self.begun.append(tensors)

        def hold(self, tensor: Any) -> Any:
            self.held.append(tensor)
            return tensor

    monkeypatch.setattr(_devices, "_Stage", Stage)
    monkeypatch.setattr(_devices, "_with_index", lambda device: device)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    there, here = torch.ones(1000, device="meta"), torch.ones(3)
    moved = _devices._DeviceCopies(torch.device("meta"), own_stream=False, buffers=None).send({"there": there, "here": [here, here]})()
    assert moved["there"] is there and moved["here"][0].device.type == "meta" and moved["here"][0] is moved["here"][1]
    ((begun,),) = Stage.begun
    assert begun is here and len(Stage.held) == 1 and Stage.held[0] is here


def test_tensors_that_require_gradients_do_so_on_the_device() -> None:
    batch = {"w": torch.nn.Parameter(torch.ones(2)), "fixed": torch.nn.Parameter(torch.ones(2), False), "x": torch.ones(2)}
    batch["g"] = torch.ones(2, requires_grad=True)
    (moved,) = levada.Feed([batch], device="meta")
    assert [type(each) for each in moved.values()] == [type(each) for each in batch.values()]
    assert [each.requires_grad for each in moved.values()] == [True, False, False, True]
    assert all(each.is_leaf and each.device.type == "meta" for each in moved.values())


class Streams:
    """Simulates torch.accelerator and torch.Event on a machine with two devices, which copy only when they are waited
    for."""

    def __init__(self) -> None:
        self.queues: dict[int, list[Any]] = {0: [], 1: []}

    def run(self, stream: int) -> None:
        while self.queues[stream]:
            self.queues[stream].pop(0)()

    def event(self, device: Any) -> Any:
        marked: list[int] = []
        return SimpleNamespace(
            record=lambda stream=0: marked.append(stream),  # the default is the current device's stream
            synchronize=lambda: [self.run(stream) for stream in marked],
            query=lambda: not any(self.queues[stream] for stream in marked),
        )

    def copy(self, tensor: Any, device: Any) -> Any:
        there = torch.empty_like(tensor)
        self.queues[device.index].append(lambda: there.copy_(tensor))
        return there


@pytest.mark.parametrize(("device", "current", "index"), [("cuda:1", 0, 1), ("cuda", 1, 1), ("cuda", 0, 0)])
def test_staging_memory_is_reused_once_the_device_has_copied_it(
    monkeypatch: pytest.MonkeyPatch, device: str, current: int, index: int
) -> None:
    streams = Streams()
    new_empty, to = torch.Tensor.new_empty, torch.Tensor.to
    monkeypatch.setattr(torch, "Event", streams.event)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: current)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: device.index)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda tensor, size, pin_memory: new_empty(tensor, size))
    monkeypatch.setattr(
        torch.Tensor, "to", lambda tensor, *to_, **given: streams.copy(tensor, *to_) if given else to(tensor, *to_)
    )
    move = _devices.mover(device)
    assert move is not None
    moved = [move({"x": torch.full((3,), float(step)), "step": step}) for step in range(6)]
    streams.run(0 if index == 1 else 1)
    assert streams.queues[index], "the device still copies"
    streams.run(index)
    assert [batch["x"].tolist() for batch in moved] == [[float(step)] * 3 for step in range(6)]


def test_images_keep_their_memory_format_on_a_device() -> None:
    images = torch.arange(120.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    stage = SimpleNamespace(_memory=torch.empty(1024, dtype=torch.uint8), _used=0, _is_registered=lambda _: False)
    held = _devices._Stage.hold(stage, images)  # type: ignore[arg-type]
    assert held.stride() == images.stride() and torch.equal(held, images)
    part = torch.arange(12.0).reshape(3, 4)[:, ::2]
    assert torch.equal(_devices._Stage.hold(stage, part), part)  # type: ignore[arg-type]


def test_an_absent_accelerator_that_torch_supports_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert _devices.accelerator() is None
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert _devices.accelerator() == torch.device("cuda")


def test_states_load_with_weights_only(tmp_path: pathlib.Path) -> None:
    feed = levada.Feed(range(5))
    states = [feed.state_dict()]
    batches = iter(feed)
    next(batches)
    states.append(feed.state_dict())
    feed.close()
    torch.save(states, tmp_path / "states.pt")
    assert torch.load(tmp_path / "states.pt", weights_only=True) == states


def test_states_of_a_feed_with_numpy_integers_load_with_weights_only(
    tmp_path: pathlib.Path,
) -> None:
    two = np.int64(2)
    rows = [{"x": torch.arange(2) + 2 * item} for item in range(8)]
    feed = levada.Feed(rows, divide="split", batch_size=two, skip=np.int32(1), max_steps=np.int64(5), prefetch=two)
    feed.set_epoch(np.int64(3))
    states = [feed.state_dict()]
    for batch in feed:
        states.append(feed.state_dict())
        last = batch["x"].tolist()
    assert len(states) == 6 and last == [10, 11]
    torch.save(states, tmp_path / "states.pt")
    assert torch.load(tmp_path / "states.pt", weights_only=True) == states
    resumed = levada.Feed(rows, divide="split", batch_size=two)
    resumed.load_state_dict(states[-1])
    assert resumed.epoch == 3 and [batch["x"][0].item() for batch in resumed] == [12, 14]


@pytest.mark.parametrize(("rows", "options", "steps"), [(9, {}, 1), (9, {"drop_last": True}, 1), (16, {}, 2)])
def test_the_length_of_a_feed_leaves_out_a_short_last_batch_that_is_dropped(
    rows: int, options: dict[str, bool], steps: int
) -> None:
    loader = DataLoader(range(rows), batch_size=8, **options)
    feed = levada.Feed(loader, divide="split", batch_size=8)
    assert len(feed) == len(list(feed)) == steps
    assert len(levada.Feed(loader, divide="split", batch_size=8, tail="short")) == len(loader)
