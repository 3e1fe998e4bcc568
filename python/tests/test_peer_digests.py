"""check="digests": ranks that should get the same batches compare them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from ranks import run, succeed

FAULTY = '''
import random, re

class Box:
    "Values in a batch, of which a rank may make other ones than it got."
    at, rank, index = None, None, 0
    def __init__(self, number, values): self.number, self.values = number, values

def flatten(box): return (box.values,), box.number, ("values",)

def unflatten(number, children):
    values = children[0]
    if number == Box.at and rank == Box.rank and values is not None and values.nbytes:
        raw = bytearray(values.tobytes())
        raw[Box.index % len(raw)] ^= 1
        values = np.frombuffer(bytes(raw), values.dtype).reshape(values.shape)
    return Box(number, values)

levada.register(Box, flatten, unflatten)

def fault(rank, at, index=0): Box.rank, Box.at, Box.index = rank, at, index
def no_fault(): Box.rank = Box.at = None

def outcome(feed):
    "Steps that were taken, and what ended the pass if it was an error."
    steps = 0
    try:
        for _ in feed: steps += 1
    except levada.SourceError as error:
        return steps, str(error)
    return steps, ""
'''


@pytest.mark.long
def test_one_different_byte_on_any_rank_is_reported_and_equal_batches_pass(tmp_path: pathlib.Path) -> None:
    body = (
        FAULTY
        + '''
def case(chance):
    mesh = levada.Mesh.parse(chance.choice(["tp=4", "cp=4", "dp=2,tp=2", "cp=2,tp=2", "pp=2,tp=2", "dp=2,cp=2", "dp=4", "sp=2,dp=2"]))
    names = [axis for axis, _ in mesh.axes]
    sharing = [axis for axis in names if axis not in mesh.data_axes]
    divided = chance.choice([None, *sharing])
    steps, split = chance.choice([1, 3, 100, 101, 102, 130]), chance.random() < 0.5
    items = steps if split else steps * mesh.data_size
    def batches():
        for number in range(items):
            yield {"in": [{"box": Box(number, np.arange(64).reshape(8, 8) + number)}], "whole": np.full((8, 3), number)}
    placements = (["shard(dp,0)"] if split else []) + ([f"shard({divided},1)"] if divided else [])
    layout = None if not placements else {"in*": placements, "whole": ["shard(dp,0)"] if split else []}
    at = chance.randrange(items)
    victim = chance.randrange(4) if chance.random() < 0.8 else None
    options = dict(layout=layout, check="digests", divide="split" if split else "deal", readers=chance.choice(["one", "all"]),
                   access=chance.choice([None, "copy"]), prefetch=chance.choice([0, 2, 5]))
    no_fault()
    if victim is not None: fault(victim, at, chance.randrange(512))
    # what a rank gets, and who should get the same
    step = at if split else at // mesh.data_size
    gets = victim is not None and (split or at % mesh.data_size == mesh.data_coordinate(victim))
    peers = [] if victim is None else mesh.group(victim, [axis for axis in sharing if axis != divided])
    noticed = gets and len(peers) > 1
    taken, error = outcome(levada.Feed(batches(), mesh, **options))
    if not noticed:
        assert (taken, error) == (steps, ""), (str(mesh), options, taken, steps, error)
        return False
    due = min((done for done in (1, 101) if done > step), default=steps)
    due = min(due, steps)
    # a comparison at the end follows the last step
    expected = due - 1 if due in (1, 101) else steps
    assert taken == expected, (str(mesh), options, taken, expected, step, error)
    assert f"in the first {due} steps" in error and "in[0].box.values" in error, error
    named = set(map(int, re.findall(r"ranks? (\\d+) from rank (\\d+)", error)[0]))
    assert named <= set(peers) and (victim in named if len(peers) > 2 else named == set(peers)), (named, peers, error)
    return True

found = 0
for seed in range(CASES): found += case(random.Random(seed))
tell(found=found)
'''
    )
    told = succeed(tmp_path, 4, body.replace("CASES", "40"))
    assert told[0] == told[1] == told[2] == told[3] and 8 < told[0][0]["found"] < 36


def test_a_difference_after_the_last_comparison_is_raised_at_the_end_of_the_pass(tmp_path: pathlib.Path) -> None:
    body = (
        FAULTY
        + '''
def batches():
    for number in range(9): yield {"box": Box(number, np.arange(5))}
fault(2, 4)
feed = levada.Feed(batches(), levada.Mesh(tp=4), check="digests")
tell(outcome=outcome(feed))
list(levada.Feed(batches(), levada.Mesh(tp=4)))  # the default compares nothing
fault(2, 6)  # max_steps= ends a pass, too, and a loop that is left has no end to compare at
tell(outcome=outcome(levada.Feed(batches(), levada.Mesh(tp=4), check="digests", max_steps=7)))
for step, _ in enumerate(feed := levada.Feed(batches(), levada.Mesh(tp=4), check="digests")):
    if step == 7: break
feed.close()
fault(1, 3)
feed = levada.Feed((batch for batch in batches() for _ in range(10**6)), levada.Mesh(tp=4), check="digests")
taken = 0
try:
    for _ in feed:
        taken += 1
        Box.at = 3 if taken < 20 else None
        if rank == 3 and taken == 30: feed.request_stop()
except levada.SourceError as error: tell(stopped=str(error))
else: tell(stopped="")
'''
    )
    for mine in succeed(tmp_path, 4, body):
        assert mine[0]["outcome"][0] == 9 and "first 9 steps" in mine[0]["outcome"][1]
        assert "rank 2 from rank 0, in box.values" in mine[0]["outcome"][1]
        assert mine[1]["outcome"][0] == 7 and "first 7 steps" in mine[1]["outcome"][1]
        assert mine[2]["stopped"] == ""  # it got item 0 every time


def test_every_differing_group_is_named_with_all_its_fields(tmp_path: pathlib.Path) -> None:
    body = (
        FAULTY
        + '''
def batches():
    for number in range(4): yield {"a": Box(number, np.arange(5)), "b": Box(number, np.arange(3)), "c": np.arange(2)}
mesh = levada.Mesh(dp=2, tp=2)
fault(rank, mesh.data_coordinate(rank)) if rank in (1, 2) else no_fault()
tell(outcome=outcome(levada.Feed(batches(), mesh, check="digests")))
'''
    )
    for ((mine),) in succeed(tmp_path, 4, body):
        text = mine["outcome"][1]
        assert "rank 1 from rank 0, in a.values, b.values; rank 3 from rank 2, in a.values, b.values." in text


def test_batches_with_pickles_are_compared_by_their_tensors(tmp_path: pathlib.Path) -> None:
    body = (
        FAULTY
        + '''
class Foreign:
    def __init__(self): self.values = np.arange(4)
def batches():
    for number in range(3): yield {"object": Foreign(), "box": Box(number, np.arange(4))}
options = dict(check="digests", allow_pickle=True)
tell(outcome=outcome(levada.Feed(batches(), levada.Mesh(tp=2), **options)))
fault(1, 0)
tell(outcome=outcome(levada.Feed(batches(), levada.Mesh(tp=2), **options)))
'''
    )
    for mine in succeed(tmp_path, 2, body):
        assert mine[0]["outcome"] == [3, ""]
        assert mine[1]["outcome"][0] == 0 and "rank 1 from rank 0, in box.values" in mine[1]["outcome"][1]


def test_micro_batches_and_packed_batches_are_compared(tmp_path: pathlib.Path) -> None:
    body = (
        FAULTY
        + '''
def samples():
    chance = random.Random(4)
    for number in range(80):
        tokens = np.arange(chance.randint(3, 40))
        yield {"tokens": tokens, "labels": tokens + 1}
def collate(some):
    batch = levada.collate_packed(some)
    return {"packed": batch, "box": Box(int(batch["tokens"].sum()) % 7, batch["tokens"])}
layout = {"packed.tokens": "zigzag(cp,1)", "packed.labels": "zigzag(cp,1)"}
for mesh in (levada.Mesh(dp=2, tp=2), levada.Mesh(cp=2, tp=2), levada.Mesh(tp=2, dp=2)):
    for at, victim in ((None, None), (3, 3)):
        fault(victim, at)
        feed = levada.Feed(samples(), mesh, batch_size=4, max_tokens=100, collate_fn=collate, check="digests", access="copy")
        tell(outcome=outcome(feed))
'''
    )
    for mine in succeed(tmp_path, 4, body):
        for equal, other in zip(mine[::2], mine[1::2], strict=True):
            assert equal["outcome"][0] > 0 and equal["outcome"][1] == ""
            assert "in box.values" in other["outcome"][1] and "rank 3 from rank" in other["outcome"][1]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_of_a_data_loader_are_compared(tmp_path: pathlib.Path, workers: int) -> None:
    body = (
        FAULTY
        + '''
class Data:
    def __len__(self): return 48
    def __getitem__(self, number): return {"x": np.arange(4) + number, "id": number}
def collate(items):
    made = levada.collate(items)
    return {"packed": {"box": Box(int(made["id"].min()) // 8, made["x"])}, "id": made["id"]}
if __name__ == "__main__":
    for mesh in (levada.Mesh(dp=2, tp=2), levada.Mesh(dp=2, cp=2), levada.Mesh(tp=4))[: 1 if WORKERS else 3]:
        for victim in (None, 3):
            for options in ({}, {"on_error": "skip"}, {"check": "items"}):
                fault(victim, 3)
                loader = levada.DataLoader(Data(), 4, mesh=mesh, collate_fn=collate, num_workers=WORKERS, **{"check": "digests"} | options)
                tell(outcome=outcome(loader))
                loader.close()
'''
    )
    for mine in succeed(tmp_path, 4, body.replace("WORKERS", str(workers))):
        outcomes = [each["outcome"] for each in mine]
        for equal, other in zip(outcomes[0::6], outcomes[3::6], strict=True):
            assert equal[1] == "" and "rank 3 from rank" in other[1] and "packed.box.values" in other[1], other
        assert all(error == "" for _, error in outcomes[2::3]), "check='items' compares nothing"


def test_data_parallel_ranks_have_no_peers_to_compare_with(tmp_path: pathlib.Path) -> None:
    body = FAULTY + '''
fault(1, 1)
tell(outcome=outcome(levada.Feed(({"box": Box(n, np.arange(3) * n)} for n in range(6)), levada.Mesh(dp=2), check="digests")))
'''
    assert [mine[0]["outcome"] for mine in succeed(tmp_path, 2, body)] == [[3, ""]] * 2


def test_a_rank_that_leaves_has_the_same_effect_with_the_check(tmp_path: pathlib.Path) -> None:
    body = FAULTY + '''
try:
    for step, _ in enumerate(levada.Feed(({"box": Box(n, np.arange(3))} for n in range(6)), levada.Mesh(tp=3), check="digests", timeout=30)):
        if rank == 1 and step == 2: break
except levada.PeerLost as error: tell(lost=str(error))
'''
    told = run(tmp_path, 3, body).told
    assert "rank 1" in told[0][0]["lost"] and "rank 1" in told[2][0]["lost"] and told[1] == []


def test_the_command_reports_digests_of_batches_with_pickles(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mixed.py").write_text(
        "import numpy\nclass Foreign: pass\ndef batches():\n    return [{'x': numpy.arange(3), 'object': Foreign()}] * 4\n"
    )
    command = [sys.executable, "-m", "levada", "feed", "mixed:batches", "--mesh", "tp=2", "--allow-pickle"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
