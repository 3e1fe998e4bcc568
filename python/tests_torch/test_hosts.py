"""Jobs of several hosts, each of which is a network namespace. Run by `script/check hosts`.

LEVADA_TEST_ENGINE names the engine that joins several hosts; otherwise levada.join() chooses it. LEVADA_KILLS sets how
often a rank is killed, LEVADA_FAULTS how often a host is cut off and a link cut for a while, each at a random moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import statistics
import struct
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import hosts as several
import numpy as np
import pytest

ENGINE = os.environ.get("LEVADA_TEST_ENGINE", "auto")
KILLS = int(os.environ.get("LEVADA_KILLS", "4"))
FAULTS = int(os.environ.get("LEVADA_FAULTS", "1"))
WITHIN = 10.0
"""Seconds within which all ranks must learn of a loss on a busy machine; the median must be less than MEDIAN."""
MEDIAN = 1.0

JOIN = f"""
import os, threading, time
import numpy as np
import torch
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
job = levada.join(engine="auto" if os.environ.get("ONE_HOST") else {ENGINE!r}, timeout=60)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[several.Hosts]:
    with several.hosts_or_skip(2) as made:
        yield made


@pytest.fixture(scope="module")
def launcher(hosts: several.Hosts) -> Iterator[several.Launcher]:
    with several.Launcher(hosts) as made:
        yield made


