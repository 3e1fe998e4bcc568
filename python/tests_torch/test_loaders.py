"""A feed among the loaders of torch: in the place of a dataset, of a stateful loader, on a device."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import levada
import pytest
import ranks
import torch
from levada import _devices


def test_a_data_loader_takes_a_feed_for_an_iterable_dataset(tmp_path: pathlib.Path) -> None:
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


@pytest.mark.parametrize("reader", ["background", "process"])
def test_a_stateful_loader_goes_on_bit_by_bit_in_the_middle_of_an_epoch(tmp_path: pathlib.Path, reader: str) -> None:
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
            return levada.Feed(loader, reader={reader!r}, depth=3)
        whole = [batch.tolist() for batch in feed(1)]
        stopped = feed(1)
        first = [next(stopped).tolist() for _ in range(3)]
        time.sleep(0.2)  # for the reader to go ahead
        file = {str(tmp_path)!r} + f"/{{rank}}.pt"
        torch.save(stopped.state_dict(), file)
        stopped.close()
        resumed = feed(2)
        resumed.load_state_dict(torch.load(file))
        tell(whole=whole, first=first, rest=[batch.tolist() for batch in resumed])
        """,
    )
    for (mine,) in told:
        assert len(mine["whole"]) == 8 and mine["first"] + mine["rest"] == mine["whole"]


def test_tensors_go_to_the_device_and_nothing_else() -> None:
    tensor = torch.arange(6.0)
    batches = [{"x": tensor, "same": tensor, "meta": (torch.ones(2, dtype=torch.bfloat16), "text", 5)}]
    (moved,) = levada.Feed(batches, device="meta")
    assert moved["x"].device.type == "meta" and moved["x"].shape == (6,) and moved["x"] is moved["same"]
    assert moved["meta"][0].dtype == torch.bfloat16 and moved["meta"][0].device.type == "meta"
    assert moved["meta"][1:] == ("text", 5)
    (stayed,) = levada.Feed(batches, device=torch.device("cpu"))
    assert torch.equal(stayed["x"], tensor) and stayed["x"].device.type == "cpu"
    with pytest.raises(RuntimeError, match="nowhere"):
        levada.Feed(batches, device="nowhere")


def test_what_lies_on_a_device_does_not_pass_through_this_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pinned memory and events that torch has no device for here, and with meta for the device."""

    class Stage:
        reserved: list[int] = []
        held: list[Any] = []

        def __init__(self, device: Any) -> None:
            self.copied = SimpleNamespace(record=lambda: None)

        def reserve(self, size: int) -> None:
            self.reserved.append(size)

        def hold(self, tensor: Any) -> Any:
            self.held.append(tensor)
            return tensor

    monkeypatch.setattr(_devices, "_Stage", Stage)
    there, here = torch.ones(1000, device="meta"), torch.ones(3)
    moved = _devices._Staging(torch.device("meta")).move({"there": there, "here": [here, here]})
    assert moved["there"] is there and moved["here"][0].device.type == "meta" and moved["here"][0] is moved["here"][1]
    assert Stage.reserved == [512] and len(Stage.held) == 1 and Stage.held[0] is here
