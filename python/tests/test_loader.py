"""levada.DataLoader: errors, workers that die or hang, epochs and states, samplers, weights, evaluation."""

from __future__ import annotations

import pathlib

from loading import script
from ranks import run, succeed

BAD = '''
class Bad:
    "Raises at some items."
    def __init__(self, bad, error=ValueError): self.bad, self.error = bad, error
    def __len__(self): return 64
    def __getitem__(self, number):
        if number in self.bad: raise self.error(f"cannot decode {number}")
        return np.array([number])
'''


def test_an_item_that_raises_is_the_same_error_at_the_same_step_on_every_rank(tmp_path: pathlib.Path) -> None:
    main = """
for workers in (0, 1):
    for kind in (ValueError, IndexError, StopIteration, MemoryError) if workers == 0 else (IndexError,):
        loader = levada.DataLoader(Bad({41}, kind), 4, True, mesh=levada.Mesh(dp=2, tp=2), seed=7, num_workers=workers)
        try: everything(loader)
        except levada.SourceError as error:
            own = [error.number, error.epoch, error.position, error.dataset, error.worker] if isinstance(error, levada.ItemError) else []
            tell(step=loader.end.step, text=str(error).splitlines()[0], own=own, cause=type(error.__cause__).__name__, trace="in __getitem__" in str(error))
        loader.close()
"""
    told = succeed(tmp_path, 4, script(BAD, main))
    assert all([each["text"] for each in rank] == [each["text"] for each in told[0]] for rank in told)
    assert all([each["step"] for each in rank] == [each["step"] for each in told[0]] for rank in told)
    texts = [each["text"] for each in told[0]]
    assert len(texts) == 5
    assert texts[0].endswith("raised ValueError: cannot decode 41, in the training process")
    assert ": item 41 of Bad (epoch 0, position " in texts[0] and texts[0].startswith("rank ")
    assert ", although len() is 64, in the training process" in texts[1]
    assert ", in worker 0 (process " in texts[4]
    readers = [rank for rank in told if rank[0]["own"]]
    assert len(readers) == 1 and readers[0][0]["own"][0] == 41 and readers[0][4]["own"][3:] == ["Bad", 0]
    assert readers[0][0]["cause"] == "ValueError" and all(each["trace"] for rank in told for each in rank)


def test_a_skipped_item_leaves_all_other_samples_as_they_were(tmp_path: pathlib.Path) -> None:
    main = """
mesh = levada.Mesh(dp=2, tp=2)
for workers in (0, 1):
    def loader(bad, allowed, **more): return levada.DataLoader(Bad(bad), 4, True, mesh=mesh, seed=7, num_workers=workers, on_error="skip", max_skipped=allowed, **more)
    skipping, steps, shapes = loader({41, 3, 17}, 3), [], set()
    for batch in skipping:
        assert skipping.numbers == batch[: skipping.valid, 0].tolist() and skipping.totals is None
        steps.append(rows({"id": batch[:, 0]}, skipping.valid))
        shapes.add(batch.shape)
    want = [number for number in SampleOrder([("", 64, 1.0)], 7, shuffle=True).numbers(0, 0, 64) if number not in (41, 3, 17)]
    tell(order=[row["id"] for row in in_order(on_all(steps), mesh)] == want, shapes=len(shapes), skipped=sum(set(on_all(skipping.skipped))) <= 3)
    skipping.close()
    strict = loader({41, 3, 17, 5, 6, 7}, 1)
    tell(text=refusal(lambda: everything(strict), levada.SourceError))
    strict.close()
    if not workers: tell(text=refusal(lambda: everything(loader(range(64), 64)), levada.SourceError))
"""
    outcome = run(tmp_path, 4, script(BAD, main))
    assert outcome.status == 0, outcome.errors
    for rank in outcome.told:
        for first in (0, 3):
            assert rank[first] == {"order": True, "shapes": 1, "skipped": True}
            assert "items of epoch 0 were left out, and max_skipped is 1; the last one: item " in rank[first + 1]["text"]
        assert "all 4 items of a batch failed, the last one: item " in rank[2]["text"]
    assert outcome.errors.count("levada: left out: item 41 of Bad (epoch 0, position") >= 2


