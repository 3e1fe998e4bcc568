"""The engine over process groups of torch.distributed. Run by `script/check python-torch`."""

from __future__ import annotations

import os
import pathlib
import signal
import time

import levada.testing
import process_groups
import pytest


def test_the_engine_contract_holds_over_gloo(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        4,
        """
        import levada.testing
        for members in ([0, 1, 2, 3], [0, 2, 3], [1, 3], [2]):
            groups = [dist.new_group(members) for _ in range(9)]  # all ranks make all groups
            if rank in members:
                names = levada.testing.conformance(lambda: levada.join(groups.pop(), engine="c10d"))
                tell(count=len(names), all=len(levada._levada.conformance_cases()))
        """,
    )
    for mine in told:
        assert mine and all(each["count"] == each["all"] for each in mine[:2])
    assert 50 < told[2][2]["count"] < told[2][2]["all"]  # a group of one rank runs fewer cases


class Nowhere:
    """A transport that has no peers."""

    def start(self, link: levada._levada.Link) -> None:
        link.lost([1], "there is nobody")

    def from_numpy(self, array: object) -> object:
        return array

    def send(self, tensors: list[object], peer: int, tag: int) -> None: ...

    def settle(self, sent: list[tuple[int, object, object]]) -> None: ...

    def close(self, peer: int) -> None: ...

    def schedule_flush(self, at: float) -> None: ...


def test_a_case_that_fails_is_named() -> None:
    with pytest.raises(AssertionError, match="^info is constant and the same for all: rank 1 is lost: there is nobody"):
        levada.testing.conformance(lambda: levada._levada.join_over(Nowhere(), "nowhere", 0, [0, 0], 4096))


