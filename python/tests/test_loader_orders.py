"""The orders of a levada.DataLoader: samplers, weights, several data sets, balanced steps; and the types of its
batches."""

from __future__ import annotations

import pathlib

import pytest
from loading import script
from ranks import succeed

SAMPLERS = '''
class Shuffled:
    "Draws from the global generator, and differs by epoch."
    def __init__(self, size): self.size, self.epoch = size, None
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return self.size
    def __iter__(self):
        order = list(range(self.size)); random.shuffle(order); np.random.rand()
        return iter([np.int64(number) for number in order][: self.size - self.epoch])
class Lists:
    "Batches of several sizes."
    def __init__(self, lists): self.lists = lists
    def __len__(self): return len(self.lists)
    def __iter__(self): return iter(self.lists)
def taken(loader, mesh):
    steps = []
    for batch in loader: steps.append(batch[:loader.valid].tolist())
    by = {mesh.data_coordinate(at): each for at, each in enumerate(on_all(steps))}
    return [number for step in zip(*(by[at] for at in sorted(by)), strict=True) for part in step for number in part]
'''


def test_a_sampler_is_listed_once_for_the_whole_job_and_resumes(tmp_path: pathlib.Path) -> None:
    main = """
first = None
for mesh, batch, workers in ((levada.Mesh(dp=2, tp=2), 4, 1), (levada.Mesh(dp=4), 3, 0)):
    before = random.getstate()
    loader = levada.DataLoader(range(50), batch, sampler=Shuffled(50), mesh=mesh, seed=3, num_workers=workers)
    assert len(loader) == -(-50 // (batch * mesh.data_size))
    epochs = [taken(loader, mesh) for _ in range(2)]
    assert random.getstate() == before and sorted(epochs[0]) == list(range(50)) and len(set(epochs[1])) == 49
    first = first or epochs
    assert epochs == first and epochs[0][:49] != epochs[1]
    loader.set_epoch(1)
    for step, batch in enumerate(loader):
        if step == 1: break
    state = loader.state_dict()
    again = levada.DataLoader(range(50), 7, sampler=Shuffled(50), mesh=levada.Mesh(tp=2, dp=2), seed=3)
    again.load_state_dict(state)
    assert taken(again, levada.Mesh(tp=2, dp=2)) == epochs[1][state["position"]:]
    loader.close()
tell(passed=True)
"""
    assert succeed(tmp_path, 4, script(SAMPLERS, main)) == [[{"passed": True}]] * 4


def test_a_state_is_refused_by_name_if_the_sampler_lists_another_order(tmp_path: pathlib.Path) -> None:
    main = """
def state_after(loader, steps):
    for _, batch in zip(range(steps), loader): pass
    state = loader.state_dict()
    loader.close()
    return state
def all_of(loader):
    try: return len([each for batch in loader for each in batch[:loader.valid]])
    except levada.InvalidArgument as error: return str(error)
order, mesh, others = list(range(44)), levada.Mesh(dp=2), levada.Mesh(tp=2)
for name, first, other in (("sampler", Lists(order), Lists(order[::-1])),
                           ("batch_sampler", Lists([order[at : at + 11] for at in (0, 11, 22, 33)]), Lists([[at] for at in order]))):
    def loader(mesh, sampler): return levada.DataLoader(order, **{name: sampler}, mesh=mesh)
    state = state_after(loader(mesh, first), 1)
    assert on_all(state)[0] == state
    again = loader(others, first)
    again.load_state_dict(state)
    assert again.state_dict() == state
    before = all_of(again)
    again = loader(others, other)
    again.load_state_dict(state)
    tell(before=before, text=all_of(again))
    fresh = loader(others, other)
    fresh.load_state_dict(loader(mesh, first).state_dict())
    assert all_of(fresh) == 44
    old = levada.loader.states.LoaderState.decode(state)._replace(listed="").encode()
    again.load_state_dict(old)
    assert isinstance(all_of(again), int)
"""
    for mine in succeed(tmp_path, 2, script(SAMPLERS, main)):
        assert [each["before"] for each in mine] == [42, 22]
        assert "the list of the sampler Lists for epoch 0 has digest" in mine[0]["text"]
        assert "the list of the batch_sampler Lists for epoch 0 has digest" in mine[1]["text"]