DIES = """
class Dies:
    "Ends its process at an item, so many times."
    def __init__(self, folder, times): self.folder, self.times = folder, times
    def __len__(self): return 48
    def __getitem__(self, number):
        if number == 37:
            died = len([name for name in os.listdir(self.folder) if name.startswith("died")])
            if died < self.times:
                open(f"{self.folder}/died{died}", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        return number
"""


def test_dead_workers_are_replaced_and_the_third_death_names_the_items(tmp_path: pathlib.Path) -> None:
    main = f"""
import warnings
warnings.simplefilter("ignore")
os.makedirs({str(tmp_path)!r} + "/once", exist_ok=True); os.makedirs({str(tmp_path)!r} + "/always", exist_ok=True)
mesh = levada.Mesh(dp=2)
loader = levada.DataLoader(Dies({str(tmp_path)!r} + "/once", 1), 4, True, mesh=mesh, seed=7, num_workers=2)
steps = []
for batch in loader: steps.append(batch[:loader.valid].tolist())
on = on_all(steps)
tell(same=[number for step in zip(*on) for part in step for number in part] == SampleOrder([("", 48, 1.0)], 7, shuffle=True).numbers(0, 0, 48))
loader.close()
loader = levada.DataLoader(Dies({str(tmp_path)!r} + "/always", 1000), 4, True, mesh=mesh, seed=7, num_workers=1)
try: everything(loader)
except levada.SourceError as error: tell(text=str(error))
loader.close()
"""
    told = succeed(tmp_path, 2, script(DIES, main))
    for rank in told:
        assert rank[0] == {"same": True}
        assert "was killed by SIGKILL" in rank[1]["text"] and "as 2 times before" in rank[1]["text"]
        assert "The workers were making these items, or the next ones: " in rank[1]["text"] and " 37" in rank[1]["text"]


def test_forked_workers_are_replaced_and_start_again_after_a_close_by_the_fork_server(tmp_path: pathlib.Path) -> None:
    main = f"""
import warnings
os.makedirs({str(tmp_path)!r} + "/once", exist_ok=True)
data = Dies({str(tmp_path)!r} + "/once", 1)
loader = levada.DataLoader(data, 4, mesh="dp=2", num_workers=2, persistent_workers=False, multiprocessing_context="fork")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    counts = [sum(loader.valid for _ in loader) for _ in range(2)]
    loader.close()
    counts.append(sum(loader.valid for _ in loader))
    loader.close()
tell(counts=counts, said=[str(each.message) for each in said])
"""
    told = succeed(tmp_path, 2, script(DIES, main))
    assert [rank[0]["counts"] for rank in told] == [[24, 24, 24]] * 2
    said = [text for rank in told for text in rank[0]["said"]]
    assert sum("was killed by SIGKILL" in text for text in said) == 1
    assert sum('processes start by "forkserver" from now on' in text for text in said) == 2 and len(said) == 3


HANGS = """
class Hangs:
    def __len__(self): return 48
    def __getitem__(self, number):
        if number == 20: time.sleep(1000)
        return number
"""


def test_a_worker_that_hangs_ends_the_pass_with_its_stack_on_every_rank(tmp_path: pathlib.Path) -> None:
    main = """
loader = levada.DataLoader(Hangs(), 4, mesh=levada.Mesh(dp=2), num_workers=1, timeout=2.5)
try: everything(loader)
except levada.Error as error: tell(text=str(error))
loader.close()
"""
    told = succeed(tmp_path, 2, script(HANGS, main))
    for rank in told:
        assert "in __getitem__" in rank[0]["text"] and "could not read step" in rank[0]["text"], rank
        assert "The workers were making these items, or the next ones: " in rank[0]["text"]