def test_a_feed_gives_the_batches_that_it_gives_over_shared_memory(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        4,
        """
        import gc
        def policy(thread):
            try: return os.sched_getscheduler(int(thread))
            except ProcessLookupError: return None  # it has ended meanwhile
        def polite(): return sum(policy(thread) == os.SCHED_BATCH for thread in os.listdir("/proc/self/task"))
        tell(before=polite())
        shm, c10d = levada.join(dist.group.WORLD), levada.join(dist.group.WORLD, engine="c10d")
        tell(engines=[shm.engine, c10d.engine], rank=c10d.rank)
        tell(after=polite(), own=os.sched_getscheduler(0))
        def loader():
            buffer = np.zeros(500_000)
            for i in range(11):  # one structure after the other, and a last round that is not full
                buffer[:] = i
                yield [{"x": buffer, "i": i, "text": "a" * i}, (torch.arange(3 * i), None), {"y": [buffer[:7]]}][i % 3]
                buffer[:] = -1
                gc.collect()
        for mesh in (levada.Mesh(dp=4), levada.Mesh(dp=2, tp=2)):
            for access in (None, "copy"):
                fields = []
                for group in (shm, c10d):
                    digests = levada.Digests()
                    feed = levada.Feed(loader(), mesh, group=group, access=access)
                    for batch in feed:
                        digests.add(batch)
                    fields.append((digests.fields(), feed.step))
                tell(same=fields[0] == fields[1], fields=fields[1])
        def broken():
            yield from range(4)
            raise KeyError("no such record")
        try:
            got = []
            for number in levada.Feed(broken(), levada.Mesh(tp=4), group=c10d):
                got.append(number)
        except levada.SourceError as error:
            tell(got=got, text=str(error))
        import itertools
        feed = levada.Feed(itertools.count(), levada.Mesh(tp=4), group=c10d)
        try:
            for number in feed:
                if rank == 2 and number == 10: break
        except levada.PeerLost as error:
            assert error.rank == 2
        tell(end=feed.end)
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[:2] == [{"before": 0}, {"engines": ["shm", "c10d"], "rank": rank}]
        assert mine[2]["after"] >= 1 and mine[2]["own"] == os.SCHED_OTHER
        for each in mine[3:7]:
            assert each["same"] and each["fields"]
        assert mine[7]["got"] == [0, 1, 2, 3] and "KeyError: 'no such record'" in str(mine[7]["text"])
        assert mine[8]["end"]["rank"] == 2
        assert mine[8]["end"]["cause"] == ("left" if rank == 2 else "abandoned")


def test_what_is_sent_is_held_until_it_has_gone(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        from levada.job.c10d import ProcessGroupTransport
        class Link:  # an engine that takes no body before it is told to
            def __init__(self): self.bodies, self.may_take, self.came = [], threading.Event(), threading.Event()
            def all_closed(self): return len(self.bodies) == 8
            def flush_deferred(self): pass
            def is_closed(self, peer): return True
            def room_for_body(self, sender, header):
                self.may_take.wait(30)
                return np.empty(5_000_000, dtype=np.uint8) if header[0] == 1 else None
            def deliver(self, sender, header): self.bodies.append(int(header[1])); self.came.set()
            def lost(self, peers, why): tell(lost=why)
            def has_failed(self): return False
        import threading, gc
        transport, link = ProcessGroupTransport(dist.group.WORLD, "held", bytes(32), 20.0, [0, 0]), Link()
        rooms, room_for_body = [], link.room_for_body
        def kept(sender, header):
            rooms.append(room_for_body(sender, header))
            return rooms[-1]
        link.room_for_body = kept
        transport.start(link)
        gone = []
        class Owner:
            def __init__(self, i): self.i = i
            def __del__(self): gone.append(self.i)
        def array(i):
            import ctypes, weakref
            memory = (ctypes.c_uint8 * 5_000_000)()
            memory.owner = Owner(i)  # goes with the memory
            shown = np.frombuffer(memory, dtype=np.uint8)
            shown[:] = i
            return shown
        for i in range(8):
            header, body = (transport.from_numpy(each) for each in (np.array([1, i], dtype=np.uint8), array(i)))
            sends = [transport.send([each], 1 - rank, tag) for tag, each in ((1, header), (2, body))]
            transport.settle([(1 - rank, each, None) for each in sends])
            del sends
            del header, body
            gc.collect()
            np.full(5_000_000, 99, dtype=np.uint8)  # over whatever memory is free
        held = len(gone)
        dist.barrier()
        link.may_take.set()
        while len(link.bodies) < 8: time.sleep(0.01)
        tell(held=held, bodies=link.bodies, right=all((room == i).all() for i, room in enumerate(rooms)))
        until = time.monotonic() + 30
        while len(gone) < 7 and time.monotonic() < until: time.sleep(0.01)
        tell(gone=len(gone) >= 7)
        dist.barrier()
        """,
    )
    for mine in told:
        assert mine == [{"held": 0, "bodies": list(range(8)), "right": True}, {"gone": True}]


