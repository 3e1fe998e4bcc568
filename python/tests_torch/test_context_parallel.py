"""Feeds in which each sequence has its own number of context-parallel ranks, and a model that trains on them."""

from __future__ import annotations

import pathlib

import process_groups
import pytest

LOOP = """
import numpy as np
import levada
mesh = levada.Mesh.parse({mesh!r})
slots = levada.Mesh(**dict(mesh.axes), data_axes=[*mesh.data_axes, "cp"]) if "cp" in dict(mesh.axes) else mesh
VOCABULARY, WIDTH, MAX_CP = 31, 8, {max_cp}

def document(number):
    random = np.random.default_rng(number)
    tokens = random.integers(0, VOCABULARY, random.integers(40, 110) if number % 5 == 0 else random.integers(3, 30))
    return {{"tokens": torch.from_numpy(tokens[:-1]), "labels": torch.from_numpy(tokens[1:])}}

zigzag = [levada.Shard("dp", 0), levada.Zigzag("cp", 1)]
layout = levada.Layout({{"tokens": zigzag, "labels": zigzag, "position_ids": zigzag}})
feed = levada.Feed((document(i) for i in range(24 * mesh.data_size)), mesh=mesh, layout=layout, batch_size=8,
                   balance=levada.Balance("flops", max_cp=MAX_CP, wait="micro"), max_tokens=64, check="digests")
groups = levada.ContextGroups(mesh, max_cp=MAX_CP)

class Gather(torch.autograd.Function):
    "The parts of all ranks of a group, [ranks, n, width]."
    @staticmethod
    def forward(context, part, group):
        context.group = group
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group)
        return torch.stack(parts)
    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=context.group)
        return gradient[dist.get_rank(context.group)], None

def places(ends, size, index):
    "The positions in the whole row that rank `index` of `size` has."
    if size == 1: return torch.arange(ends[-1])
    found = []
    for begin, end in zip(ends, ends[1:]):
        chunk = (end - begin) // (2 * size)
        for number in (index, 2 * size - 1 - index):
            found.append(torch.arange(begin + number * chunk, begin + (number + 1) * chunk))
    return torch.cat(found)

def attend(queries, keys, values, ends, size, index, group):
    mine = places(ends, size, index)
    if size > 1:
        order = torch.cat([places(ends, size, each) for each in range(size)]).argsort()
        keys, values = (Gather.apply(each, group).flatten(0, 1)[order] for each in (keys, values))
    segment = torch.bucketize(torch.arange(ends[-1]), torch.tensor(ends[1:-1]), right=True)
    may_see = (segment[mine][:, None] == segment[None]) & (mine[:, None] >= torch.arange(ends[-1])[None])
    scores = (queries @ keys.T / WIDTH**0.5).masked_fill(~may_see, float("-inf"))
    return scores.softmax(-1) @ values

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)
    def forward(self, row, size, index, group):
        ends = row["cu_seqlens"][0].tolist()
        angles = row["position_ids"][0][:, None] / 10 ** torch.arange(WIDTH)
        x = self.embedding(row["tokens"][0]) + angles.sin()
        for layer in self.layers:
            x = x + attend(*layer(x).chunk(3, -1), ends, size, index, group)
        return torch.nn.functional.cross_entropy(self.head(x), row["labels"][0], ignore_index=-100, reduction="sum")

def total(value, group=None):
    dist.all_reduce(value, group=group)
    return value

def alone(step):
    "Loss and gradients of a step without context parallelism."
    model, samples = Model().double(), range(step * 8 * mesh.data_size, (step + 1) * 8 * mesh.data_size)
    loss = sum(model({{key: torch.as_tensor(each) for key, each in levada.collate_packed([document(i)]).items()}}, 1, 0, None)
               for i in samples)
    loss.backward()
    return loss.detach(), [each.grad for each in model.parameters()]

sharers = size // slots.data_size  # ranks of one dp x cp coordinate have the same parts
model, sum_of_losses, sizes, steps = Model().double(), torch.zeros((), dtype=torch.float64), set(), 0
for row in feed:
    loss = model(row, feed.cp_size, feed.cp_rank, groups[feed.cp_size])
    loss.backward()
    sum_of_losses += loss.detach()
    sizes.add(feed.cp_size)
    group = groups[feed.cp_size]
    if group is not None: assert dist.get_rank(group) == feed.cp_rank and dist.get_world_size(group) == feed.cp_size
    assert row["tokens"].shape[1] <= 64
    if feed.micro + 1 < feed.num_micro: continue
    expected, gradients = alone(steps)
    torch.testing.assert_close(total(sum_of_losses) / sharers, expected, rtol=1e-12, atol=0)
    for parameter, gradient in zip(model.parameters(), gradients):
        torch.testing.assert_close(total(parameter.grad) / sharers, gradient, rtol=1e-10, atol=1e-12)
    model.zero_grad()
    sum_of_losses.zero_()
    steps += 1
every = [None] * size
dist.all_gather_object(every, sorted(sizes))
tell(steps=steps, sizes=sorted({{each for some in every for each in some}}))
"""


@pytest.mark.parametrize(
    ("mesh", "ranks", "max_cp"),
    [("dp=4", 4, 4), ("dp=2,cp=2", 4, 4), ("cp=2,dp=2", 4, 2), ("dp=2,cp=2,tp=2", 8, 4)],
)
def test_context_parallelism_does_not_change_training(tmp_path: pathlib.Path, mesh: str, ranks: int, max_cp: int) -> None:
    started = process_groups.start(tmp_path, ranks, LOOP.format(mesh=mesh, max_cp=max_cp))
    for outcome in process_groups.finish(started, tmp_path):
        assert outcome.status == 0, outcome.errors
        told = outcome.told[0][0]
        assert told["steps"] == 3
        assert len(told["sizes"]) > 1, "blocks of several sizes"


def test_groups_of_different_ranks_are_an_error_on_all_of_them(tmp_path: pathlib.Path) -> None:
    told = process_groups.succeed(
        tmp_path,
        2,
        """
        errors = []
        for mesh, max_cp in [(["dp=2", "cp=2"][rank], 2), ("dp=2", [2, 1][rank]), ("dp=2", [2, 3][rank]), (["dp=2", "dp=4"][rank], 2)]:
            try: levada.ContextGroups(mesh, max_cp)
            except levada.InvalidArgument as error: errors.append(str(error))
        tell(errors=errors, same=dist.get_process_group_ranks(levada.ContextGroups("dp=2", 2)[2]))
        """,
    )
    for rank, mine in enumerate(told):
        (outcome,) = mine
        meshes, degrees, invalid, large = outcome["errors"]
        disagree = "ranks disagree on ContextGroups: the mesh 'dp=2' with the data axes dp, and max_cp=2 on rank 0; the mesh "
        assert meshes.startswith(f"{disagree}'cp=2'") and "max_cp=1 on rank 1; pass the same on all ranks" in degrees
        other = "" if rank else "rank 1: "
        assert invalid.startswith(f"{other}max_cp must be a power of two") and large == f"{other}mesh 'dp=4' has 4 ranks, the job has 2"
        assert outcome["same"] == [0, 1]
