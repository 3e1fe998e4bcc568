"""Runs the trainers of docs/frameworks and docs/migrate on two ranks. Run by `script/check frameworks`."""

from __future__ import annotations

import pathlib

import pages
import pytest

pytestmark = pytest.mark.timeout(300)


def test_transformers_trainer(tmp_path: pathlib.Path) -> None:
    told = pages.run(
        tmp_path,
        "frameworks/transformers.md",
        2,
        """
from accelerate.data_loader import DataLoaderShard, SeedableRandomSampler
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self, dropout, steps):
        super().__init__()
        torch.manual_seed(3)
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 1))
        self.steps = steps
    def forward(self, x, labels):
        if len(seen) == self.steps:
            raise InterruptedError
        train({"x": x})
        logits = self.net(x)
        return {"loss": (logits[:, 0] - labels).square().mean(), "logits": logits}
def trained(block, name, dropout, steps=None):
    global model, args
    model = Model(dropout, steps)
    args = TrainingArguments(
        f"{folder}/{name}", use_cpu=True, per_device_train_batch_size=2, num_train_epochs=2, seed=7, learning_rate=1e-3,
        save_strategy="steps", save_steps=5, report_to=[], disable_tqdm=True, logging_steps=100
    )
    try:
        exec(block, globals(), shown=block.removeprefix(made))
    except InterruptedError:
        pass
    return numbers(), [parameter.tolist() for parameter in model.parameters()]
made = "trainer = FeedTrainer(model, args, train_dataset=dataset)\\n"
before, after, resume = blocks
tell(plain=trained(before, "plain", 0.0), fed=trained(after, "fed", 0.0))
whole = trained(after, "whole", 0.2)
resume = made + resume
for stopped, saved in ((7, 5), (17, 15)):  # of twelve steps in an epoch
    trained(after, f"part{stopped}", 0.2, stopped)
    rest = trained(resume, f"part{stopped}", 0.2)
    tell(left=rest[0] == whole[0][saved:], same=rest[1] == whole[1])
""",
    )
    for mine in told:
        assert mine[0]["fed"] == mine[0]["plain"]
        assert mine[1:] == [{"left": True, "same": True}] * 2
    batches = [mine[0]["fed"][0] for mine in told]
    epochs = [[pages.flat(mine[half]) for mine in batches] for half in (slice(0, 12), slice(12, 24))]
    assert [sorted(sum(epoch, [])) for epoch in epochs] == [list(range(48))] * 2
    assert epochs[0] != epochs[1]


def test_lightning(tmp_path: pathlib.Path) -> None:
    told = pages.run(
        tmp_path,
        "frameworks/lightning.md",
        2,
        """
os.environ |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "run"}
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = torch.nn.Linear(3, 1)
    def training_step(self, batch, index):
        train(batch)
        return (self.net(batch["x"])[:, 0] - batch["labels"]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)
def trained(block, name):
    global model, trainer
    model = Model()
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[
            ModelCheckpoint(f"{folder}/{name}", every_n_train_steps=5, save_top_k=-1, filename="{step}"),
            ModelCheckpoint(f"{folder}/{name}", every_n_epochs=1, save_top_k=-1, filename="{epoch}"),
        ],
    )
    exec(block, globals())
    return numbers(), [parameter.tolist() for parameter in model.parameters()]
before, after, resume = blocks
tell(batches=trained(before, "plain")[0])
whole = trained(after, "whole")
tell(batches=whole[0])
for name, step in (("step=5", 5), ("step=15", 15), ("epoch=0", 12), ("epoch=1", 24)):
    checkpoint = f"{folder}/whole/{name}.ckpt"
    rest = trained(resume, name)
    tell(left=rest[0] == whole[0][step:], same=rest[1] == whole[1])
""",
    )
    for at in (0, 1):
        batches = [mine[at]["batches"] for mine in told]
        epochs = [[pages.flat(mine[12 * epoch : 12 * epoch + 12]) for mine in batches] for epoch in range(3)]
        assert [sorted(sum(epoch, [])) for epoch in epochs] == [list(range(48))] * 3
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    for mine in told:
        assert mine[2:] == [{"left": True, "same": True}] * 4
