"""levada.DataLoader against its contract: random sizes, batch sizes, meshes, workers and resumes."""

from __future__ import annotations

import pathlib
import random

import pytest
from levada.loader.division import Division
from loading import DATA
from ranks import succeed


def test_a_division_assigns_each_draw_to_one_rank_and_balances_the_ranks() -> None:
    drawn = random.Random(1)
    for _ in range(3000):
        begin, batch, ranks = drawn.randrange(40), drawn.randint(1, 9), drawn.randint(1, 9)
        end = begin + drawn.randrange(120)
        drop_last, pad_last = drawn.choice([(False, False), (False, True), (True, False)])
        division = Division(begin, end, batch, ranks, drop_last, pad_last)
        given: list[int] = []
        for step in range(division.steps):
            parts = [division.part(step, rank) for rank in range(ranks)]
            assert division.position(step) == begin + step * batch * ranks == parts[0].first
            assert max(part.draws for part in parts) - min(part.draws for part in parts) <= 1
            for part in parts:
                assert max(part.draws, 1) <= part.rows <= batch and (not pad_last or part.rows == batch)
                given += range(part.first, part.first + part.draws)
        left = (end - begin) % (batch * ranks) if drop_last else 0
        assert given == list(range(begin, end - left))
        assert division.position(division.steps) == end


CASE = (
    DATA
    + '''
def case(drawn, number, folder):
    mesh = levada.Mesh.parse(drawn.choice(["dp=4", "dp=2,tp=2", "tp=4", "pp=2,dp=2", "cp=2,dp=2"]))
    size, batch, epochs = drawn.randint(1, 60), drawn.randint(1, 9), drawn.choice([1, 1, 2])
    draws = drawn.choice([None, None, drawn.randint(1, 90)])
    seed, shuffle = drawn.randrange(1 << 64), drawn.random() < 0.8
    pad, readers, workers = drawn.random() < 0.3, drawn.choice([None, None, "one", "host", "dp,pp"]), drawn.choice(WORKERS)
    log = f"{folder}/log{number}"
    def loader(mesh, batch, workers, readers=None):
        return levada.DataLoader(Data(size, log), batch, shuffle, num_workers=workers, mesh=mesh, seed=seed, num_samples=draws,
                                 epochs=epochs, pad_last=pad, readers=readers)
    m = draws or size
    want = [expected(size, seed, at // m, at % m, m, shuffle) for at in range(m * epochs)]
    random.seed(5); np.random.seed(5)
    first, steps, totals, stop = loader(mesh, batch, workers, readers), [], 0, drawn.randint(0, 12)
    state = first.state_dict()
    for step, each in enumerate(first):
        numbers = first.numbers
        steps.append(rows(each, first.valid))
        assert numbers == [row["id"] for row in steps[-1]]
        assert first.epoch == totals // m and first.step == step + 1
        assert not pad or all(len(column) == batch for column in each.values())
        totals += first.global_valid
        if step + 1 == stop: state = first.state_dict()
    assert len(steps) == len(first) and totals == m * epochs
    assert (random.random(), np.random.rand()) == (random.Random(5).random(), np.random.RandomState(5).rand()), "generators moved"
    got = in_order(on_all(steps), mesh)
    assert got == want, (number, str(mesh), size, batch, workers)
    first.close()
    made = [int(line) for line in open(log)] if os.path.exists(log) else []
    copies = mesh.axis_size("pp") if readers == "dp,pp" and "pp" in dict(mesh.axes) else 1
    assert copies * len(want) <= len(made) <= copies * (len(want) + mesh.data_size), (len(made), len(want))
    on_all(0)
    if rank == 0: open(log, "w").close()
    on_all(0)
    # what is left, on another mesh
    mesh, batch = levada.Mesh.parse(drawn.choice(["dp=4", "dp=2,tp=2", "tp=4"])), drawn.randint(1, 9)
    second, rest = loader(mesh, batch, drawn.choice(WORKERS)), []
    second.load_state_dict(state)
    for each in second: rest.append(rows(each, second.valid))
    position = state["position"]
    if position < m * epochs:
        assert in_order(on_all(rest), mesh) == want[position:], (number, position)
        made = [int(line) for line in open(log)]
        assert len(made) <= len(want) - position + mesh.data_size, "a resumed run made what was before"
    else:
        assert in_order(on_all(rest), mesh) == [expected(size, seed, epochs + at // m, at % m, m, shuffle) for at in range(m * epochs)]
    second.close()

if __name__ == "__main__":
    for number in range(CASES):
        case(random.Random(SEED * 1000 + number), number, FOLDER)
    tell(passed=CASES)
'''
)


@pytest.mark.long
@pytest.mark.parametrize("workers,cases", [("[0]", 25), ("[0, 1, 2]", 3)])
def test_every_mesh_batch_size_and_resume_yields_the_draws_in_order(tmp_path: pathlib.Path, workers: str, cases: int) -> None:
    body = CASE.replace("CASES", str(cases)).replace("FOLDER", repr(str(tmp_path))).replace("WORKERS", workers)
    told = succeed(tmp_path, 4, body.replace("SEED", str(len(workers))))
    assert told == [[{"passed": cases}]] * 4
