"""Jobs of several hosts, each of which is a network namespace, have the results of jobs of one host. Run by `script/check
hosts`."""

from __future__ import annotations

import json
import pathlib
import struct
import textwrap
from collections.abc import Iterator
from typing import Any

import hosts as several
import numpy as np
import pytest
from host_jobs import Launcher
from host_scripts import ENGINE, JOIN


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[Launcher]:
    with several.hosts_or_skip(3) as made, Launcher(made) as launcher:
        yield launcher


CONFORMANCE = f"""
import levada.testing
import torch.distributed as dist
dist.init_process_group("gloo")
groups = [dist.new_group() for _ in range(9)]
# In one case a channel never ends, for which the rank that forwards it waits.
names = levada.testing.conformance(lambda: levada.join(groups.pop(), engine={ENGINE!r}, degree=1, leave_timeout=2.0))
tell(count=len(names), all=len(levada._levada.conformance_cases()))
"""


@pytest.mark.timeout(300)
def test_the_contract_of_engines_holds_on_two_hosts(launcher: Launcher) -> None:
    for mine in launcher.start([2, 2], CONFORMANCE).succeed(200.0):
        assert mine[0]["count"] == mine[0]["all"] > 50


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [[1, 1, 1], [2, 1, 2]])
def test_the_contract_of_engines_holds_and_batches_are_right_on_three_hosts_in_a_row(
    three_hosts: Launcher, ranks: list[int]
) -> None:
    for mine in three_hosts.start(ranks, CONFORMANCE).succeed(200.0):
        assert mine[0]["count"] > 50
    script = JOIN.replace("timeout=60", "timeout=60, degree=1") + """
tell(engine=job.engine, host_of=job.host_of)
batches = ({"x": np.full(100_000, i), "i": i} for i in range(7))
for i, batch in enumerate(levada.Feed(batches, levada.Mesh(tp=size), iterate="thread", group=job)):
    assert batch["i"] == i and (batch["x"] == i).all(), i
tell(steps=i + 1)
"""
    for mine in three_hosts.start(ranks, script).succeed():
        assert mine[0]["host_of"] == [host for host, count in enumerate(ranks) for _ in range(count)]
        assert mine[0]["engine"] == ("shm+c10d" if ENGINE == "auto" else ENGINE)  # connects hosts 0 to 1 to 2
        assert mine[1]["steps"] == 7


def test_a_rank_that_ends_waits_until_a_slow_one_on_another_host_has_taken_its_last_message(launcher: Launcher) -> None:
    script = """
from levada.job import c10d, groups
c10d._SLOTS = 1
lose = c10d.ProcessGroupTransport._lose
def noted(transport, link, peers, why):
    if peers:
        tell(lost=sorted(peers), why=why)
    lose(transport, link, peers, why)
c10d.ProcessGroupTransport._lose = noted
"""
    script += JOIN + """
for batch in levada.Feed(range(3), levada.Mesh(tp=size), group=job):
    pass
(transport,) = groups._transports
if rank == 0:
    transport._delivering.acquire()
    threading.Timer(3.0, transport._delivering.release).start()
    threading._shutdown = lambda: None  # leaves at once, but delivers nothing for three seconds
"""
    for told in launcher.start([2, 2], script).succeed():
        assert told == []


def test_ranks_that_have_left_notice_that_a_rank_on_another_host_is_killed(launcher: Launcher) -> None:
    script = "from levada.job import c10d, groups\nc10d._SLOTS = 64\n" + JOIN + """
for batch in levada.Feed(range(3), levada.Mesh(tp=size), group=job):
    pass
(transport,) = groups._transports
if rank == 3:
    transport._delivering.acquire()  # receives the others' last messages, and does not answer
    time.sleep(4)
    os.kill(os.getpid(), 9)
"""
    ended = launcher.start([2, 2], script).finish()
    assert [each.status for each in ended] == [0, 0, 0, -9]