def test_the_lists_of_a_batch_sampler_are_whole_batches_of_one_rank(tmp_path: pathlib.Path) -> None:
    main = """
mesh = levada.Mesh(dp=2, tp=2)
lists = [[0, 1, 2], [3], [4, 5, 6, 7], [-1, 8], [9, 9]]
for workers in (0, 1):
    loader = levada.DataLoader(range(20), batch_sampler=Lists(lists), mesh=mesh, num_workers=workers)
    got = [(batch.tolist(), loader.valid, loader.global_valid) for batch in loader]
    want = [([0, 1, 2], 3, 4), ([4, 5, 6, 7], 4, 6), ([9, 9], 0, 2)] if rank < 2 else [([3], 1, 4), ([19, 8], 2, 6), ([9, 9], 2, 2)]
    assert got == want, got
    assert len(loader) == 3
    loader.set_epoch(0)
    for batch in loader: break
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert state["position"] == 2 and taken(loader, mesh) == [4, 5, 6, 7, 19, 8, 9, 9]
    loader.close()
tell(passed=True)
"""
    assert succeed(tmp_path, 4, script(SAMPLERS, main)) == [[{"passed": True}]] * 4


def test_weights_draw_with_replacement_and_mix_data_sets_by_their_shares(tmp_path: pathlib.Path) -> None:
    main = """
import collections
for mesh, batch in ((levada.Mesh(dp=2, tp=2), 5), (levada.Mesh(dp=4), 16)):
    loader = levada.DataLoader(Data(8), batch, mesh=mesh, seed=3, weights=[0, 1, 2, 3, 4, 0, 10, 20], num_samples=1600)
    steps = []
    for each in loader: steps.append(rows(each, loader.valid))
    got = in_order(on_all(steps), mesh)
    counts = collections.Counter(row["id"] for row in got)
    assert len(got) == 1600 and counts[0] == counts[5] == 0 and all(abs(counts[i] - 40 * w) < 90 for i, w in enumerate([0, 1, 2, 3, 4, 0, 10, 20])), counts
    assert len({row["np"] for row in got}) == 1600, "two draws of an item must differ"
    digest = hash(tuple(row["np"] for row in got))
    assert globals().setdefault("seen", digest) == digest
mesh = levada.Mesh(dp=4)
sets = {"a": ["a%d" % i for i in range(3)], "b": ["b%d" % i for i in range(7)], "c": []}
def texts(loader):
    got = []
    for batch in loader: got.append(batch[:loader.valid])
    return [text for step in zip(*on_all(got)) for part in step for text in part]
assert texts(levada.DataLoader(sets, 2, mesh=mesh)) == sets["a"] + sets["b"]
assert sorted(texts(levada.DataLoader(sets, 2, True, mesh=mesh))) == sets["a"] + sets["b"]
del sets["c"]
mixed = levada.DataLoader(sets, 64, True, mesh=mesh, seed=5, weights={"a": 3, "b": 1}, num_samples=4096)
got = texts(mixed)
assert sum(text[0] == "a" for text in got) in (3071, 3072, 3073)
assert all(abs(sum(text == "b%d" % i for text in got) - 1024 / 7) < 2 for i in range(7))
tell(text=refusal(lambda: everything(levada.DataLoader({"x": Bad(), "y": [1, 2]}, 1, mesh=mesh)), levada.SourceError))
"""
    classes = """
class Bad:
    def __len__(self): return 2
    def __getitem__(self, number):
        if number == 0: raise KeyError("tokens")
        return number
"""
    told = succeed(tmp_path, 4, script(classes, main))
    assert all("item 0 of x (epoch 0, position 0) raised KeyError: 'tokens'" in rank[0]["text"] for rank in told)


def test_a_corpus_with_the_same_seed_has_the_same_order(tmp_path: pathlib.Path) -> None:
    lines = "".join('{"text": "%s"}\n' % (chr(97 + at % 26) * 8) for at in range(40))
    (tmp_path / "one.jsonl").write_text(lines)
    main = """
def order_of(seed, epochs):
    corpus = levada.Corpus(FOLDER + "/one.jsonl", seq_length=8, shuffle=True, seed=seed, epochs=epochs, tokenizer="bytes")
    plain = [batch["tokens"][0].tolist() for batch in levada.Feed(levada.Corpus(FOLDER + "/one.jsonl", seq_length=8, tokenizer="bytes"), batch_size=1)]
    got = [batch["tokens"][0].tolist() for batch in levada.Feed(corpus, batch_size=1)]
    loader = levada.DataLoader(plain, 1, True, seed=seed, epochs=epochs, collate_fn=list)
    return got == [batch[0] for batch in loader]
tell(same=[order_of(seed, 3) for seed in (0, 7, 12345)])
""".replace("FOLDER", repr(str(tmp_path)))
    assert succeed(tmp_path, 1, script("", main)) == [[{"same": [True, True, True]}]]


