"""Several threads on one object: each call returns a correct result or an error that explains itself, and the process
survives. `LEVADA_THREADS` is the number of runs of each program; script/check threads runs it many times."""

from __future__ import annotations

import pathlib

import pytest
from racing import TIMES, run

pytestmark = pytest.mark.timeout(120 * TIMES)


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_that_take_from_one_epoch_get_each_item_once_or_are_refused(tmp_path: pathlib.Path, workers: int) -> None:
    run(
        tmp_path,
        f"""
        with levada.Pipeline(range(3000)).dispatch().map(same).run({workers}, context="forkserver", timeout=60) as run:
            items, got = iter(run), []
            def take():
                refused = 0
                while len(got) < 3000:
                    try:
                        for item in items: got.append(item)
                        return refused
                    except levada.InvalidArgument as error:
                        if not is_busy(error): raise
                        refused += 1
                        time.sleep(0)
                return refused
            outcomes = together(take, take, take)
            assert all(isinstance(each, int) for each in outcomes), outcomes
            assert sorted(got) == list(range(3000)), (len(got), collections.Counter(got).most_common(3))
        """,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_second_thread_may_call_anything_on_a_run(tmp_path: pathlib.Path, workers: int) -> None:
    run(
        tmp_path,
        f"""
        with levada.Pipeline(range(20000)).shuffle(100).dispatch().map(same).run({workers}, context="forkserver", timeout=60) as run:
            items, got, states, over = iter(run), [], [], threading.Event()
            def take():
                try:
                    while len(got) < 20000:
                        try:
                            for item in items: got.append(item)
                            run.resume()  # a pause or a limit ended it
                        except levada.InvalidArgument as error:
                            if not is_busy(error): raise
                finally:
                    over.set()
            def ask(work):
                def asking():
                    while not over.is_set():
                        try:
                            work()
                        except levada.InvalidArgument as error:
                            if not is_busy(error): raise
                        time.sleep(0.001)
                return asking
            outcomes = together(take, ask(lambda: states.append(run.state_dict())), ask(run.stats), ask(run.show),
                                ask(lambda: (run.pause(), run.resume())), ask(lambda: run.limit(50)))
            assert not any(outcomes), outcomes
            assert sorted(got) == list(range(20000)), len(got)
            state = next((each for each in reversed(states) if each["position"]), None)
        if state is not None:
            with levada.Pipeline(range(20000)).shuffle(100).dispatch().map(same).run({workers}, context="forkserver") as run:
                run.load_state_dict(state)
                rest = list(run)
                assert not rest or rest == got[-len(rest):]
        """,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_close_ends_a_loop_that_waits_on_another_thread(tmp_path: pathlib.Path, workers: int) -> None:
    run(
        tmp_path,
        f"""
        run = levada.Pipeline(lambda: itertools.count()).shard().filter(no).run({workers}, context="forkserver", timeout=60)
        begun = threading.Event()
        def take():
            items = iter(run)
            begun.set()
            return list(items)
        def close():
            begun.wait(60)
            run.close()
        began = time.monotonic()
        assert together(take, close) == [[], None]
        assert time.monotonic() - began < 30
        assert not multiprocessing.active_children()
        """,
    )


@pytest.mark.long
def test_close_waits_for_a_local_stage_with_a_limit_and_ends_the_others(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        inside, go_on = threading.Event(), threading.Event()
        def slow(items):
            for item in items:
                inside.set()
                go_on.wait(60)
                yield item
        run = levada.Pipeline(range(10)).dispatch().map(same).fullsync().transform(slow).run(1, context="forkserver")
        def take():
            return list(run)
        def close():
            inside.wait(60)
            try:
                run.close()
            except levada.Timeout as error:
                assert "has not left one of its stages" in str(error)
                assert not multiprocessing.active_children()
                go_on.set()
                return "timed out"
        assert together(take, close) == [[], "timed out"]
        """,
    )


def test_threads_that_begin_epochs_of_one_run_end_each_others(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        with levada.Pipeline(range(500)).dispatch().map(same).run(1, context="forkserver", timeout=60) as run:
            def loop():
                whole = 0
                for _ in range(10):
                    try:
                        whole += list(run) == list(range(500))
                    except levada.InvalidArgument as error:
                        if not is_busy(error) and "another epoch" not in str(error): raise
                return whole
            outcomes = together(loop, loop, loop)
            assert all(isinstance(each, int) for each in outcomes), outcomes
            assert list(run) == list(range(500))
        """,
    )


def test_threads_on_one_feed_get_each_batch_once_or_are_refused(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        feed = levada.Feed([{"x": np.full(4, number)} for number in range(2000)], timeout=60)
        batches, got = iter(feed), []
        def take():
            while len(got) < 2000:
                try:
                    for batch in batches: got.append(int(batch["x"][0]))
                    return
                except levada.InvalidArgument as error:
                    if not is_busy(error): raise
        def ask():
            while len(got) < 2000:
                feed.step, feed.stats, feed.end
        outcomes = together(take, take, take, ask)
        assert not any(outcomes), outcomes
        assert sorted(got) == list(range(2000)), len(got)
        feed.close()
        """,
    )


def test_threads_that_begin_passes_of_one_feed_are_refused_or_end_each_others(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        class Source:
            def __init__(self): self.users = set()
            def __iter__(self):
                time.sleep(0.001)
                return self
            def __next__(self):
                self.users.add(threading.get_ident())
                time.sleep(0.0001)
                assert self.users == {threading.get_ident()}, "two passes at a time"
                self.users.clear()
                return 1
        feed = levada.Feed(Source(), timeout=60)
        def begin(use):
            def work():
                used = 0
                for _ in range(30):
                    try:
                        use()
                        used += 1
                    except StopIteration:
                        used += 1
                    except levada.InvalidArgument as error:
                        if not is_busy(error) and "a newer pass" not in str(error): raise
                    time.sleep(0.001)
                return used
            return work
        outcomes = together(*[begin(lambda: list(itertools.islice(feed, 5)))] * 2, *[begin(lambda: next(iter(feed)))] * 2,
                            begin(feed.close), begin(lambda: iter(feed)))
        assert all(isinstance(each, int) for each in outcomes) and sum(outcomes) > 0, outcomes
        assert list(itertools.islice(feed, 5)) == [1] * 5
        """,
    )


@pytest.mark.parametrize("options", ["", "balance='tokens', max_tokens=3"])
def test_a_waiting_loop_raises_when_another_thread_begins_a_pass(
    tmp_path: pathlib.Path, options: str
) -> None:
    run(
        tmp_path,
        f"""
        waits, go_on = threading.Event(), threading.Event()
        class Source:
            slow = True
            def __iter__(self):
                for number in range(6):
                    if number == 2 and Source.slow:
                        Source.slow = False
                        waits.set()
                        go_on.wait(60)
                    yield {{"tokens": np.full(2, number)}}
        feed, got = levada.Feed(Source(), iterate="thread", timeout=60, {options}), []
        def take():
            try:
                for batch in feed: got.append(batch)
            finally:
                go_on.set()
        def supersede():
            waits.wait()
            while len(got) < 2: time.sleep(0.001)
            time.sleep(0.05)
            return list(feed)
        loop, later = together(take, supersede)
        assert isinstance(loop, levada.InvalidArgument) and "a newer pass" in str(loop), (loop, got)
        assert len(later) == 6, later
        """,
    )


def test_a_feeds_state_is_consistent_whatever_another_thread_does(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        sys.setswitchinterval(1e-5)
        class Source:
            epoch = 0
            def set_epoch(self, epoch): self.epoch = epoch
            def __iter__(self): return ((self.epoch, number) for number in range(50))
        feed, states, over = levada.Feed(Source(), timeout=60), [], threading.Event()
        def take():
            try:
                for epoch in range(20):
                    feed.set_epoch(epoch)
                    assert list(feed) == [(epoch, number) for number in range(50)]
            finally:
                over.set()
        def ask():
            while not over.is_set():
                states.append(feed.state_dict())
                feed.metrics(), feed.balance_report, feed.stats, feed.end, feed.step, feed.micro, feed.num_micro
        outcomes = together(take, ask, ask)
        assert not any(outcomes), outcomes
        at = [(each["epoch"], each["samples"]) for each in states]
        assert len(set(at)) > 5 and set(at) <= set(itertools.product(range(20), range(51))), sorted(set(at))
        feed.load_state_dict(states[len(states) // 2])
        epoch, samples = at[len(states) // 2]
        assert list(feed) == [(epoch, number) for number in range(samples, 50)]
        """,
    )


def test_other_threads_may_call_anything_on_a_feed(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        sys.setswitchinterval(1e-5)
        feed = levada.Feed([np.full(4, number) for number in range(200)], timeout=60)
        state = feed.state_dict()
        def repeat(use):
            def work():
                for number in range(100):
                    try:
                        use(number)
                    except levada.InvalidArgument as error:
                        if not is_busy(error) and "a newer pass" not in str(error): raise
                    time.sleep(0.001)
            return work
        def take(_):
            got = [int(batch[0]) for batch in feed]
            assert got == sorted(set(got)), got
        outcomes = together(repeat(take), repeat(take), repeat(lambda _: feed.request_stop()), repeat(feed.set_epoch),
                            repeat(lambda _: feed.load_state_dict(state)), repeat(lambda _: feed.state_dict()),
                            repeat(lambda _: feed.close()), repeat(lambda _: (feed.stats, feed.metrics(), feed.end)))
        assert not any(outcomes), outcomes
        feed.load_state_dict(state)
        assert [int(batch[0]) for batch in feed] == list(range(200))
        """,
    )


def test_threads_on_one_reduce_scatter_are_refused_or_get_their_sums(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        with levada.ReduceScatter() as reduce:
            def work():
                for number in range(300):
                    try:
                        handle = reduce(np.full((64, 8), float(number)))
                        if number % 7 == 0: reduce.flush()
                        assert handle.wait().tolist() == np.full((64, 8), float(number)).tolist()
                    except levada.InvalidArgument as error:
                        if "thread" not in str(error): raise
            outcomes = together(work, work, work)
            assert not any(outcomes), outcomes
        """,
    )


def test_threads_store_read_and_plan_samples_concurrently(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        store = exchange.Store()
        batch = exchange.SampleBatch([f"s{n}" for n in range(64)], {"x": np.arange(64)}, {"x": [1] * 64})
        def add(first):
            def adding():
                for part in batch.split([8] * 8)[first::2]:
                    store.store(part)
            return adding
        def plan():
            held = exchange.SampleDirectory()
            held.add(0, batch.meta())
            plans = [exchange.plan(held, {1: ["s0", "s1"], 2: ["s5"]}, ["x"]) for _ in range(100)]
            assert all(each == plans[0] for each in plans)
        def read():
            for number in range(200):
                assert batch.item("x", number % 64).tolist() == [number % 64]
                len(batch.unpack()), batch.reorder(list(reversed(range(64)))), len(store)
        outcomes = together(add(0), add(1), read, read, plan, plan)
        assert not any(outcomes), outcomes
        assert len(store) == 64
        """,
    )


def test_threads_divide_samples_and_build_batches_concurrently(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        lengths = [1 + 7 * number % 13 for number in range(64)]
        batch = exchange.SampleBatch([f"s{n}" for n in range(64)], {"x": np.zeros(sum(lengths))}, {"x": lengths})
        mesh = levada.Mesh(dp=4, tp=2)
        def divide():
            return [(each.ranks, each.ids) for each in exchange.destinations(mesh, batch, balance="flops")]
        divided, parts, over = divide(), exchange.balance(lengths, 4), threading.Event()
        def plan():
            for _ in range(100):
                assert divide() == divided and exchange.balance(lengths, 4) == parts
        def loader():
            for number in range(500):
                made = levada.empty((50, 2))
                made.fill(number)
                yield {"x": made, "y": levada.collate([{"z": np.full(3, number)}] * 4)}
                del made
        def feed():
            try:
                for number, got in enumerate(levada.Feed(loader(), timeout=60)):
                    assert (got["x"] == number).all() and (got["y"]["z"] == number).all()
                return number
            finally:
                over.set()
        def make():
            while not over.is_set():
                made = levada.empty((10, 3), "int32")
                made.fill(7)
                assert (made == 7).all() and levada.collate([{"z": np.ones(3)}] * 4)["z"].sum() == 12
        outcomes = together(feed, plan, plan, make, make)
        assert outcomes == [499, None, None, None, None], outcomes
        """,
    )


def test_threads_pack_digest_index_and_plan_concurrently(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        f"""
        path = {str(tmp_path / "corpus.jsonl")!r}
        with open(path, "w") as file:
            for number in range(200): file.write('{{"text": "%s"}}\\n' % ("x" * number))
        corpus = levada.Corpus(path, seq_length=16, cache_dir={str(tmp_path)!r}, tokenizer="bytes")
        batch = {{"x": np.arange(100), "y": [1, "two", None], "z": (3.0, b"four")}}
        digests, packed = levada.Digests(), levada.pack(batch)
        mesh = levada.Mesh(dp=2, tp=2)
        layout = levada.Layout({{"x": "shard(dp,0)"}}, otherwise="replicate(tp)")
        def work():
            sizes = set()
            for _ in range(100):
                assert levada.pack(batch) == packed and levada.unpack(packed)["y"] == batch["y"]
                digests.add(batch)
                digests.fields()
                sizes.add((len(corpus), corpus.digest))
                str(mesh), mesh.coordinate(3, "tp"), str(layout), levada.collate([{{"x": np.arange(3)}}] * 4)
            return sizes
        outcomes = together(work, work, work)
        assert outcomes[0] == outcomes[1] == outcomes[2] and len(outcomes[0]) == 1, outcomes
        """,
    )


def test_exporters_are_created_queried_and_closed_during_a_feed(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        f"""
        import urllib.request
        feed = levada.Feed([{{"x": np.full(4, number)}} for number in range(3000)], timeout=60)
        over, given = threading.Event(), []
        def take():
            try:
                return sum(1 for _ in feed)
            finally:
                over.set()
        def export(to):
            def work():
                made = 0
                while not over.is_set() or made == 0:
                    exporter = levada.MetricsExporter(to, feed, every=0.001)
                    if exporter.port:
                        with urllib.request.urlopen(f"http://127.0.0.1:{{exporter.port}}/metrics", timeout=30) as answer:
                            answer.read()
                    assert together(exporter.close, exporter.close, exporter._text)[:2] == [None, None]
                    made += 1
                return made
            return work
        path = {str(tmp_path / "numbers.prom")!r}
        taken, *made = together(take, export("127.0.0.1:0"), export(path), export(given.append))
        assert taken == 3000, taken
        assert all(isinstance(each, int) for each in made), made
        assert given[-1]["levada_feed_batches_total"] <= 3000 and "levada_feed_batches_total" in open(path).read()
        assert not [each for each in threading.enumerate() if each.name == "levada metrics"]
        """,
    )


def test_threads_pack_pad_and_read_layouts_concurrently(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
        samples = [{"tokens": np.arange(length), "name": str(length)} for length in (3, 5, 2)]
        packed, padded = levada.collate_packed(samples, pad_to=4), levada.collate_padded(samples, pad_value={"tokens": -1})
        patterns = {"tokens": ["shard(dp,0)", "zigzag(cp,1)"], "*.mask": "replicate(tp)"}
        text = str(levada.Layout(patterns, otherwise="stages(pp,first,last)"))
        def same_batch(one, other):
            return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
        def work():
            for _ in range(300):
                assert same_batch(levada.collate_packed(samples, pad_to=4), packed)
                assert same_batch(levada.collate_padded(samples, pad_value={"tokens": -1}), padded)
                assert str(levada.Layout(patterns, otherwise="stages(pp,first,last)")) == text
                assert str(levada.Mesh.parse("dp=2,tp=4")) == "dp=2,tp=4"
                try:
                    levada.Layout({"x": "shard(dp"})
                except levada.InvalidArgument as error:
                    assert "shard(dp" in str(error)
                else:
                    raise AssertionError("it was taken")
        outcomes = together(work, work, work)
        assert not any(outcomes), outcomes
        """,
    )