def test_workers_of_a_script_without_a_main_guard_fail_with_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    for context in ("forkserver", "spawn"):
        loop = f"for batch in levada.DataLoader(range(8), 2, num_workers=1, multiprocessing_context={context!r}): pass\n"
        errors = run(tmp_path, 1, loop).errors
        assert "worker 0 (process " in errors and "ended with exit status 1 while it started; see its output on standard error" in errors
        assert 'a likely cause is that the main module, which it imports, runs its program without if __name__ == "__main__":' in errors


def test_the_server_of_workers_starts_with_the_loader_if_every_rank_reads(tmp_path: pathlib.Path) -> None:
    main = """
from multiprocessing.forkserver import _forkserver
for mesh, workers in (("dp=2", 0), ("tp=2", 1), ("dp=2", 1)):
    loader = levada.DataLoader(range(8), 2, mesh=mesh, num_workers=workers)
    tell(runs=_forkserver._forkserver_pid is not None)
assert sum(map(len, loader)) == 4
loader.close()
"""
    assert succeed(tmp_path, 2, script("", main)) == [[{"runs": False}, {"runs": False}, {"runs": True}]] * 2


def test_a_loader_that_is_not_closed_leaves_no_open_file(tmp_path: pathlib.Path) -> None:
    main = """
import gc, warnings
warnings.simplefilter("error")
said = []
sys.unraisablehook = lambda raised: said.append(str(raised.exc_value))
def plans(): return [each for each in os.scandir("/proc/self/fd") if "levada-plan" in os.readlink(each)]
for workers in (0, 1, 1):
    loader = levada.DataLoader(range(8), 2, num_workers=workers)
    assert sum(len(batch) for _ in range(2) for batch in loader) == 16
    assert loader.item(3) == 3 and len(plans()) == workers
    if workers == 1:
        loader.close()
        assert sum(map(len, loader)) == 8
    del loader
    gc.collect()
    assert plans() == []
tell(said=said)
"""
    assert succeed(tmp_path, 1, script("", main)) == [[{"said": []}]]