def test_balanced_steps_make_each_item_once_by_its_length(tmp_path: pathlib.Path) -> None:
    classes = """
size = 70
lengths = np.random.default_rng(5).integers(10, 400, size)
class Texts(Data):
    def __getitem__(self, number): super().__getitem__(number); return {"tokens": np.full(lengths[number], number)}
def length_of(number): return lengths[number]
class Dies(Texts):
    "Kills the first worker that makes item 5."
    def __getitem__(self, number):
        if number == 5:
            try: os.close(os.open(LOG + "died", os.O_CREAT | os.O_EXCL))
            except FileExistsError: pass
            else: os.kill(os.getpid(), 9)
        return super().__getitem__(number)
"""
    main = """
mesh = levada.Mesh(dp=2, tp=2)
orders = []
for given, workers in ((lengths, 0), (length_of, 0), (length_of, 1), (lengths, 3)):
    log = LOG + f"{callable(given)}{workers}"
    def loader(**more):
        return levada.DataLoader((Dies if workers == 3 else Texts)(size, log), 8, True, mesh=mesh, seed=7, lengths=given, balance="flops", max_tokens=1024,
                                 num_workers=workers, **more)
    one, got, tokens = loader(), [], 0
    state = None
    for batch in one:
        starts = batch["cu_seqlens"][0]
        assert starts[-1] <= 1024 and one.valid is None and one.numbers is None
        got += [int(batch["tokens"][0][at]) for at in starts[:-1]]
        if one.micro == 0: tokens += one.global_tokens
        if one.step == 2: state = one.state_dict()
    every = on_all(got)
    assert sorted(every[0] + every[2]) == list(range(size)) and every[0] == every[1] and tokens == lengths.sum()
    orders.append(every)
    made = sorted(int(line) for line in open(log))
    assert made == list(range(size)) if workers < 3 else set(made) == set(range(size))
    one.close()
    on_all(0)
    rest = loader()
    rest.load_state_dict(state)
    left = []
    for batch in rest: left += [int(batch["tokens"][0][at]) for at in batch["cu_seqlens"][0][:-1]]
    every = on_all(left)
    assert sorted(every[0] + every[2]) == sorted(SampleOrder([("", size, 1.0)], 7, shuffle=True).numbers(0, 32, size - 32))
    rest.close()
assert all(each == orders[0] for each in orders) and os.path.exists(LOG + "died")
plain = levada.DataLoader(Texts(size), 8, True, mesh=mesh, seed=7, lengths=lengths, collate_fn=lambda items: np.array([len(each["tokens"]) for each in items]))
total = 0
for batch in plain: total += plain.global_tokens
assert total == lengths.sum()
tell(passed=True)
"""
    classes, main = (text.replace("LOG", repr(str(tmp_path / "log"))) for text in (classes, main))
    assert succeed(tmp_path, 4, script(classes, main)) == [[{"passed": True}]] * 4


def test_an_item_whose_tokens_are_not_those_of_lengths_ends_the_pass(tmp_path: pathlib.Path) -> None:
    classes = """
class Texts:
    def __init__(self, tokens): self.tokens = tokens
    def __len__(self): return 32
    def __getitem__(self, number): return {"tokens": [1] * (self.tokens if number == 7 else 19)}
def half(item): return len(item["tokens"]) // 2
"""
    main = """
def loader(tokens, workers=0, **more):
    options = {"lengths": [19] * 32, "max_tokens": 100, "balance": "flops", **more}
    return levada.DataLoader(Texts(tokens), 8, mesh=levada.Mesh(dp=2), num_workers=workers, **options)
for wrong in (loader(200), loader(5), loader(200, 1), loader(30, lengths=[9] * 32, balance=levada.Balance(length=half))):
    tell(text=refusal(lambda: everything(wrong), levada.SourceError))
    wrong.close()
everything(loader(19))
everything(loader(200, collate_fn=len))
"""
    told = succeed(tmp_path, 2, script(classes, main))
    assert told[0] == told[1]
    for each, has, says in zip(told[0], (200, 5, 200, 15), (19, 19, 19, 9), strict=True):
        item = f"item 7 of Texts (epoch 0, position 7) has {has} tokens, but lengths has {says}; set lengths to the"
        assert item in each["text"], each