def told_on_one_host_and_on_two(
    hosts: several.Hosts, launcher: Launcher, script: str
) -> list[list[list[dict[str, Any]]]]:
    # Workers of a pipeline import the main module.
    script = 'if __name__ == "__main__":\n' + textwrap.indent(JOIN + script, "    ")
    told = [launcher.start([4, 0], script, environment={"ONE_HOST": "1"}).succeed()]
    told += [launcher.start(ranks, script).succeed() for ranks in ([2, 2], [3, 1])]
    assert hosts.left(launcher.pids) == []
    assert [mine[0].pop("engine") for mine in told[0]] == ["shm"] * 4
    for other, host_of in zip(told[1:], ([0, 0, 1, 1], [0, 0, 0, 1])):
        engines = [mine[0].pop("engine") for mine in other]
        assert len(set(engines)) == 1 and engines[0] != "shm" and ENGINE in ("auto", engines[0])
        assert [mine[0].pop("host_of") for mine in other] == [host_of] * 4
    for mine in told[0]:
        mine[0].pop("host_of")
    return told


def test_a_feed_yields_the_same_batches_on_two_hosts_as_on_one(hosts: several.Hosts, launcher: Launcher) -> None:
    one, *two = told_on_one_host_and_on_two(
        hosts,
        launcher,
        """
tell(engine=job.engine, host_of=job.host_of)
def loader():
    buffer = np.zeros(300_000)
    for i in range(11):  # one structure after the other, and a last round that is not full
        buffer[:] = i
        yield [{"x": buffer, "i": i, "text": "a" * i}, (torch.arange(3 * i), None), {"y": [buffer[:7]]}][i % 3]
        buffer[:] = -1
for mesh in (levada.Mesh(dp=4), levada.Mesh(dp=2, tp=2), levada.Mesh(tp=2, dp=2), levada.Mesh(pp=4)):
    for readers in ("one", "dp", "all"):
        for access in (None, "copy"):
            digests = levada.Digests()
            feed = levada.Feed(loader(), mesh, group=job, readers=readers, access=access)
            for batch in feed:
                digests.add(batch)
            tell(mesh=str(mesh), readers=readers, access=access, fields=digests.fields(), steps=feed.step)
""",
    )
    assert all(len(mine) == 25 and all(each["fields"] for each in mine[1:]) for mine in one)
    for told in two:
        assert told == one


def write_copies(folder: pathlib.Path) -> tuple[int, int]:
    """Writes a token file for each host. That of host1 differs in 64 bytes, outside the blocks that are compared at the
    start. Returns the first and last token that differ."""
    documents, tokens = 300, 2_000
    ids = np.random.default_rng(1).integers(0, 30_000, documents * tokens, np.int32)
    numbers = np.arange(documents + 1)
    sizes = np.full(documents, tokens, np.int32).tobytes()
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, documents, documents + 1)
    index += sizes + (numbers[:-1] * tokens * 4).tobytes() + numbers.tobytes()
    begin = (ids.nbytes - 4096) // 63 * 20 // 4 + 2_000  # between blocks 20 and 21 of the 63 compared ones
    for host in ("host0", "host1"):
        (folder / host).mkdir()
        ids.tofile(folder / host / "c.bin")
        (folder / host / "c.idx").write_bytes(index)
        ids[begin : begin + 16] ^= 1
    return begin, begin + 15


