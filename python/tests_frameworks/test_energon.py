"""Runs docs/frameworks/energon.md on four ranks. Run by `script/check frameworks`."""

from __future__ import annotations

import io
import pathlib
import subprocess
import sys
import tarfile
from typing import Any

import pages
import pytest

pytestmark = pytest.mark.timeout(300)

SAMPLES = 96


def write_data_set(folder: pathlib.Path) -> None:
    folder.mkdir()
    for shard in range(8):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
            for number in range(12 * shard, 12 * shard + 12):
                text = str(number).encode()
                info = tarfile.TarInfo(f"{number:06}.txt")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text))
    command = [str(pathlib.Path(sys.executable).with_name("energon")), "prepare", str(folder), "--non-interactive", "--no-progress"]
    options = ["--num-workers", "1", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)


SETUP = """
import itertools, pickle
import megatron.energon as energon
checkpoints, folder = folder, DATA
@energon.edataclass
class Item(energon.Sample):
    number: int
@energon.edataclass
class Numbers(energon.Batch):
    x: torch.Tensor
class Encoder(energon.DefaultTaskEncoder):
    def __init__(self):
        super().__init__()
        self.cookers = [energon.Cooker(self.cook)]
    @energon.stateless
    def cook(self, raw):
        return Item(**energon.basic_sample_keys(raw), number=int(raw["txt"]))
    @energon.stateless
    def batch(self, samples):
        return Numbers.from_samples(samples, x=torch.tensor([sample.number for sample in samples]))
def train(batch):
    if isinstance(batch, dict):
        assert batch["keys"] == [f"{number:06}" for number in batch["x"].tolist()]
    seen.append((batch["x"] if isinstance(batch, dict) else batch.x).tolist())
endless = energon.get_train_dataset
def with_an_end(*arguments, **options):
    return endless(*arguments, repeat=False, **options)
def plain_loader(encoder, rank=0, size=1):
    workers = energon.WorkerConfig(rank=rank, world_size=size, num_workers=2 // size)
    options = {"batch_size": 4, "shuffle_buffer_size": 16, "max_samples_per_sequence": 12}
    return energon.get_savable_loader(energon.get_train_dataset(folder, worker_config=workers, task_encoder=encoder, **options))
"""


def run(folder: pathlib.Path, page: str | None, body: str) -> list[list[dict[str, Any]]]:
    write_data_set(folder / "data")
    return pages.run(folder, page, 4, SETUP.replace("DATA", repr(str(folder / "data"))) + body)


def test_ranks_get_the_batches_of_one_loader_and_resume_on_another_mesh(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        "frameworks/energon.md",
        """
dp_rank, steps = rank // 2, 12
before, stream, fed, resume = blocks
energon.get_train_dataset = with_an_end
exec(before)
tell(batches=numbers())
energon.get_train_dataset = endless
exec(stream)
torch.manual_seed(3)
steps = 20
exec(fed)
tell(batches=numbers(), drawn=torch.rand(1).item())
with open(f"{checkpoints}.{rank}", "wb") as file:
    pickle.dump(state, file)
barrier("saved")
with open(f"{checkpoints}.3", "rb") as file:
    state = pickle.load(file)
steps = 7
exec(resume)
whole = [batch.x.tolist() for batch in itertools.islice(plain_loader(Encoder()), 40)] if rank == 0 else None
tell(batches=numbers(), whole=whole)
energon.get_train_dataset = with_an_end
feed = make_feed(levada.Mesh(dp=2, tp=2))
for batch in feed:
    train(batch)
    if feed.step == 5:
        state = feed.state_dict()
tell(batches=numbers())
feed = make_feed(levada.Mesh(dp=4))
feed.load_state_dict(state)
for batch in feed:
    train(batch)
tell(batches=numbers())
""",
    )
    plain, fed, resumed, finite, finite_on = zip(*told)
    assert plain[0] == plain[1] and plain[2] == plain[3]
    assert sorted(pages.flat(plain[0]["batches"]) + pages.flat(plain[2]["batches"])) == list(range(SAMPLES))
    whole = resumed[0]["whole"]
    for rank in range(4):
        assert fed[rank]["batches"] == whole[rank // 2 :: 2]
        assert resumed[rank]["batches"] == whole[10 + rank :: 4][:7]
        assert fed[rank]["drawn"] == fed[3]["drawn"], "the loader has drawn from torch's generator on one rank"
    assert finite[0] == finite[1] and finite[2] == finite[3]
    items = [batch for step in zip(finite[0]["batches"], finite[2]["batches"], strict=True) for batch in step]
    assert sorted(pages.flat(items)) == list(range(SAMPLES))
    assert [each["batches"] for each in finite_on] == [items[10 + rank :: 4][:3] for rank in range(4)]


def test_a_feed_counts_the_batches_of_a_loader_and_refuses_to_lose_samples(tmp_path: pathlib.Path) -> None:
    told = run(
        tmp_path,
        None,
        """
class FeedEncoder(Encoder):
    @energon.stateless
    def encode_batch(self, batch):
        return {"keys": batch.__key__, "x": batch.x}
def make_feed(encoder=FeedEncoder):
    return levada.Feed(plain_loader(encoder()) if rank == 0 else None, mesh=levada.Mesh(dp=2, tp=2))
energon.get_train_dataset = with_an_end
feed = make_feed()
for batch in feed:
    train(batch)
    if feed.step == 5:
        state = feed.state_dict()
left = numbers()[5:]
feed = make_feed()
feed.load_state_dict(state)
for batch in feed:
    train(batch)
tell(same=numbers() == left, steps=len(left))
energon.get_train_dataset = endless
def after_a_break():
    feed = make_feed()
    for batch in feed:
        if feed.step == 2:
            time.sleep(3)  # until batches have been read ahead
            break
    next(iter(feed))
for use in (
    after_a_break,
    lambda: levada.Feed(plain_loader(FeedEncoder(), rank // 2, 2), mesh=levada.Mesh(dp=2, tp=2)),
    lambda: next(iter(make_feed(Encoder))),
):
    try:
        use()
    except (levada.InvalidArgument, levada.SourceError) as error:
        tell(refused=str(error))
""",
    )
    for counted, second_pass, part, sources in told:
        assert counted == {"same": True, "steps": 7}
        assert "this SavableDataLoader continues where the last pass was left" in second_pass["refused"]
        assert "WorkerConfig(rank=0, world_size=1)" in part["refused"]
        assert "batch.__sources__[0] cannot cross" in sources["refused"]