def test_a_body_that_does_not_arrive_delays_no_frame_of_another_rank(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        3,
        """
        from levada.job.c10d import ProcessGroupTransport
        class Link:
            def __init__(self): self.asked, self.came = False, []
            def all_closed(self): return len(self.came) == (4 if rank == 0 else 1)
            def flush_deferred(self): pass
            def is_closed(self, peer): return True
            def room_for_body(self, sender, header):
                self.asked = header[0] == 1
                return np.empty(1000, dtype=np.uint8) if self.asked else None
            def deliver(self, sender, header): self.came.append([sender, int(header[1])])
            def lost(self, peers, why): tell(lost=why)
            def has_failed(self): return False
        transport, link = ProcessGroupTransport(dist.group.WORLD, "slow", bytes(32), 20.0, [0, 0, 0]), Link()
        transport.start(link)
        def send(to, tag, *data):
            sent = transport.send([transport.from_numpy(np.array(data, dtype=np.uint8))], to, tag)
            transport.settle([(to, sent, None)])
        if rank == 1: send(0, 1, 1, 5); send(0, 1, 0, 7)
        while rank == 0 and not link.asked: time.sleep(0.01)
        dist.barrier()
        if rank == 2: send(0, 1, 0, 6)
        while rank == 0 and not link.came: time.sleep(0.01)
        assert rank != 0 or link.came == [[2, 6]]
        dist.barrier()
        if rank == 1: send(0, 2, *bytes(1000))
        while rank == 0 and len(link.came) < 3: time.sleep(0.01)
        dist.barrier()
        if rank == 2: send(0, 1, 0, 9)
        while rank == 0 and len(link.came) < 4: time.sleep(0.01)
        if rank == 0: send(1, 1, 0, 8); send(2, 1, 0, 8)
        transport.settle([(peer, None, None) for peer in range(size) if peer != rank])
        transport.finish(time.monotonic() + 20)
        tell(came=link.came, alive=[each.name for each in transport._threads if each.is_alive()])
        dist.barrier()
        """,
    )
    assert told[0] == [{"came": [[2, 6], [1, 5], [1, 7], [2, 9]], "alive": []}]
    assert told[1] == told[2] == [{"came": [[0, 8]], "alive": []}]