def test_passes_follow_the_epochs_and_states_resume_by_the_rules(tmp_path: pathlib.Path) -> None:
    main = """
def loader(**more): return levada.DataLoader(range(40), 3, True, mesh=levada.Mesh(dp=2), seed=1, **more)
def taken(loader, stop=None):
    got = []
    for step, batch in enumerate(loader):
        got.append(batch[:loader.valid].tolist())
        if step + 1 == stop: break
    return [number for step in zip(*on_all(got)) for part in step for number in part]
epochs = [SampleOrder([("", 40, 1.0)], 1, shuffle=True).numbers(epoch, 0, 40) for epoch in range(4)]
one = loader()
assert [taken(one), taken(one), one.epoch] == [epochs[0], epochs[1], 2]
one.set_epoch(0)
assert taken(one, 3) == epochs[0][:18]
state = one.state_dict()
assert (state["epoch"], state["position"]) == (0, 18)
assert taken(one) == epochs[0], "a pass that was left early begins anew"
assert one.epoch == 1
one.load_state_dict(state)
assert taken(one) == epochs[0][18:] and taken(one) == epochs[1], "a state resumes, and the next epoch follows"
one.load_state_dict(state); one.set_epoch(0)
assert taken(one) == epochs[0][18:]
for epoch in (1, 5):
    one.load_state_dict(state)
    tell(text=refusal(lambda: one.set_epoch(epoch)))
one.load_state_dict(state)
for batch in one: last = one.state_dict()
assert (last["epoch"], last["position"]) == (0, 40)
one.load_state_dict(last); one.set_epoch(0)
assert taken(one) == [], "an epoch that is named again is over"
one.load_state_dict(last); one.set_epoch(1)
assert taken(one) == epochs[1]
one.load_state_dict(last)
assert taken(one) == epochs[1] and one.epoch == 2
between = loader().state_dict()
one.load_state_dict(between)
assert taken(one) == epochs[0]
three = loader(epochs=3)
assert taken(three) == sum(epochs[:3], []) and len(three) == 20 and three.epoch == 3
three.set_epoch(0)
assert taken(three, 9) == sum(epochs[:2], [])[:54]
state = three.state_dict()
one.load_state_dict(state)
assert taken(one) == epochs[1][14:] and one.epoch == 2
three.load_state_dict(state)
assert taken(three) == sum(epochs[:3], [])[54:]
endless = loader(epochs=None)
assert taken(endless, 20) == sum(epochs[:3], [])
tell(text=refusal(lambda: len(endless), TypeError))
limited = loader(max_steps=2)
assert taken(limited) == epochs[0][:12]
for more in ({}, {"max_steps": 4}):
    rest = loader(**more)
    rest.load_state_dict(limited.state_dict())
    assert taken(rest) == epochs[0][12:36 if more else 40], "max_steps leaves the rest of the epoch to its state"
assert taken(limited) == epochs[1][:12] and limited.epoch == 2
state = limited.state_dict()
assert (state["epoch"], state["position"]) == (1, 12)
limited.load_state_dict(state)
assert limited.state_dict() == state and taken(limited) == epochs[1][12:24] and limited.state_dict()["position"] == 24
whole = loader(max_steps=7)
assert taken(whole) == epochs[0] and whole.state_dict()["epoch"] == 1
# an iterator that was made before the state and the epoch are known, as trainers do
one.set_epoch(0); early = iter(one); iter(one)
one.set_epoch(2)
assert sum((next(early)[:one.valid].tolist() for _ in range(2)), []) == [n for at in (0, 6) for n in epochs[2][at + 3 * rank:at + 3 * rank + 3]]
early.close()
# a pass within a pass, and next() without a loop
inner, outer = levada.DataLoader(range(11), 4, mesh=levada.Mesh(dp=2)), loader()
for step, batch in enumerate(outer):
    if step in (1, 3): assert sum((inner.gather(each.tolist()) for each in inner), []) == list(range(11))
batches = iter(outer)
assert next(batches).tolist() == (epochs[1][0:3] if rank == 0 else epochs[1][3:6])
"""
    told = succeed(tmp_path, 2, script("", main))
    first, later, endless = (each["text"] for each in told[0])
    assert "at position 18 of epoch 0" in first and "at position 18 of epoch 0" in later
    assert endless == "this DataLoader has no length: the pass has no end"


def test_epoch_names_the_next_pass_after_a_state_from_the_end_of_an_epoch(tmp_path: pathlib.Path) -> None:
    main = """
mesh = levada.Mesh(dp=2, tp=2)
reads = mesh.coordinate(rank, "tp") == 0
class Listed:
    def __iter__(self): return iter(range(20))
def loader(size=40, **more): return levada.DataLoader(range(size), 3, mesh=mesh, seed=1, **more)
def resumed(state, *named, make=loader):
    one = make()
    one.load_state_dict(state)
    for epoch in named: one.set_epoch(epoch)
    said = one.epoch
    return said, sum(1 for _ in one)
def at_end(one):
    for batch in one: state = one.state_dict()
    assert one.epoch == 1
    return state
last = at_end(loader())
for make in (loader, lambda: levada.DataLoader(range(40) if reads else None, 3, mesh=mesh, seed=1)):
    assert [resumed(last, *named, make=make) for named in ((), (0,), (1,))] == [(1, 7), (0, 0), (1, 7)]
one = loader()
for step, batch in enumerate(one):
    if step == 2: break
assert resumed(one.state_dict()) == (0, 4)
assert resumed(at_end(loader(drop_last=True)), make=lambda: loader(drop_last=True)) == (1, 6)
assert resumed(at_end(loader(sampler=Listed())), make=lambda: loader(sampler=Listed())) == (1, 4)
three = loader(epochs=3)
for batch in three: last = three.state_dict()
assert resumed(last, make=lambda: loader(epochs=3)) == (3, 20) and resumed(last) == (3, 7)
epochs, one = [], loader()
one.load_state_dict(last := at_end(loader()))
for epoch in range(one.epoch, 2):
    for batch in one: epochs.append(one.epoch)
assert epochs == [1] * 7
tell(done=True)
"""
    assert succeed(tmp_path, 4, script("", main)) == [[{"done": True}]] * 4