def test_getitems_that_returns_columns_is_not_taken_for_a_list_of_items(tmp_path: pathlib.Path) -> None:
    main = """
class Columns:
    def __init__(self, result): self.result = result
    def __len__(self): return 4
    def __getitem__(self, number): return {"a": number, "b": 10 * number}
    def __getitems__(self, numbers): return self.result(numbers)
a = np.arange(4)
results = (
    lambda numbers: {"a": a[numbers], "b": 10 * a[numbers]},
    lambda numbers: (a[numbers], 10 * a[numbers]),
    lambda numbers: np.stack([a[numbers], 10 * a[numbers]]),
    lambda numbers: [{"a": 0, "b": 0}] * 5,
    lambda numbers: None,
)
for result in results:
    for size in (1, 2, 4):
        got = list(levada.DataLoader(Columns(result), size))
        assert np.concatenate([batch["a"] for batch in got]).tolist() == [0, 1, 2, 3], (size, got)
        assert np.concatenate([batch["b"] for batch in got]).tolist() == [0, 10, 20, 30], (size, got)
    assert [batch["b"] for batch in levada.DataLoader(Columns(result), None)] == [0, 10, 20, 30]
tell(done=True)
"""
    assert succeed(tmp_path, 1, script("", main)) == [[{"done": True}]]


def test_batches_keep_their_layout_and_their_values(tmp_path: pathlib.Path) -> None:
    classes = '''
buffer = np.zeros((8, 4), np.int64)
def reuses_memory(items):
    "Returns a view of memory that the next batch overwrites."
    for at, item in enumerate(items): buffer[at] = item
    return {"tokens": buffer[: len(items)], "last": buffer[len(items) - 1 : len(items)]}
class Fast:
    "Has __getitems__, with or without random numbers."
    def __init__(self, draws): self.draws, self.calls = draws, 0
    def __len__(self): return 30
    def __getitem__(self, number): return number + (random.random() if self.draws == "global" else levada.item_seed() % 1000 / 1000 if self.draws else 0)
    def __getitems__(self, numbers): self.calls += 1; return [self[number] for number in numbers]
class ByEpoch:
    epoch = None
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return 10
    def __getitem__(self, number): return [self.epoch, number]
'''
    main = """
mesh = levada.Mesh(pp=2, dp=2)
for workers, skips in ((0, "skip"), (1, "raise")):
    loader = levada.DataLoader(range(40), 5, mesh=mesh, num_workers=workers, collate_fn=reuses_memory, on_error=skips,
                               layout=levada.Layout({"tokens": "stages(pp,first)", "last": "stages(pp,last)"}))
    got = []
    for batch in loader: got.append({name: column[:, 0].tolist() for name, column in batch.items()})
    d = mesh.data_coordinate(rank)
    want = [range(at + 5 * d, at + 5 * d + 5) for at in range(0, 40, 10)]
    assert got == ([{"tokens": list(each)} for each in want] if mesh.coordinate(rank, "pp") == 0 else [{"last": [each[-1]]} for each in want]), got
    loader.close()
mesh = levada.Mesh(dp=4)
for draws in ("", "global", "seed"):
    values = set()
    for batch, workers in ((3, 0), (5, 1)):
        loader = levada.DataLoader(Fast(draws), batch, True, mesh=mesh, seed=2, num_workers=workers)
        got = []
        for each in loader: got.append(each[:loader.valid].tolist())
        values.add(tuple(value for step in zip(*on_all(got)) for part in step for value in part))
        assert workers or loader.dataset.calls == (len(loader) if not draws else 1), loader.dataset.calls
        loader.close()
    assert len(values) == 1, draws
loader = levada.DataLoader(ByEpoch(), 3, epochs=3, mesh=mesh)
for batch in loader: assert all(batch[0][at] == (12 * (loader.step - 1) + 12 * rank // 4 + at) // 10 for at in range(loader.valid)) or loader.step == 3, batch
whole = levada.DataLoader([np.arange(at + 1) for at in range(7)], None, mesh=mesh)
assert [(len(batch), whole.valid) for batch in whole] == [(rank + 1, 1), [(5, 0), (5, 1), (6, 1), (7, 1)][rank]]
one = levada.DataLoader(Data(20), 4, True, mesh=mesh, seed=9)
assert all(one.item(at, 1) == expected(20, 9, 1, at, 20) for at in range(20))
ev = levada.DataLoader(range(10), 3, mesh=mesh)
for batch in ev: everyone = ev.gather({"square": batch * batch, "pair": (batch.tolist(), batch[:, None])})
assert everyone["square"].tolist() == [i * i for i in range(10)] and everyone["pair"][0] == list(range(10)) and everyone["pair"][1].shape == (10, 1)
twice = levada.DataLoader(range(10), 2, mesh=mesh, persistent_workers=False, num_workers=1)
assert [len(list(twice)), len(list(twice))] == [2, 2]
mine = range(12) if rank < 2 else None
part = levada.DataLoader(mine, 3, True, mesh=levada.Mesh(dp=2, tp=2), seed=1, readers="one")
if mine is None: tell(text=refusal(lambda: len(part), TypeError)); tell(text=refusal(part.state_dict))
assert len([each for each in part]) == 2 == len(part) and part.numbers is None or mine and part.state_dict()["position"] == 0
tell(passed=True)
"""
    told = succeed(tmp_path, 4, script(classes, main))
    assert [rank[-1] for rank in told] == [{"passed": True}] * 4


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_fn_may_reuse_its_memory_for_the_micro_batches_of_a_step(tmp_path: pathlib.Path, workers: int) -> None:
    classes = """
buffer = np.zeros(64, np.int64)
def reuses_memory(samples):
    row = np.concatenate(samples)
    buffer[: len(row)] = row
    return {"tokens": buffer[None, : len(row)]}
class Numbered:
    def __len__(self): return 60
    def __getitem__(self, number): return np.full(1 + number % 7, number)
"""
    main = f"""
lengths = [1 + number % 7 for number in range(60)]
loader = levada.DataLoader(Numbered(), 10, lengths=lengths, balance="tokens", max_tokens=16, collate_fn=reuses_memory, num_workers={workers},
                           mesh=levada.Mesh(dp=2))
got = [token for batch in loader for token in batch["tokens"].ravel().tolist()]
everyone = sorted(token for mine in on_all(got) for token in mine)
assert everyone == [number for number in range(60) for _ in range(1 + number % 7)], everyone
tell(passed=True)
"""
    assert succeed(tmp_path, 2, script(classes, main)) == [[{"passed": True}]] * 2


