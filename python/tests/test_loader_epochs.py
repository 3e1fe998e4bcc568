"""The state of a data set that a levada.DataLoader reads: its epoch, its attributes and its random numbers."""

from __future__ import annotations

import pathlib

from loading import script
from ranks import succeed

EPOCHS = '''
class Epochs:
    "Items that hold the epoch of the data set."
    calls = epoch = 0
    def __len__(self): return 4
    def set_epoch(self, epoch): self.epoch, self.calls = epoch, self.calls + 1
    def __getitem__(self, number): return self.epoch
'''


def test_each_loader_of_a_data_set_makes_the_items_of_its_own_epoch(tmp_path: pathlib.Path) -> None:
    main = """
data = Epochs()
loader, other = levada.DataLoader(data, 1), levada.DataLoader({"one": data, "two": data}, 2)
loader.set_epoch(3)
got = []
for step, batch in enumerate(loader):
    got.append(batch.tolist())
    if step == 0: assert loader.item(0, epoch=7) == 7
    if step == 1: assert [each.tolist() for each in other] == [[0, 0]] * 4
assert got == [[3]] * 4, got
data.calls = 0
assert [each.tolist() for each in loader] == [[4]] * 4 and data.calls == 1
pairs = [(one.tolist(), two.tolist()) for one, two in zip(loader, other)]
assert pairs == [([5], [1, 1])] * 4, pairs
tell(done=True)
"""
    assert succeed(tmp_path, 1, script(EPOCHS, main)) == [[{"done": True}]]


def test_workers_that_do_not_persist_read_the_data_set_as_it_is_at_the_start_of_a_pass(tmp_path: pathlib.Path) -> None:
    classes = '''
class Changing:
    value = 0
    def __len__(self): return 6
    def __getitem__(self, number): return self.value
'''
    main = """
for context in ("fork", "forkserver"):
    data, got = Changing(), []
    loader = levada.DataLoader(data, 3, num_workers=1, persistent_workers=False, multiprocessing_context=context, timeout=60)
    for data.value in range(4):
        for batch in loader:
            got.append(batch[0].item())
            if data.value == 1: break
    assert got == [0, 0, 1, 2, 2, 3, 3], (context, got)
    loader.close()
tell(done=True)
"""
    assert succeed(tmp_path, 1, script(classes, main)) == [[{"done": True}]]


def test_normal_numbers_within_getitems_do_not_depend_on_earlier_draws(tmp_path: pathlib.Path) -> None:
    classes = '''
class Normal:
    def __len__(self): return 4
    def __getitem__(self, number): return np.random.randn()
    def __getitems__(self, numbers): return [self[number] for number in numbers]
'''
    main = """
got = []
for earlier in range(2):
    np.random.seed(0)
    for _ in range(earlier): np.random.randn()
    got.append([each.tolist() for size in (1, 4) for each in levada.DataLoader(Normal(), size, seed=3)])
assert got[0] == got[1] and sum(got[0][:4], []) == got[0][4], got
tell(done=True)
"""
    assert succeed(tmp_path, 1, script(classes, main)) == [[{"done": True}]]


def test_a_state_after_max_steps_resumes_the_rest_of_a_samplers_list(tmp_path: pathlib.Path) -> None:
    classes = '''
class Listed:
    def set_epoch(self, epoch): self.epoch = epoch
    def __iter__(self): return iter([(number + self.epoch) % 20 for number in range(20)])
'''
    main = """
mesh = levada.Mesh(dp=2, tp=2)
data = range(20) if mesh.coordinate(rank, "tp") == 0 else None
def loader(batch=3, **more): return levada.DataLoader(data, batch, sampler=Listed(), mesh=mesh, readers="dp", **more)
def taken(one):
    by = {mesh.data_coordinate(at): each for at, each in enumerate(on_all([batch[:one.valid].tolist() for batch in one]))}
    return [number for step in zip(by[0], by[1]) for part in step for number in part]
first = loader(max_steps=2)
assert taken(first) == list(range(12))
state = first.state_dict()
rest = loader(2)
rest.load_state_dict(state)
assert taken(rest) == list(range(12, 20)) and taken(rest) == [*range(1, 20), 0]
assert on_all(state) == [state] * 4
assert taken(first) == list(range(1, 13)) and first.state_dict()["epoch"] == 1
tell(done=True)
"""
    assert succeed(tmp_path, 4, script(classes, main)) == [[{"done": True}]] * 4