def test_states_of_other_data_seeds_and_orders_are_refused_by_name(tmp_path: pathlib.Path) -> None:
    main = """
mesh = levada.Mesh(dp=2)
def loader(size=40, seed=1, **more): return levada.DataLoader(range(size), 3, True, mesh=mesh, seed=seed, **more)
state = loader().state_dict()
for other in (loader(41), loader(seed=2), loader(num_samples=10), loader(fingerprint="v2"), levada.DataLoader(range(40), 3, mesh=mesh, seed=1)):
    tell(text=refusal(lambda: other.load_state_dict(state)))
for changed in ({**state, "position": 5}, {**state, "epoch": -1}, {**state, "version": 9}, {"epoch": 0}, [], {**state, "order": 3}, {**state, "position": True}):
    tell(text=refusal(lambda: loader().load_state_dict(changed)))
loader().load_state_dict(dict(state))
"""
    texts = [each["text"] for each in succeed(tmp_path, 2, script("", main))[0]]
    named = ["items is 40 in the state and 41 here", "seed is 1 in the state and 2 here", "draws is 40 in the state and 10 here"]
    named += ["fingerprint is none in the state and v2 here", "order is shuffled (permutation 1) in the state and as stored here"]
    for name, text in zip(named, texts, strict=False):
        assert name in text
    assert all("state" in text and text != "nothing was raised" for text in texts) and len(texts) == 12


def test_readers_that_differ_are_named_before_the_first_step(tmp_path: pathlib.Path) -> None:
    main = """
class Listed:
    def __init__(self, numbers): self.numbers = numbers
    def __len__(self): return len(self.numbers)
    def __iter__(self): return iter(self.numbers)
class Raises(Listed):
    def __iter__(self): raise OSError("no such list")
mesh = levada.Mesh(dp=2)
def loader(size=40, batch=3, **more): return levada.DataLoader(range(size), batch, mesh=mesh, **more)
one = levada.DataLoader(range(40), 3, mesh=mesh); one.set_epoch(rank)
for each in (
    loader(40 + rank), loader(batch=3 + rank), loader(seed=rank, shuffle=True), loader(pad_last=rank == 1), loader(epochs=1 + rank),
    loader(sampler=Listed([rank, 2])), loader(sampler=Raises([]) if rank else Listed([1])), loader(sampler=Listed([40])), loader(sampler=Listed([])),
    loader(sampler=Listed([[1, 2]])), loader(weights=[1.0 + rank] * 40), one, loader(100, 60, drop_last=True),
    levada.DataLoader(range(40) if rank else None, 3, mesh=mesh),
    levada.DataLoader(np.arange(40) * (1 + rank), 3, True, seed=3, mesh=mesh, check="digests"),
):
    begun = time.monotonic()
    text = refusal(lambda: everything(each), levada.Error)
    assert time.monotonic() - begun < 3
    tell(text=text)
"""
    told = succeed(tmp_path, 2, script("", main))
    texts = [each["text"] for each in told[0]]
    assert texts == [each["text"] for each in told[1]]
    assert texts[0].startswith("items of a DataLoader is 40 on rank 0 and 41 on rank 1; give every rank the same data set")
    assert texts[1].startswith("batch_size of a DataLoader is 3 on rank 0 and 4 on rank 1; give every rank the same arguments")
    assert [text.split(" of a DataLoader")[0] for text in texts[2:6]] == ["seed", "pad_last", "epochs", "the sampler's list"]
    assert texts[6] == "rank 1 cannot begin a pass of the DataLoader: OSError: no such list"
    assert "the sampler Listed yielded 40, and the data set has 40 items" in texts[7]
    assert "the sampler Listed yielded no number in epoch 0" in texts[8] and "pass it as batch_sampler=" in texts[9]
    assert "order of a DataLoader is weights " in texts[10] and "the next epoch and position of a DataLoader is 0 0 on rank 0" in texts[11]
    assert "one step takes 120 draws, and a pass has only 100" in texts[12]
    assert "rank 0 reads for the DataLoader, but its dataset is None" in texts[13]
    assert texts[14].startswith("the digest of the first item of a DataLoader is ") and "their data sets have other content" in texts[14]