def test_a_body_of_more_than_2_gib_arrives_whole(tmp_path: pathlib.Path) -> None:
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 6 << 30:
        pytest.skip("a message of 2.1 GiB takes 4.5 GB of memory, in two processes")
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        job = levada.join(dist.group.WORLD, engine="c10d")
        length, piece = 21 * 2**30 // 10, 2**20
        large = np.zeros(length, dtype=np.uint8)  # of which only what is written takes memory
        large[::piece] = np.arange(-(-length // piece)) % 251
        large[-1] = 77
        feed = levada.Feed([{"x": np.zeros(1, dtype=np.uint8)}, {"x": large}], group=job)
        for batch in feed:
            got = np.asarray(batch["x"])
            tell(length=got.size, right=rank == 0 or bool((got[::piece] == large[::piece]).all() and got[-1] == 77))
        """,
    )
    assert told == [[{"length": 1, "right": True}], [{"length": 21 * 2**30 // 10, "right": True}]]


def test_a_rank_that_ends_waits_for_what_it_has_sent(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        import levada.job.job
        levada.job.job._FAREWELL = 0.01
        job = levada.join(dist.group.WORLD, engine="c10d")
        batches = [{"x": np.full(length, 7, dtype=np.uint8)} for length in (1, 500 << 20)]
        for batch in levada.Feed(batches, group=job):
            got = np.asarray(batch["x"])
            tell(length=got.size, last=int(got[-1]))
        """,
    )
    assert told == [[{"length": 1, "last": 7}], [{"length": 500 << 20, "last": 7}]]


def test_a_rank_gets_one_message_a_step(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        3,
        """
        from levada.job.c10d import ProcessGroupTransport
        sent, offer_calls = [0] * 3, ProcessGroupTransport._offer_calls
        def offer_counted(transport):
            offer_calls(transport)
            send = transport.send
            def counted(tensors, peer, tag):
                sent[peer] += tensors[0].nbytes > 100_000  # which the batches alone make it
                return send(tensors, peer, tag)
            transport.send = counted
        ProcessGroupTransport._offer_calls = offer_counted
        job = levada.join(dist.group.WORLD, engine="c10d")
        fields = {f"field{i}": np.arange(1000) for i in range(20)}
        feed = levada.Feed([{**fields, "text": "a" * 100, "step": i} for i in range(150)], group=job)
        before = list(sent)
        steps = len(list(feed))
        tell(steps=steps, sent=[after - each for after, each in zip(sent, before)])
        """,
    )
    assert all(mine[0]["steps"] == 50 for mine in told)
    sent = told[0][0]["sent"]
    # A busy rank sends everything that has accumulated in one message.
    assert sent[0] == 0 and all(25 <= each <= 50 for each in sent[1:]), sent


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_what_a_signal_handler_raises_while_frames_are_sent_comes_out_of_the_call(
    tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        f"""
        import ctypes, threading
        from levada import exchange
        class Stop(BaseException): pass
        def stop(*_): raise Stop
        signal.signal({int(number)}, stop)
        def flag():  # so that the other thread takes the GIL with the signal pending, here most often to send
            time.sleep(0.02)
            ctypes.PyDLL(None).usleep(20_000)  # with the GIL
            os.kill(os.getpid(), {int(number)})
        ends = []
        for trial in range(8):
            job = levada.join(dist.new_group([0, 1]), engine="c10d")
            store = exchange.Store()
            dist.barrier()
            began = time.monotonic()
            try:
                if rank == 1: threading.Thread(target=flag).start()
                while time.monotonic() - began < 15: exchange.all_gather(store, job, timeout=60)
            except Stop:
                ends.append("Stop")
            except levada.Error as error:
                ends.append("rank 1" in str(error))
            assert time.monotonic() - began < 10
            job.leave()
        tell(ends=ends)
        """,
    )
    assert told == [[{"ends": [True] * 8}], [{"ends": ["Stop"] * 8}]]


def test_one_rank_may_ask_all_to_stop_while_its_reading_thread_sends(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        import itertools
        job = levada.join(dist.group.WORLD, engine="c10d")
        feed = levada.Feed(itertools.count(), levada.Mesh(tp=2), readers="all", group=job)
        for number in feed:
            sum(range(20_000))  # with the GIL
            if rank == 1 and number >= 30: feed.request_stop()
        tell(cause=feed.end.cause, step=feed.step)
        """,
    )
    assert [mine[0]["cause"] for mine in told] == ["stopped"] * 2 and told[0][0]["step"] == told[1][0]["step"]


@pytest.mark.parametrize(("size", "victim"), [(2, 1), (3, 2), (3, 0)])
def test_a_killed_rank_is_named_to_the_others_who_end_in_order(tmp_path: pathlib.Path, size: int, victim: int) -> None:
    started = process_groups.start(
        tmp_path,
        size,
        f"""
        import itertools
        job = levada.join(dist.group.WORLD, engine="c10d")
        kept = []
        try:
            for batch in levada.Feed(({{"x": np.full(100_000, i)}} for i in itertools.count()), levada.Mesh(tp=size), group=job):
                kept.append(batch)
                if rank == {victim} and len(kept) == 10:
                    os.kill(os.getpid(), signal.SIGKILL)
        except levada.PeerLost as error:
            tell(rank=error.rank, held=bool(all((batch["x"] == i).all() for i, batch in enumerate(kept))))
        """,
    )
    began = time.monotonic()
    outcomes = process_groups.finish(started, tmp_path)
    assert outcomes.pop(victim).status == -9
    for outcome in outcomes:
        assert outcome.status == 0, outcome.errors
        assert outcome.told == [[{"rank": victim, "held": True}]]
    assert time.monotonic() - began < 60


def test_a_silence_that_is_no_number_of_seconds_is_refused_on_every_rank(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        for silence in ("", "2", "-1", "soon", "3.5", "98302"):
            os.environ["LEVADA_SILENCE"] = silence if rank == 1 else "10"
            try:
                levada.join(dist.group.WORLD, engine="c10d")
            except levada.InvalidArgument as error:
                tell(text=str(error))
        for silence in ("0", "86400"):
            os.environ["LEVADA_SILENCE"] = silence
            tell(engine=levada.join(dist.new_group([0, 1]), engine="c10d").engine)
        """,
    )
    for mine in told:
        assert [mine.pop(), mine.pop()] == [{"engine": "c10d"}] * 2 and len(mine) == 6
        assert "LEVADA_SILENCE of rank 1 is 'soon'; it must be a number of seconds from 3 to 86400" in str(mine[3]["text"])


def test_ranks_on_several_hosts_are_joined_by_the_default_group(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        3,
        """
        os.environ.update(RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        from levada.job import groups as _groups
        _groups._host = lambda: bytes([min(rank, 1)] * 16)  # two hosts
        job = levada.join()
        tell(engine=job.engine, host_of=job.host_of)
        tell(same=levada.join() is job and levada.join(dist.group.WORLD) is job)
        try:
            levada.join(dist.new_group([0, 1, 2]), engine="shm")
        except levada.Unsupported as error:
            tell(text=str(error))
        kept = [batch["x"] for batch in levada.Feed([{"x": np.arange(1000)}] * 6)]
        tell(got=len(kept), feed=list(levada.Feed(range(6), readers="host")))
        # and the interpreter ends with batches of the job alive
        """,
    )
    for rank, mine in enumerate(told):
        assert mine[0] == {"engine": "shm+c10d", "host_of": [0, 1, 1]} and mine[1] == {"same": True}
        assert "on 2 hosts" in str(mine[2]["text"])
        assert mine[3] == {"got": 2, "feed": [rank, rank + 3]}


def test_a_thread_that_is_refused_is_told_with_the_limits_to_raise(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        import threading, levada.ddp
        start = threading.Thread.start
        def refuse(thread):
            if thread.name.startswith("levada") and thread.name.endswith(refused):
                raise RuntimeError("can't start new thread")
            start(thread)
        threading.Thread.start = refuse
        for refused, use in (
            ("_flush", lambda: levada.join(dist.group.WORLD, engine="c10d")),
            ("ddp", lambda: levada.ddp.State(dist.group.WORLD)),
        ):
            try:
                use()
            except levada.EngineError as error:
                tell(text=str(error))
        """,
    )
    for mine in told:
        assert len(mine) == 2
        assert all("cannot start a thread for" in str(each["text"]) and "(ulimit -u" in str(each["text"]) for each in mine)


def test_a_job_that_has_been_left_is_freed(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        import gc, threading, weakref
        from levada.job import c10d
        made = []
        init = c10d.ProcessGroupTransport.__init__
        def note(self, *arguments):
            init(self, *arguments)
            made.append(weakref.ref(self))
        c10d.ProcessGroupTransport.__init__ = note
        def num_alive():
            gc.collect()
            return sum(each() is not None for each in made)
        dist.destroy_process_group()
        for number in range(4):
            method = f"file://{os.path.dirname(sys.argv[0])}/store{number}"
            dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size)
            levada.join(engine="c10d").leave()
            until = time.monotonic() + 20
            while any(each.name.startswith("levada c10d") for each in threading.enumerate()) and time.monotonic() < until:
                time.sleep(0.01)
            dist.destroy_process_group()
            # An ended thread may still hold its transport for a moment.
            while num_alive() > 1 and time.monotonic() < until:
                time.sleep(0.01)
            counts = [len(os.listdir(f"/proc/self/{each}")) for each in ("fd", "task")]
            tell(counts=counts, alive=num_alive())
        """,
    )
    for mine in told:
        assert [each["alive"] for each in mine] == [1] * 4  # joining the next job releases the last one
        assert all(last < first + 3 for first, last in zip(mine[0]["counts"], mine[-1]["counts"], strict=True)), mine


def test_a_living_forked_child_does_not_delay_the_end_of_its_rank(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        from levada.job import groups
        os.environ["LEVADA_SILENCE"] = "600"
        job = levada.join(engine="c10d")
        if (child := os.fork()) == 0:
            while True: time.sleep(1)
        barrier("forked")
        began = time.monotonic()
        job.leave()
        groups.finish(began + 60)
        os.kill(child, signal.SIGKILL)
        tell(took=time.monotonic() - began)
        """,
    )
    assert all(each["took"] < 3 for [each] in told), told