@pytest.fixture(scope="module")
def seconds_to_notice(request: pytest.FixtureRequest) -> Iterator[list[float]]:
    seconds: list[float] = []
    yield seconds
    capture: Any = request.config.pluginmanager.get_plugin("capturemanager")
    if seconds:
        median, last = statistics.median(seconds), max(seconds)
        with capture.global_and_fixture_disabled():
            print(f"\nall ranks knew of a killed one after {median:.3f} s, at most {last:.3f} s, {len(seconds)} times")


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[several.Launcher]:
    with several.hosts_or_skip(3) as made, several.Launcher(made) as launcher:
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
def test_the_contract_of_engines_holds_on_two_hosts(launcher: several.Launcher) -> None:
    for mine in launcher.start([2, 2], CONFORMANCE).succeed(200.0):
        assert mine[0]["count"] == mine[0]["all"] > 50


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [[1, 1, 1], [2, 1, 2]])
def test_the_contract_of_engines_holds_and_batches_are_right_on_three_hosts_in_a_row(
    three_hosts: several.Launcher, ranks: list[int]
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


def told_on_one_host_and_on_two(
    hosts: several.Hosts, launcher: several.Launcher, script: str
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


def test_a_feed_gives_the_same_batches_on_two_hosts_as_on_one(hosts: several.Hosts, launcher: several.Launcher) -> None:
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
    launcher: several.Launcher, tmp_path: pathlib.Path, mesh: str
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


def test_samples_reach_the_same_ranks_on_two_hosts_as_on_one(hosts: several.Hosts, launcher: several.Launcher) -> None:
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


def test_exact_sums_on_two_hosts_are_those_on_one_bit_for_bit(
    hosts: several.Hosts, launcher: several.Launcher
) -> None:
    one, *two = told_on_one_host_and_on_two(
        hosts, launcher, SUMS + "tell(**reduced(integers))\ntell(**reduced(whole))\n"
    )
    for told in two:
        assert told == one


def test_rounded_sums_are_the_same_on_every_run_on_the_same_hosts(
    hosts: several.Hosts, launcher: several.Launcher
) -> None:
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
def test_16_mb_that_another_host_needs_leave_a_host_once(
    hosts: several.Hosts, launcher: several.Launcher, script: str
) -> None:
    before = hosts[0].traffic().sent
    launcher.start([2, 2], JOIN + script).succeed()
    sent = hosts[0].traffic().sent - before
    assert 16_000_000 <= sent < 18_000_000, sent


def test_a_pipeline_gives_the_same_items_on_two_hosts_as_on_one(
    hosts: several.Hosts, launcher: several.Launcher
) -> None:
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


WORK = {
    "feed": """
import itertools
def work(count):
    batches = ({"x": np.full(100_000, i)} for i in itertools.count())
    for batch in levada.Feed(batches, levada.Mesh(dp=2, tp=size // 2), group=job):
        count()
""",
    "exchange": """
from levada import exchange
def work(count):
    while True:
        store = exchange.Store()
        store.store(exchange.SampleBatch([str(rank)], {"tokens": [np.arange(200_000)]}))
        exchange.redistribute(store, {to: [str(of) for of in range(size)] for to in range(size)}, ["tokens"], group=job)
        count()
""",
    "reduce": """
def work(count):
    reduce = levada.ReduceScatter(group=job)
    while True:
        reduce(np.full(size * 50_000, 1.0)).wait()
        count()
""",
    "nothing": """
def work(count):
    over = threading.Event()
    batches = (i if i < 5 else over.wait(600) for i in range(6))
    try:
        for batch in levada.Feed(batches, levada.Mesh(tp=size), iterate="thread", group=job):
            count()
    finally:
        over.set()
""",
}

UNTIL_LOST = """
counted = 0
def count():
    global counted
    counted += 1
    if counted == 5: tell(works=True)
try:
    work(count)
except BaseException as error:
    tell(at=time.monotonic(), kind=type(error).__name__, rank=getattr(error, "rank", None), text=str(error))
"""


def expect_loss(
    hosts: several.Hosts, launcher: several.Launcher, job: several.Job, victims: set[int], since: float, within: float
) -> float:
    """Checks that every other rank learned of the loss of one of the victims. Returns the seconds until the last one
    did."""
    ended = job.finish(within + 30.0)
    seconds: list[float] = []
    for rank, each in enumerate(ended):
        if rank in victims:
            continue
        last = each.told[-1]
        assert each.status == 0, each.errors
        assert last.get("kind") == "PeerLost" and last["rank"] in victims, (rank, last, victims)
        seconds.append(float(last["at"]) - since)
    assert max(seconds) < within, seconds
    assert hosts.left(launcher.pids) == []
    return max(seconds)


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_rank_is_named_on_every_host(
    hosts: several.Hosts, launcher: several.Launcher, seconds_to_notice: list[float], number: int
) -> None:
    kinds = [*WORK]
    victim = number % 4
    moment = random.Random(number).uniform(0, 0.3)
    job = launcher.start([2, 2], JOIN + WORK[kinds[number // 4 % len(kinds)]] + UNTIL_LOST)
    job.wait_for("works", range(4))
    time.sleep(moment)  # a random moment of the ranks' work
    since = time.monotonic()
    os.kill(job.pids[victim], 9)
    seconds_to_notice.append(expect_loss(hosts, launcher, job, {victim}, since, WITHIN))


def test_half_of_the_killed_ranks_are_noticed_within_a_second(seconds_to_notice: list[float]) -> None:
    if not seconds_to_notice:
        pytest.skip("no rank has been killed in this run")
    assert statistics.median(seconds_to_notice) < MEDIAN, sorted(seconds_to_notice)


def test_a_host_whose_ranks_are_all_killed_is_noticed_on_the_other(
    hosts: several.Hosts, launcher: several.Launcher
) -> None:
    for victims in ({0, 1}, {2, 3}):
        job = launcher.start([2, 2], JOIN + WORK["feed"] + UNTIL_LOST)
        job.wait_for("works", range(4))
        since = time.monotonic()
        for victim in victims:
            os.kill(job.pids[victim], 9)
        expect_loss(hosts, launcher, job, victims, since, WITHIN)


def expect_cut(
    hosts: several.Hosts,
    launcher: several.Launcher,
    kind: str,
    moment: float,
    environment: dict[str, str],
    silence: int,
    cut: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
) -> None:
    """Cuts a host off from a job, `moment` seconds into its work. Checks that every rank learns of the loss of the
    other host."""
    job = launcher.start([2, 2], JOIN + WORK[kind] + UNTIL_LOST, environment=environment)
    job.wait_for("works", range(4))
    time.sleep(moment)
    since = time.monotonic()
    with (cut or hosts[1].is_cut)():
        ended = job.finish(60.0)
    for rank, each in enumerate(ended):
        last = each.told[-1]
        far, ranks = (hosts[1], "2, 3") if rank < 2 else (hosts[0], "0, 1")
        assert each.status == 0 and last.get("kind") == "PeerLost" and str(last["rank"]) in ranks, (rank, each)
        near = hosts[0] if rank < 2 else hosts[1]
        lost = rf"is lost.*: its host {far.address} \(ranks {ranks}\) has not answered host {near.address} for ([0-9.]+) s"
        found = re.search(lost, str(last["text"]))
        assert found and silence <= float(found[1]) < silence + WITHIN, last
        assert silence <= float(last["at"]) - since < silence + WITHIN
    assert hosts.left(launcher.pids, within=60.0) == []


@pytest.mark.parametrize("number", range(max(FAULTS, len(WORK))))
def test_a_host_that_is_cut_off_is_named_with_its_ranks_on_both_sides(
    hosts: several.Hosts, launcher: several.Launcher, number: int
) -> None:
    kind = list(WORK)[number % len(WORK)]
    expect_cut(hosts, launcher, kind, random.Random(number).uniform(0, 0.3), {"LEVADA_SILENCE": "3"}, 3)


def test_a_host_that_is_cut_off_is_lost_after_ten_seconds_unless_another_time_is_set(
    hosts: several.Hosts, launcher: several.Launcher
) -> None:
    expect_cut(hosts, launcher, "nothing", 0.0, {}, 10)


def test_hosts_whose_interfaces_take_no_packets_lose_each_other(hosts: several.Hosts, launcher: several.Launcher) -> None:
    @contextlib.contextmanager
    def stuck() -> Iterator[None]:
        with hosts[0].takes_no_packets(), hosts[1].takes_no_packets():
            yield

    expect_cut(hosts, launcher, "feed", 0.1, {"LEVADA_SILENCE": "3"}, 3, stuck)


UNTIL_STOPPED = """
import itertools
batches = ({"x": np.full(100_000, i)} for i in itertools.count())
feed = levada.Feed(batches, levada.Mesh(tp=size), iterate="thread", group=job)
counted = 0
for i, batch in enumerate(feed):
    if not (batch["x"] == i).all(): raise AssertionError(f"step {i} has {batch['x']}")
    counted += 1
    if counted == 5: tell(works=True)
    if rank == 0 and os.path.exists(os.environ["LEVADA_TEST_END"]): feed.request_stop()
tell(ended=counted, cause=feed.end.cause)
"""


@pytest.mark.parametrize("number", range(max(FAULTS, 2)))
def test_a_link_that_comes_back_within_the_silence_limit_ends_no_job(
    hosts: several.Hosts, launcher: several.Launcher, tmp_path: pathlib.Path, number: int
) -> None:
    end, silence = tmp_path / "end", (3, 6)[number % 2]
    environment = {"LEVADA_SILENCE": str(silence), "LEVADA_TEST_END": str(end)}
    job = launcher.start([2, 2], JOIN + UNTIL_STOPPED, environment=environment)
    job.wait_for("works", range(4))
    time.sleep(random.Random(number).uniform(0, 1))  # a random moment between two probes
    with hosts[1].is_cut():
        time.sleep(silence - 1)
    end.touch()
    told = job.succeed()
    assert {mine[-1]["cause"] for mine in told} == {"stopped"} and len({mine[-1]["ended"] for mine in told}) == 1


def test_a_killed_rank_is_noticed_while_a_child_that_it_forked_lives_on(
    hosts: several.Hosts, launcher: several.Launcher
) -> None:
    forked = """
if rank == 2:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    tell(child=child)
"""
    job = launcher.start([2, 2], JOIN + forked + WORK["nothing"] + UNTIL_LOST)
    job.wait_for("works", range(4))
    child = job.told(2)[0]["child"]
    since = time.monotonic()
    os.kill(job.pids[2], signal.SIGKILL)
    try:
        job.wait_for("kind", [0, 1, 3], WITHIN)
    finally:
        os.kill(child, signal.SIGKILL)
    expect_loss(hosts, launcher, job, {2}, since, WITHIN)


@pytest.mark.skipif(ENGINE == "c10d", reason="nobody forwards")
def test_ctrl_c_ends_the_wait_of_a_rank_that_leaves_and_the_group_of_what_it_forwards(launcher: several.Launcher) -> None:
    script = JOIN + """
reduce = levada.ReduceScatter(group=job)
reduce(np.zeros(size * 1000)).wait()  # its channels stay open
if rank == 2:
    reduce.close()
    began = time.monotonic()
    tell(leaves=True)
    job.leave()
    tell(left=time.monotonic() - began)
else:
    while not os.path.exists(os.environ["LEVADA_TEST_GO"]): time.sleep(0.01)
    try:
        reduce(np.zeros(size)).wait()
    except levada.EngineError as error:
        tell(text=str(error))
"""
    with tempfile.TemporaryDirectory() as folder:
        go = pathlib.Path(folder) / "go"
        job = launcher.start([2, 2], script, environment={"LEVADA_TEST_GO": str(go)})
        job.wait_for("leaves", [2])
        time.sleep(1)
        os.kill(job.pids[2], signal.SIGINT)
        job.wait_for("left", [2], WITHIN)
        go.touch()
        ended = job.finish()
    assert ended[2].told[1]["left"] > 0.9 and "KeyboardInterrupt" in ended[2].errors
    for rank in (0, 1, 3):
        assert "it was interrupted while it was leaving" in str(ended[rank].told[0]["text"]), ended[rank]


def test_a_rank_that_is_stopped_is_waited_for(hosts: several.Hosts, launcher: several.Launcher) -> None:
    script = JOIN + """
import itertools
batches = ({"x": np.full(1_000_000, i)} for i in itertools.count())
for i, batch in enumerate(levada.Feed(batches, levada.Mesh(tp=size), iterate="thread", group=job)):
    if i == 5: tell(works=True)
    if batch["x"][-1] != i: raise AssertionError(f"step {i} has {batch['x']}")
    if os.path.exists(os.environ["LEVADA_TEST_END"]): break
tell(ended=True)
"""
    with tempfile.TemporaryDirectory() as folder:
        end = pathlib.Path(folder) / "end"
        job = launcher.start([2, 2], script, environment={"LEVADA_SILENCE": "3", "LEVADA_TEST_END": str(end)})
        job.wait_for("works", range(4))
        os.kill(job.pids[2], signal.SIGSTOP)
        time.sleep(6)  # twice as long as a host may be silent
        os.kill(job.pids[2], signal.SIGCONT)
        end.touch()
        ended = job.finish()
    assert not any("has not answered" in each.errors for each in ended), ended


@pytest.mark.parametrize("which", ["torchrun", "deepspeed", "azureml", "plain", "slurm with RANK"])
def test_an_initialized_torch_distributed_joins_hosts_under_any_launcher(
    launcher: several.Launcher, which: str
) -> None:
    script = JOIN + """
tell(engine=job.engine, host_of=job.host_of, rank=job.rank, job=levada.join() is job)
tell(got=list(levada.Feed(range(8))))
"""
    for ranks, host_of in (([2, 2], [0, 0, 1, 1]), ([1, 3], [0, 1, 1, 1])):
        for rank, mine in enumerate(launcher.start(ranks, script, launcher=which).succeed()):
            assert mine[0]["engine"] != "shm" and mine[0]["host_of"] == host_of
            assert mine[0]["rank"] == rank and mine[1]["got"] == [rank, rank + 4]


@pytest.mark.parametrize(
    "ranks, choice",
    [
        ([2, 0], "shm: all 2 ranks are on one host"),
        ([1, 1], "c10d: 2 ranks on 2 hosts, 1 on each"),
        ([1, 2], "shm+c10d: 3 ranks on 2 hosts, 1 to 2 on each"),
        ([2, 2], "shm+c10d: 4 ranks on 2 hosts, 2 on each"),
    ],
)
def test_the_chosen_engine_is_logged_once_with_the_reason(
    launcher: several.Launcher, ranks: list[int], choice: str
) -> None:
    script = """
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
tell(choice=levada.join().engine_choice)
"""
    ended = launcher.start(ranks, script, environment={"LEVADA_LOG": "info"}).finish()
    assert [each.told for each in ended] == [[{"choice": choice}]] * sum(ranks), ended
    logged = [[line for line in each.errors.splitlines() if line.startswith("levada:")] for each in ended]
    assert logged == [[f"levada: engine {choice}"]] + [[]] * (sum(ranks) - 1)


ENTRIES = {
    "join": "got = levada.join().size",
    "feed": "got = len([*levada.Feed(range(4))])",
    "exchange": """
from levada import exchange
store = exchange.Store()
store.store(exchange.SampleBatch([str(rank)], {"tokens": [np.arange(9)]}))
exchange.redistribute(store, {0: ["0", "1"], 1: ["0", "1"]}, ["tokens"])
got = len(store.get(["0", "1"], ["tokens"])["tokens"]) // 9
""",
    "reduce": """
with levada.ReduceScatter() as reduce:
    got = int(reduce.all_reduce(np.ones(1)).wait()[0])
""",
    "pipeline": "got = len([*levada.Pipeline(range(4)).shard().run(0, group=levada.join())])",
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_initialized_torch_distributed_comes_before_the_environment(launcher: several.Launcher, entry: str) -> None:
    script = f"""
import os
import numpy as np
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
os.environ.update(RANK="0", WORLD_SIZE="1")
{ENTRIES[entry]}
tell(got=got, size=levada.world_size(), rank=levada.rank())
"""
    told = launcher.start([1, 1], script, launcher="plain").succeed()
    assert told == [[{"got": 2, "size": 2, "rank": rank}] for rank in range(2)]


def join_errors(
    launcher: several.Launcher,
    ranks: list[int],
    script: str = "",
    *,
    degree: str = "16",
    timeout: float = 60,
    cut: contextlib.AbstractContextManager[None] = contextlib.nullcontext(),
) -> list[str]:
    """Returns the class and text of the error that levada.join() raises on each rank within its timeout, after
    `script`. `cut` begins when torch.distributed is initialized and holds during the call."""
    script = f"""
import os, time
import torch.distributed as dist
import levada
dist.init_process_group("gloo")
engine = "auto"
{script}
tell(ready=True)
while not os.path.exists(os.environ["LEVADA_TEST_GO"]): time.sleep(0.01)
began = time.monotonic()
try:
    levada.join(engine=engine, timeout={timeout}, degree={degree})
except levada.Error as error:
    tell(text=f"{{type(error).__name__}}: {{error}}", seconds=time.monotonic() - began)
os._exit(0)  # torch's own end would wait for what is cut off
"""
    with tempfile.TemporaryDirectory() as folder:
        go = pathlib.Path(folder) / "go"
        job = launcher.start(ranks, script, environment={"LEVADA_TEST_GO": str(go)})
        job.wait_for("ready", range(sum(ranks)))
        try:
            with cut:
                go.touch()
                told = job.succeed()
        finally:
            job.kill()
    assert all(mine[1]["seconds"] < timeout + 5 for mine in told), told
    return [str(mine[1]["text"]) for mine in told]


def test_ranks_that_ask_for_different_engines_are_told_which_rank_asked_for_what(launcher: several.Launcher) -> None:
    texts = join_errors(launcher, [2, 1], 'engine = ["auto", "auto", "c10d"][rank]')
    assert set(texts) == {
        "InvalidArgument: the group's ranks join it with different engines: auto on rank 0, 1; c10d on rank 2; pass the same "
        "on all of them"
    }


def test_ranks_that_give_different_degrees_are_told_which_rank_gave_what(launcher: several.Launcher) -> None:
    texts = join_errors(launcher, [2, 1], degree="[16, 4, 16][rank]")
    assert set(texts) == {
        "InvalidArgument: the group's ranks join it with different degrees: 16 on rank 0, 2; 4 on rank 1; pass the same on all "
        "of them"
    }


def test_an_interface_that_a_host_lacks_is_named_on_every_rank(launcher: several.Launcher) -> None:
    script = 'if rank == 3: os.environ["GLOO_SOCKET_IFNAME"] = "ib7"'
    texts = join_errors(launcher, [2, 2], script)
    assert set(texts) == {
        "EngineError: rank 3 on host host1 finds no network to reach other ranks by (GLOO_SOCKET_IFNAME is 'ib7'); set "
        "GLOO_SOCKET_IFNAME to an interface that `ip address` lists on that host"
    }


def test_networks_that_do_not_reach_each_other_are_named_on_every_rank(launcher: several.Launcher) -> None:
    texts = join_errors(launcher, [1, 1], 'os.environ["GLOO_SOCKET_IFNAME"] = "lo"')
    assert len(set(texts)) == 1
    assert texts[0].startswith("EngineError: rank 0 on host host0 cannot connect to rank 1 on host host1 at 127.0.0.1, port ")
    assert "set GLOO_SOCKET_IFNAME to the interface of a network that both are in" in texts[0]


def test_a_firewall_between_hosts_is_named_on_every_rank(hosts: several.Hosts, launcher: several.Launcher) -> None:
    texts = join_errors(launcher, [2, 2], timeout=6, cut=hosts[1].firewall())
    assert len(set(texts)) == 1
    assert texts[0].startswith("EngineError: rank 0 on host host0 cannot connect to rank 2 on host host1 at 10.0.0.2, port ")
    assert "(timed out); open the firewall between them for TCP" in texts[0]


def test_another_release_of_levada_on_a_host_is_one_sentence_on_every_rank(launcher: several.Launcher) -> None:
    script = """
from levada import _levada
if rank >= 2:
    own = _levada.group_greeting("host1")
    _levada.group_greeting = lambda host: own[:16] + b"99.0.0".ljust(16, bytes(1)) + own[32:]
"""
    (text,) = set(join_errors(launcher, [2, 2], script))
    assert text.startswith("EngineError: rank 2 on host host1 runs Levada 99.0.0, but rank 0 on host host0 runs ")
    assert text.endswith("; install the same release for all ranks of the job")


@pytest.mark.parametrize("free", [10, 25])
def test_too_few_descriptors_are_an_error_on_every_rank_that_names_the_number(launcher: several.Launcher, free: int) -> None:
    script = f"""
import resource
limit = len(os.listdir("/proc/self/fd")) + {free}
if rank == 3: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
"""
    (text,) = set(join_errors(launcher, [2, 2], script))
    assert text.startswith("InvalidArgument: rank ") and " open files to join, but may have " in text
    assert "as by `ulimit -n " in text and "firewall" not in text


SCANNER = """
import select, socket, sys, time
until, seen, kept = time.monotonic() + 60, set(), []
print("scans", flush=True)
while not select.select([sys.stdin], [], [], 0)[0] and time.monotonic() < until:
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        fields = line.split()
        address, port = fields[1].split(":")
        if fields[3] != "0A" or port in seen or len(kept) > 800: continue
        seen.add(port)
        host = "127.0.0.1" if int(address, 16) == 0 else ".".join(str(int(address[at:at + 2], 16)) for at in (6, 4, 2, 0))
        for _ in range(16):
            connection = socket.socket()
            connection.settimeout(0.2)
            try:
                connection.connect((host, int(port, 16)))
            except OSError:
                break
            kept.append(connection)
print(len(seen), flush=True)
"""


def test_a_port_scanner_neither_joins_nor_stops_a_start(hosts: several.Hosts, launcher: several.Launcher) -> None:
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    scanner = subprocess.Popen(
        hosts[0].command([*user, "/usr/bin/env", "python3", "-c", SCANNER]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert scanner.stdout is not None and scanner.stdout.readline() == "scans\n"
        feed = JOIN + "tell(got=[int(x) for x in levada.Feed(iter(range(8)) if rank == 0 else None, mesh=levada.Mesh(tp=4))])"
        for _ in range(2):
            assert [mine[0]["got"] for mine in launcher.start(2, feed).succeed()] == [list(range(8))] * 4
        said, _ = scanner.communicate(timeout=30)
        assert int(said) >= 4, "it found no ports"
    finally:
        scanner.kill()
        scanner.wait()


def test_a_host_that_is_cut_off_while_ranks_join_is_an_error_on_every_rank(
    hosts: several.Hosts, launcher: several.Launcher
) -> None:
    for rank, text in enumerate(join_errors(launcher, [1, 1], timeout=3, cut=hosts[1].is_cut())):
        assert f"rank {rank} on host host{rank} has waited " in text and " to join its group for " in text
        assert "whether a firewall lies between their hosts" in text


def test_hosts_whose_kernels_differ_are_joined(launcher: several.Launcher) -> None:
    script = JOIN.replace("job =", "from levada.job import groups\ngroups._read = lambda path: f'kernel {rank}'\njob =")
    told = launcher.start([1, 1], script + "tell(engine=job.engine, got=list(levada.Feed(range(4))))").succeed()
    assert [mine[0]["got"] for mine in told] == [[0, 2], [1, 3]] and told[0][0]["engine"] != "shm"


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
    with several.hosts_or_skip(2, clock_step_s=days) as apart, several.Launcher(apart) as launcher:
        told = launcher.start([1, 1], script).succeed()
    assert told[1][0]["clock"] - told[0][0]["clock"] > days - 1000
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert max(span["ts"] + span["dur"] for span in spans) < 100e6  # microseconds since the first span
    rank_1 = next(event["pid"] for event in events if event["name"] == "process_name" and "rank 1" in event["args"]["name"])
    read = sum(span["dur"] for span in spans if span["pid"] == rank_1 and span["name"] == "waiting: reading storage")
    assert read > 0.5e6, sorted({(span["pid"], span["name"]) for span in spans})