@pytest.mark.parametrize("mesh", ["tp=4", "dp=2,tp=2", "tp=2,dp=2"])
def test_copies_of_a_file_that_differ_between_hosts_are_an_error_before_the_step_that_differs(
    launcher: Launcher, tmp_path: pathlib.Path, mesh: str
) -> None:
    first, _ = write_copies(tmp_path)
    sequence, batch = 1024, 2
    told = launcher.start(
        [2, 2],
        JOIN
        + f"""
corpus = levada.Corpus([f"{tmp_path}/{{os.uname().nodename}}/c"], seq_length={sequence})
mesh = levada.Mesh.parse({mesh!r})
for readers in ("host", "all", "one"):
    got = 0
    try:
        for batch in levada.Feed(corpus, mesh=mesh, batch_size={batch}, readers=readers, group=job):
            got += 1
        tell(got=got, text="none")
    except levada.SourceError as error:
        tell(got=got, text=str(error))
""",
    ).succeed()
    # With dp=2,tp=2 each host reads different samples, so only the readers of one host share a batch.
    shares_batches = mesh != "dp=2,tp=2"
    step = first // sequence // (batch * (1 if mesh == "tp=4" else 2))
    for mine in told:
        host, all_read, one = mine
        for found in (host, all_read) if shares_batches else ():
            assert found["got"] == step and f"could not read step {step}: the batch" in found["text"]
            assert "on host host0 and rank" in found["text"] and "on host host1, in labels, tokens;" in found["text"]
            assert "host0/c.bin" in found["text"] and 'readers="one"' in found["text"]
        if not shares_batches:
            assert host["text"] == all_read["text"] == "none"
        assert one["text"] == "none" and one["got"] > step
        assert [each["text"] for each in mine] == [each["text"] for each in told[0]]


def test_samples_reach_the_same_ranks_on_two_hosts_as_on_one(hosts: several.Hosts, launcher: Launcher) -> None:
    one, *two = told_on_one_host_and_on_two(
        hosts,
        launcher,
        """
from levada import exchange
tell(engine=job.engine, host_of=job.host_of)
import hashlib
random = np.random.default_rng(7)
lengths = {str(i): int(random.integers(0, 30_000)) for i in range(64)}
mine = [id for id in lengths if int(id) % size == rank]
store = exchange.Store()
tokens = [np.arange(lengths[id]) + int(id) for id in mine]
store.store(exchange.SampleBatch(mine, {"tokens": tokens, "reward": np.float32([int(id) for id in mine])},
                                 values=[{"name": id} for id in mine]))
in_parts = {to: [id for id in lengths if int(id) // 3 % 4 == to] for to in range(4)}
for wants in (in_parts, {to: list(lengths)[:40] for to in range(4)}):
    exchange.redistribute(store, wants, ["tokens", "reward"], group=job)
    got = wants.get(rank, [])
    batch = store.get(got, ["tokens", "reward"])
    digest = hashlib.sha256(batch["tokens"].tobytes() + batch["reward"].tobytes()).hexdigest()
    tell(got=got, digest=digest, right=all((batch.item("tokens", at) == np.arange(lengths[id]) + int(id)).all()
                                           for at, id in enumerate(got)))
""",
    )
    assert all(each["right"] for mine in one for each in mine[1:])
    for told in two:
        assert told == one


SUMS = """
import hashlib
tell(engine=job.engine, host_of=job.host_of)
random = np.random.default_rng(rank)
def reduced(numbers):
    sums = hashlib.sha256()
    with levada.ReduceScatter(capacity_mb=0.5, group=job) as reduce:
        for count in (4, 1000, 40_000, 7, 500_001):
            for op in ("sum", "average"):
                for each in numbers(count):
                    if op == "sum" or each.dtype.is_floating_point:
                        reduce(each, lambda sum: sums.update(sum.contiguous().view(torch.uint8).numpy().tobytes()), op=op)
        reduce.flush()
        sums.update(reduce.all_reduce(numbers(77)[0]).wait().numpy().tobytes())
        gathered = reduce.all_gather(np.uint8([rank])).wait().tolist()
    return {"sums": sums.hexdigest(), "gathered": gathered}
def integers(count):
    return [torch.from_numpy(random.integers(0, 2**bits, count)).to(dtype)
            for bits, dtype in ((62, torch.int64), (31, torch.int32), (7, torch.int8))]
def whole(count):
    return [torch.from_numpy(random.integers(0, 16, count)).to(dtype)
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)]
def rounded(count):
    return [torch.from_numpy(1000 * random.random(count)).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
"""


def test_exact_sums_on_two_hosts_equal_those_on_one_bit_for_bit(hosts: several.Hosts, launcher: Launcher) -> None:
    one, *two = told_on_one_host_and_on_two(
        hosts, launcher, SUMS + "tell(**reduced(integers))\ntell(**reduced(whole))\n"
    )
    for told in two:
        assert told == one