def test_a_layout_places_the_same_fields_in_batches_that_include_counts(tmp_path: pathlib.Path) -> None:
    classes = '''
row = np.arange(4)
ITEMS = {
    "tensor": lambda number: row + 10 * number,
    "tuple": lambda number: (row + 10 * number, "text"),
    "dict": lambda number: {"ids": row + 10 * number, "more": {"ids": row + 100 * number}},
    "list of dicts": lambda number: [{"ids": row + 10 * number}, {"ids": row + 100 * number, "more": {"ids": row}}],
    "number": lambda number: number,
}
class Kind:
    def __init__(self, name): self.name = name
    def __len__(self): return 4
    def __getitem__(self, number): return ITEMS[self.name](number)
def plain(batch):
    if isinstance(batch, dict): return {name: plain(each) for name, each in batch.items()}
    if isinstance(batch, (list, tuple)): return [plain(each) for each in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch
def batches(name, **options):
    try: return [plain(batch) for batch in levada.DataLoader(Kind(name), **options)]
    except (levada.InvalidArgument, levada.SourceError, TypeError) as error: return "refused"
'''
    main = """
COUNTED = ({"batch_size": 2, "on_error": "skip", "max_skipped": 1}, {"batch_sampler": [[0, 1], [2, 3]]})
differ, same = [], 0
for mesh, placement in ((levada.Mesh(cp=2), "shard(cp,1)"), (levada.Mesh(pp=2), "stages(pp,first)")):
    for name in ITEMS:
        for path in ("[0]", "*", "[*", "[1].*", "ids", "*ids", "*.ids", "*[0]", "more.*", "i*", "absent", "*.absent"):
            for optional in ([], [path]):
                layout = levada.Layout({path: placement}, optional=optional)
                required = (name, path, optional) == ("list of dicts", "*.ids", [])
                want = "refused" if required else batches(name, batch_size=2, mesh=mesh, layout=layout)
                for options in COUNTED:
                    got = batches(name, mesh=mesh, layout=layout, **options)
                    if got != want: differ.append((str(mesh), name, path, optional, want, got))
                    else: same += got != "refused"
tell(differ=differ, same=same)
"""
    told = succeed(tmp_path, 2, script(classes, main))
    assert told[0][0]["differ"] == [] == told[1][0]["differ"] and min(each[0]["same"] for each in told) > 100
