"""Scripts for ranks that read from a levada.DataLoader, and the model that they are compared with."""

from __future__ import annotations

DATA = '''
import random, itertools
from levada._levada import SampleOrder, derived_seed, item_seed

class Data:
    "Items with random numbers, which log that they are made."
    def __init__(self, size, log=None): self.size, self.log = size, log
    def __len__(self): return self.size
    def __getitem__(self, number):
        if self.log:
            file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, b"%d\\n" % number)
            os.close(file)
        return {"id": number, "py": random.random(), "np": np.random.rand(), "seed": levada.item_seed() >> 1}

def expected(size, seed, epoch, position, draws, shuffle=True):
    "The item of a draw, by the contract."
    order = SampleOrder([("", size, 1.0)], seed, shuffle=shuffle, draws=draws)
    number, = order.numbers(epoch, position, 1)
    key = item_seed(seed, epoch, position)
    return {"id": number, "py": random.Random(key).random(), "np": np.random.RandomState(key >> 32).rand(), "seed": key >> 1}

def rows(batch, valid):
    return [{name: column[at].item() for name, column in batch.items()} for at in range(valid)]

def in_order(of_ranks, mesh):
    "The samples of all steps: those of data coordinate 0, then 1, and so on. Peers must have the same."
    by = {}
    for at, steps in enumerate(of_ranks):
        assert by.setdefault(mesh.data_coordinate(at), steps) == steps, "peers differ"
    return [row for step in zip(*(by[at] for at in sorted(by)), strict=True) for part in step for row in part]

def on_all(value):
    return [json.loads(each) for each in levada._levada.agree(levada.join(), json.dumps(value).encode(), 60, "test")]

def refusal(function, kind=levada.InvalidArgument):
    try: function()
    except kind as error: return str(error).splitlines()[0]
    return "nothing was raised"

def everything(loader):
    for batch in loader: pass
'''


def script(classes: str, main: str) -> str:
    """Returns a program that defines `classes` and runs the lines of `main`, which its workers do not run."""
    lines = "\n".join(f"    {line}" for line in main.strip().splitlines())
    return f'{DATA}{classes}\nif __name__ == "__main__":\n{lines}\n'