def test_arguments_that_cannot_work_are_refused_with_a_remedy(tmp_path: pathlib.Path) -> None:
    main = """
class Stream:
    def __iter__(self): return iter([1])
class Sharded:
    num_replicas, rank = 2, 1
    def __iter__(self): return iter([1])
    def __len__(self): return 1
class Processes(Sharded):
    num_replicas, num_processes, process_index = 1, 4, 2
D = levada.DataLoader
for make in (
    lambda: D(Stream(), 2), lambda: D(iter([1]), 2), lambda: D("train.jsonl", 2), lambda: D(levada.Corpus("x", tokenizer="bytes"), 2), lambda: D({}, 2),
    lambda: D({"a": [1], "b": Stream()}, 2), lambda: D([], 2), lambda: D([1], 0), lambda: D([1], 2, sampler=Sharded()),
    lambda: D([1], batch_sampler=Processes()), lambda: D([1], seed=-1), lambda: D([1], seed=1.5), lambda: D([1], seed=1 << 64), lambda: D([1], weights=[1, 2]),
    lambda: D([1], weights=[0]), lambda: D([1], weights=[float("nan")]), lambda: D([1], weights={"a": 1}), lambda: D({"a": [1]}, weights={"b": 1}),
    lambda: D([1], sampler=[0], shuffle=True), lambda: D([1], sampler=[0], batch_sampler=[[0]]), lambda: D([1], batch_size=2, batch_sampler=[[0]]),
    lambda: D([1], drop_last=True, pad_last=True), lambda: D([1], in_order=False), lambda: D([1], on_error="ignore"), lambda: D([1], collate_fn=3),
    lambda: D([1], epochs=0), lambda: D([1], num_workers=-1), lambda: D([1], balance="tokens"), lambda: D([1], max_tokens=5, lengths=[1], on_error="skip"),
    lambda: D([1], lengths=[1, 2]), lambda: D([1], lengths="n"), lambda: D([1], prefetch_to_device=True), lambda: D([1], multiprocessing_context="threads"),
    lambda: D([1], generator=3), lambda: D([1], epochs=2, sampler=[0]), lambda: D([1], weights=[1], shuffle=True), lambda: D([1]).set_epoch(-1),
    lambda: D([1]).item(1), lambda: levada.item_seed(), lambda: D.like([1]),
):
    tell(text=refusal(make))
tell(text=refusal(lambda: D([1], iterate="thread"), TypeError))
one = D(range(3), 2)
for batch in one: tell(text=refusal(lambda: one.gather([1])) if one.valid == 2 else refusal(lambda: one.gather(5)))
"""
    texts = [each["text"] for each in succeed(tmp_path, 1, script("", main))[0]]
    assert "nothing was raised" not in texts and len(texts) == 43
    assert "levada.Feed" in texts[0] and "levada.Feed" in texts[1] and "levada.Corpus" in texts[2]
    assert "a Sharded with num_replicas=2, which yields one of 2 parts" in texts[8] and "num_processes=4" in texts[9]


