"""levada.DataLoader against a reference model: random data sets, orders, meshes, batch sizes, workers, resumes. Set
LEVADA_MODEL_SECONDS to run longer, and LEVADA_MODEL_SEED to draw other jobs."""

from __future__ import annotations

import os
import pathlib

import pytest
from ranks import run

SECONDS = float(os.environ.get("LEVADA_MODEL_SECONDS", "8"))
SEED = int(os.environ.get("LEVADA_MODEL_SEED", "1"))

JOBS = '''
import random
sys.path.insert(0, TESTS)
from loader_model import *

class Data:
    def __init__(self, job, first, size): self.job, self.first, self.size = job, first, size
    def __len__(self): return self.size
    def __getitem__(self, number):
        number += self.first
        if number in self.job.bad: raise ValueError("bad")
        own = number if self.job.subset is None else self.job.subset[number]
        made = {"id": own, "py": random.random(), "np": np.random.rand(), "seed": levada.item_seed() >> 1}
        return {name: np.asarray([value]) for name, value in made.items()} if self.job.whole else made

class AtOnce(Data):
    def __getitems__(self, numbers): return [self[number] for number in numbers]

class Sampler:
    def __init__(self, job): self.job, self.epoch = job, 0
    def set_epoch(self, epoch): self.epoch = epoch
    def __iter__(self): return listing(self.job.sampler, self.job.items, self.job.draws, self.epoch, np.random)

def make(job, mesh, shape, kind, workers, readers):
    firsts = [sum(job.sizes[:at]) for at in range(len(job.sizes))]
    parts = [kind(job, first, size) for first, size in zip(firsts, job.sizes)]
    dataset = parts[0] if len(parts) == 1 else {f"part{at}": part for at, part in enumerate(parts)}
    options = dict(mesh=mesh, seed=job.seed, num_workers=workers, readers=readers)
    if job.sampler == "batches": options |= dict(batch_sampler=Sampler(job))
    else: options |= dict(batch_size=None if job.whole else shape.batch, drop_last=shape.drop_last, pad_last=shape.pad_last)
    if job.sampler == "items": options |= dict(sampler=Sampler(job))
    if job.sampler == "none": options |= dict(shuffle=job.shuffle, num_samples=job.draws, epochs=job.epochs)
    if job.weights is not None: options |= dict(weights=job.weights)
    if job.shares is not None: options |= dict(weights={f"part{at}": share for at, share in enumerate(job.shares)})
    if job.bad: options |= dict(on_error="skip", max_skipped=10**6)
    return levada.DataLoader(dataset, **options)

def draw_shape(chance, job, mesh):
    batch = 1 if job.whole or job.sampler == "batches" else chance.randint(1, 9)
    drop, pad = chance.choice([(False, False), (False, False), (True, False), (False, True)])
    if job.sampler == "batches": drop = pad = False
    return Shape(batch, mesh.data_size, drop, pad)

def rows_of(batch, at=None):
    count = len(batch["id"])
    return [{name: column[at].item() for name, column in batch.items()} for at in range(count)]

def run_job(seed):
    chance = random.Random(seed)
    job = draw_job(chance)
    model, kind = Model(job), chance.choice([Data, Data, AtOnce])
    def begin():
        mesh = levada.Mesh.parse(chance.choice(["dp=4", "dp=2,tp=2", "tp=4", "pp=2,dp=2", "cp=2,dp=2"]))
        shape = draw_shape(chance, job, mesh)
        readers = chance.choice([None, None, "one", "host", "all", "dp"])
        workers = chance.choice([1, 2]) if chance.random() < WORKERS else 0
        return mesh, shape, make(job, mesh, shape, kind, workers, readers)
    mesh, shape, loader = begin()
    epoch, position, resumes = 0, 0, False  # where the next pass begins
    told = []
    for _ in range(3):
        if resumes: epoch, position = begins_at(job, epoch, position, shape)
        expected = steps_of(job, position, shape)
        leaves = chance.randrange(expected + 1) if chance.random() < 0.5 else expected + 1
        told.append([str(mesh), shape, epoch, position, expected, leaves])
        taken, at = 0, mesh.data_coordinate(rank)
        iterator = iter(loader)
        while taken != leaves:
            model_of = [batch_of(model, epoch, position, taken, each, shape) for each in range(shape.ranks)] if taken < expected else []
            try: batch = next(iterator)
            except StopIteration:
                assert taken == expected, (taken, told)
                break
            except (levada.ItemError, levada.SourceError):
                assert None in model_of, told
                loader.close()
                return "failed"
            except levada.InvalidArgument as error:
                assert expected == 0 and position == 0 and "lower batch_size" in str(error), (error, told)
                loader.close()
                return "refused"
            assert taken < expected and None not in model_of, ("a step too many", told)
            want = model_of[at]
            assert rows_of(batch) == want.rows, ("rows", taken, rows_of(batch), want.rows, told)
            assert (loader.valid, loader.global_valid, loader.epoch) == (want.valid, want.total, want.epoch), (
                "counts", taken, loader.valid, loader.global_valid, loader.epoch, want.valid, want.total, want.epoch, told)
            assert loader.numbers in (None, want.numbers), ("numbers", told)
            taken += 1
            assert loader.step == taken
        if taken == 0 and leaves == 0:
            loader.close()
            return "not begun"
        is_whole = leaves > expected
        state = loader.state_dict()
        if is_whole: want = (epoch + job.epochs, 0)
        else: want = (epoch, position_after(job, position, taken, shape))
        assert (state["epoch"], state["position"]) == want, ("state", state, want, told)
        then = chance.choice(["resume", "resume", "again", "set_epoch"])
        if then != "resume":
            iterator = None
            epoch, position, resumes = (want[0] if is_whole else epoch), 0, False
            if then == "set_epoch":
                epoch = chance.randrange(5)
                loader.set_epoch(epoch)
        else:
            loader.close()
            mesh, shape, loader = begin()
            loader.load_state_dict(state)
            epoch, position, resumes = *want, True
            if chance.random() < 0.3:
                after, start = begins_at(job, epoch, position, shape)
                if chance.random() < 0.5 and (after, start) == (epoch, position): loader.set_epoch(epoch)
                elif after != epoch:
                    loader.set_epoch(after)
                    epoch, position = after, 0
    loader.close()
    return "whole"

def collate(items): return levada.collate(items)

def run_balanced(seed):
    "A step has the draws that it has without balance; which rank has which is the balance's."
    chance = random.Random(seed)
    job = draw_job(chance)._replace(sampler="none", bad=[], whole=False)
    model, lengths = Model(job), np.array([chance.randint(1, 50) for _ in range(job.items)])
    epoch, position = 0, 0
    state = None
    for _ in range(2):
        mesh = levada.Mesh.parse(chance.choice(["dp=4", "dp=2,tp=2", "tp=4"]))
        shape = draw_shape(chance, job, mesh)._replace(pad_last=False)
        most = chance.choice([None, 50, 120])
        workers = chance.choice([1, 2]) if chance.random() < WORKERS else 0
        firsts = [sum(job.sizes[:at]) for at in range(len(job.sizes))]
        parts = {f"part{at}": Data(job, first, size) for at, (first, size) in enumerate(zip(firsts, job.sizes))}
        weights = job.weights if job.shares is None else {f"part{at}": share for at, share in enumerate(job.shares)}
        loader = levada.DataLoader(
            parts if len(parts) > 1 else parts["part0"], shape.batch, job.shuffle, mesh=mesh, seed=job.seed, weights=weights,
            num_samples=job.draws, epochs=job.epochs, drop_last=shape.drop_last, lengths=lengths, balance=chance.choice(["tokens", "flops"]),
            max_tokens=most, collate_fn=collate, num_workers=workers, readers=chance.choice([None, "one", "host", "all"]))
        if state is not None:
            loader.load_state_dict(state)
            epoch, position = begins_at(job, epoch, position, shape)
        expected = steps_of(job, position, shape)
        stop = chance.randint(1, max(expected, 1))
        told = [str(mesh), shape, epoch, position, expected, stop, most, workers]
        steps = {}
        try:
            for batch in loader:
                rows = rows_of(batch)
                steps.setdefault(loader.step - 1, []).extend(rows)
                drawn = [model.draw(epoch, position + at).numbers[0] for at in range(*span(job, position, loader.step - 1, shape))]
                assert loader.valid is None and loader.global_tokens in (None, int(lengths[drawn].sum())), told
                if loader.step == stop and loader.micro + 1 == loader.num_micro: state = loader.state_dict()
        except levada.InvalidArgument as error:
            begin, end = span(job, position, max(expected - 1, 0), shape)
            is_empty = expected == 0 and position == 0 and "lower batch_size" in str(error)
            is_too_short = 0 < end - begin < shape.ranks and "set drop_last=True, or change batch_size" in str(error)
            draws = range(*span(job, position, max(steps, default=-1) + 1, shape))
            taken = [int(lengths[model.draw(epoch, position + at).numbers[0]]) for at in draws]
            is_tight = most is not None and "do not fit into the same number of micro-batches" in str(error)
            assert (is_tight and not divides(taken, shape.ranks, most)) or not steps and (is_empty or is_too_short), (error, told)
            loader.close()
            return "refused"
        every = [json.loads(each) for each in levada._levada.agree(levada.join(), json.dumps(steps).encode(), 60, "comparing")]
        by = {}
        for at, mine in enumerate(every): assert by.setdefault(mesh.data_coordinate(at), mine) == mine, ("peers differ", told)
        assert len(steps) == expected, (len(steps), told)
        for step in range(expected):
            got = [row for each in by.values() for row in each.get(str(step), [])]
            want = [row for at in range(*span(job, position, step, shape)) for row in model.rows(epoch, position + at)]
            assert sorted(got, key=repr) == sorted(want, key=repr), ("step", step, got, want, told)
        want = (epoch, position_after(job, position, stop, shape))
        assert (state["epoch"], state["position"]) == want, (state, want, told)
        (epoch, position) = want
        loader.close()
    return "balanced"

def span(job, position, step, shape):
    first = step * shape.batch * shape.ranks
    return first, min(first + shape.batch * shape.ranks, job.draws * job.epochs - position)

def run_all(first, seconds):
    "All ranks run the same jobs, for about so many seconds."
    job, began, counts, number = levada.join(), time.monotonic(), {}, 0
    before = (random.Random(3).getstate(), np.random.RandomState(3).get_state(legacy=False)["state"]["key"].tolist())
    random.seed(3); np.random.seed(3)
    while True:
        mine = json.dumps(time.monotonic() - began < seconds).encode()
        if not json.loads(levada._levada.agree(job, mine, 60, "beginning a job")[0]): break
        try: outcome = (run_balanced if number % 4 == 3 else run_job)(first * 1_000_000 + number)
        except BaseException as error:
            print(f"rank {rank}: job with seed {first * 1_000_000 + number}", file=sys.stderr, flush=True)
            raise
        counts[outcome] = counts.get(outcome, 0) + 1
        number += 1
    assert (random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()) == before, "generators moved"
    tell(counts=counts)

if __name__ == "__main__":
    run_all(FIRST, LIMIT)
'''


@pytest.mark.long
@pytest.mark.parametrize(("workers", "share"), [("0.0", 1.0), ("0.3", 0.7)])
def test_random_jobs_match_the_model(tmp_path: pathlib.Path, workers: str, share: float) -> None:
    body = JOBS.replace("TESTS", repr(str(pathlib.Path(__file__).parent))).replace("WORKERS", workers)
    body = body.replace("FIRST", str(SEED + int(float(workers) * 10))).replace("LIMIT", str(SECONDS * share))
    outcome = run(tmp_path, 4, body, within=SECONDS + 150)
    assert outcome.status == 0, outcome.errors
    told = outcome.told
    (counts,) = (mine["counts"] for mine in told[0])
    assert counts["whole"] > 0 and all(mine == told[0] for mine in told)
