"""Losses of a training loop over a feed equal those of the plain loop."""

from __future__ import annotations

import pathlib

import ranks

TRAINING = """
import random
import torch

class Augmented(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, i):
        noise = torch.randn(8) + float(np.random.rand()) + random.random()
        return {"x": torch.full((8,), float(i)) + noise, "y": torch.rand(1)}

def train(make_feed, steps):
    torch.manual_seed(7); np.random.seed(7); random.seed(7)
    loader = torch.utils.data.DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for epoch in range(2):
        for _, batch in zip(range(steps), make_feed(loader)):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
    return losses
"""


def test_inline_losses_are_bit_identical_to_the_plain_loop(tmp_path: pathlib.Path) -> None:
    told = ranks.succeed(
        tmp_path,
        2,
        TRAINING + "mesh = levada.Mesh(tp=2)\n"
        "for steps in (6, 4):  # a whole epoch, and one that is left early\n"
        "    plain = train(lambda loader: loader, steps)\n"
        "    fed = train(lambda loader: levada.Feed(loader, mesh=mesh, iterate='inline'), steps)\n"
        "    tell(plain=plain, fed=fed)\n",
    )
    for steps, mine in zip((6, 4), told[0], strict=True):
        assert len(mine["plain"]) == 2 * steps and mine["fed"] == mine["plain"]