def test_failures_that_start_a_pass_reach_every_rank_within_seconds(tmp_path: pathlib.Path) -> None:
    classes = """
import threading
class Unsendable:
    def __init__(self): self.lock = threading.Lock()
    def __len__(self): return 10
    def __getitem__(self, number): return number
class Grows:
    "Has another length in each process."
    def __len__(self): return 10 if os.environ.get("LEVADA_TEST") == str(os.getpid()) else 11
    def __getitem__(self, number): return number
def raising(samples): raise IndexError("list index out of range")
def starts_badly(number): raise RuntimeError("no licence")
class Other: pass
def makes_objects(samples): return Other()
"""
    main = """
os.environ["LEVADA_TEST"] = str(os.getpid())
mesh = levada.Mesh(dp=2)
for loader in (
    levada.DataLoader(Unsendable(), 2, mesh=mesh, num_workers=1),
    levada.DataLoader(Grows(), 2, mesh=mesh, num_workers=1),
    levada.DataLoader(range(10), 2, mesh=mesh, num_workers=1, worker_init_fn=starts_badly),
    levada.DataLoader(range(10), 2, mesh=mesh, num_workers=1, collate_fn=raising),
    levada.DataLoader(range(10), 2, mesh=mesh, collate_fn=raising),
    levada.DataLoader(range(10), 2, mesh=mesh, collate_fn=makes_objects),
):
    try: everything(loader)
    except levada.Error as error: tell(text=str(error))
    loader.close()
"""
    told = succeed(tmp_path, 2, script(classes, main))
    texts = [each["text"] for each in told[0]]
    assert texts[:5] == [each["text"] for each in told[1]][:5] and len(texts) == 6
    assert "Unsendable cannot be sent to worker processes" in texts[0] and "in its first __getitem__" in texts[0]
    assert "Grows has 11 items in worker 0 (process" in texts[1] and "and had 10 when the loader was made" in texts[1]
    assert "RuntimeError: no licence" in texts[2] and "worker 0" in texts[2]
    for text in texts[3:5]:
        assert "collate_fn raising raised IndexError: list index out of range for the items " in text
    assert "Other" in texts[5]


def test_samples_are_counted_in_stats_and_reports_without_padding(tmp_path: pathlib.Path) -> None:
    main = """
import json, re
folder = os.path.dirname(os.path.abspath(__file__))
cases = [dict(batch_size=4), dict(batch_size=4, pad_last=True), dict(batch_size=4, drop_last=True), dict(batch_size=None),
         dict(batch_sampler=[[0, 1, 2], [3], [4, 5, 6, 7], [8]]), dict(batch_size=4, num_workers=1, epochs=2),
         dict(batch_size=4, on_error="skip", max_skipped=9), dict(batch_size=2, balance="tokens", lengths=[1] * 22)]
for at, options in enumerate(cases):
    bad = Bad({3} if "on_error" in options else set())
    data = type("Few", (Bad,), {"__len__": lambda self: 22})(bad.bad)
    if "num_workers" in options: data = Bad(set())
    loader = levada.DataLoader(data, mesh=levada.Mesh(dp=2, tp=2), record=True, **options)
    rows = sum((loader.valid or 0) for _ in loader)
    metrics = {metric.name: metric.value for metric in loader.metrics()}
    counts = [loader.stats.samples, loader.stats.batches, metrics.get("levada_feed_samples_total"), metrics["levada_feed_batches_total"]]
    loader.write_report(f"{folder}/report{at}.html")
    page = open(f"{folder}/report{at}.html").read() if rank == 0 else ""
    shown = [re.findall(pattern, page)[:1] for pattern in (r'"samples": ?(\\d+)', r'a DataLoader of a (\\w+)')]
    tell(rows=rows, counts=counts, shown=shown)
    loader.close()
"""
    told = succeed(tmp_path, 4, script(BAD + "import os\n", main))
    totals = [22, 22, 16, 22, 9, 128, 21, None]
    for at, total in enumerate(totals):
        mine = [rank[at] for rank in told]
        counts = [each["counts"] for each in mine]
        if total is None:
            assert sum(count[0] for count in counts[::2]) == 22 and all(count[2] == count[0] for count in counts)
            total = 22
        else:
            assert [count[0] for count in counts] == [each["rows"] for each in mine] and all(count[2] is None for count in counts)
            assert counts[0][0] + counts[2][0] == total
        assert mine[0]["shown"] == [[str(total)], ["Bad" if at == 5 else "Few"]], mine[0]