def test_rounded_sums_are_the_same_on_every_run_on_the_same_hosts(hosts: several.Hosts, launcher: Launcher) -> None:
    script = SUMS + "tell(**reduced(rounded))\n"
    one, _, three_and_one = told_on_one_host_and_on_two(hosts, launcher, script)
    assert three_and_one == one  # this layout adds ranks in the same order
    script = 'if __name__ == "__main__":\n' + textwrap.indent(JOIN + script, "    ")
    first, second = (launcher.start([2, 2], script).succeed() for _ in range(2))
    assert first == second and len({mine[1]["sums"] for mine in first}) == 4


@pytest.mark.skipif(ENGINE in ("c10d", "mpi"), reason="sends to each rank by itself")
@pytest.mark.parametrize(
    "script",
    [
        """
from levada import exchange
store = exchange.Store()
if rank == 0:
    store.store(exchange.SampleBatch(["a"], {"tokens": [np.zeros(2_000_000)]}))
exchange.redistribute(store, {to: ["a"] for to in range(size)}, ["tokens"], group=job)
""",
        """
with levada.ReduceScatter(group=job) as reduce:
    reduce(np.zeros(4 * 1_000_000)).wait()
""",
    ],
    ids=["exchange", "reduce-scatter"],
)
def test_16_mb_that_another_host_needs_leave_a_host_once(hosts: several.Hosts, launcher: Launcher, script: str) -> None:
    before = hosts[0].traffic().sent
    launcher.start([2, 2], JOIN + script).succeed()
    sent = hosts[0].traffic().sent - before
    assert 16_000_000 <= sent < 18_000_000, sent


def test_a_pipeline_yields_the_same_items_on_two_hosts_as_on_one(hosts: several.Hosts, launcher: Launcher) -> None:
    one, *two = told_on_one_host_and_on_two(
        hosts,
        launcher,
        """
tell(engine=job.engine, host_of=job.host_of)
numbers = levada.Pipeline(range(101)).shuffle(20)
for workers in (0, 1):
    ended = numbers.shard().map(lambda n: 2 * n).fullsync()
    tell(workers=workers, got=list(ended.run(workers, seed=7, group=job)))
got = [int(n) for n in levada.Feed(numbers.map(lambda n: 3 * n), levada.Mesh(dp=2, tp=2), readers="one", group=job)]
tell(fed=len(got))
""",
    )
    for mine in one:
        assert mine[1]["got"] == mine[2]["got"] and len(mine[1]["got"]) == 25 and mine[3]["fed"] == 50
    for told in two:
        assert told == one


@pytest.mark.timeout(300)
def test_a_report_of_hosts_whose_clocks_differ_by_days_explains_waits_across_them(tmp_path: pathlib.Path) -> None:
    days = 5 * 24 * 3600
    script = JOIN + f"""
def slow():
    for i in range(20):
        time.sleep(0.05)
        yield {{"x": np.full(100, i)}}
tell(clock=time.monotonic())
feed = levada.Feed(slow(), levada.Mesh(tp=size), group=job, record=True)
for _ in feed:
    pass
feed.write_trace({str(tmp_path / "trace.json")!r})
"""
    with several.hosts_or_skip(2, clock_step_s=days) as apart, Launcher(apart) as launcher:
        told = launcher.start([1, 1], script).succeed()
    assert told[1][0]["clock"] - told[0][0]["clock"] > days - 1000
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert max(span["ts"] + span["dur"] for span in spans) < 100e6  # microseconds since the first span
    rank_1 = next(event["pid"] for event in events if event["name"] == "process_name" and "rank 1" in event["args"]["name"])
    read = sum(span["dur"] for span in spans if span["pid"] == rank_1 and span["name"] == "waiting: reading storage")
    assert read > 0.5e6, sorted({(span["pid"], span["name"]) for span in spans})
