"""Feeds in which each sequence has its own number of context-parallel ranks, without torch."""

from __future__ import annotations

import json
import pathlib

import pytest
import ranks

import levada

FEED = """
mesh = levada.Mesh(dp=2, cp=2)
zigzag = [levada.Shard("dp", 0), levada.Zigzag("cp", 1)]
layout = levada.Layout({{"tokens": zigzag, "position_ids": zigzag}})
def document(number):
    return {{"tokens": np.full(50 + number if number % 4 == 0 else 3 + number % 7, number + 1), "name": f"document {{number}}"}}
def feed_of(**options):
    balance = levada.Balance("flops", max_cp={max_cp}, wait="micro")
    return levada.Feed((document(i) for i in range(32)), mesh=mesh, layout=layout, batch_size=8, balance=balance,
                       max_tokens={max_tokens}, **options)
"""


def told(folder: pathlib.Path, body: str, max_tokens: int = 32, max_cp: int = 4) -> list[list[dict[str, object]]]:
    outcome = ranks.run(folder, 4, FEED.format(max_tokens=max_tokens, max_cp=max_cp) + body)
    assert outcome.status == 0, outcome.errors
    return outcome.told


def test_each_position_is_on_exactly_one_rank(tmp_path: pathlib.Path) -> None:
    reports = told(
        tmp_path,
        """
feed = feed_of()
for batch in feed:
    tokens = batch["tokens"][0]
    tell(step=feed.step, micro=feed.micro, size=feed.cp_size, rank=feed.cp_rank, names=batch["name"],
         tokens=tokens.tolist(), positions=batch["position_ids"][0].tolist(), ends=batch["cu_seqlens"][0].tolist())
tell(samples=feed.stats.samples)
""",
    )
    pairs: dict[tuple[int, int], int] = {}
    sizes = set()
    for of_rank in reports:
        for each in of_rank[:-1]:
            sizes.add(each["size"])
            assert len(each["tokens"]) == each["ends"][-1] / each["size"]
            assert len(each["names"]) == len(each["ends"]) - 1
            for pair in zip(each["tokens"], each["positions"], strict=True):
                pairs[pair] = pairs.get(pair, 0) + 1
    for number in range(32):
        length = 50 + number if number % 4 == 0 else 3 + number % 7
        assert all(pairs[number + 1, position] == 1 for position in range(length)), number
    assert len(sizes) > 1, "blocks of several sizes"
    assert sum(of_rank[-1]["samples"] for of_rank in reports) == 32


def test_a_report_counts_each_sample_once(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.html"
    told(tmp_path, f"feed = feed_of(record=True)\nfor batch in feed: pass\nfeed.write_report({str(page)!r})\ntell(done=True)")
    assert '"samples":32' in page.read_text().replace(" ", "")


def test_a_run_resumes_with_another_number_of_ranks(tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    state = tmp_path / "state.txt"
    names = "tell(names=batch['name'], rank=feed.cp_rank)"
    first = told(
        folders[0],
        f"""
feed = feed_of()
for batch in feed:
    {names}
    if feed.step == 1 and feed.micro + 1 == feed.num_micro: break
if rank == 0: open({str(state)!r}, "w").write(repr(feed.state_dict()))
""",
    )
    second = told(
        folders[1],
        f"""
import ast
feed = feed_of()
feed.load_state_dict(ast.literal_eval(open({str(state)!r}).read()))
for batch in feed: {names}
""",
        max_tokens=64,
        max_cp=2,
    )
    seen = [name for part in (first, second) for of_rank in part for each in of_rank if each["rank"] == 0 for name in each["names"]]
    assert sorted(seen) == sorted(f"document {number}" for number in range(32))


def test_a_gather_is_refused(tmp_path: pathlib.Path) -> None:
    body = """
feed = feed_of()
for batch in feed:
    try:
        feed.gather([0])
    except levada.InvalidArgument as error:
        tell(error=str(error))
"""
    assert "with max_cp a rank has parts of them" in json.dumps(told(tmp_path, body))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_cp": 3}, "power of two, got 3"),
        ({"max_cp": 0}, "1 or more, got 0"),
        ({"max_cp": True}, "1 or more, got True"),
        ({"max_cp": 4, "cost": "tokens"}, "a cost by flops"),
        ({"max_cp": 4, "counts": "equal"}, "free counts"),
        ({"max_cp": 4, "max_delay": 2}, "no max_delay"),
        ({"max_cp": 4, "order": "paired"}, "the order as-read"),
    ],
)
def test_a_balance_refuses_incompatible_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(levada.InvalidArgument, match=message):
        levada.Balance(**{"cost": "flops", **options})  # type: ignore[arg-type]


def test_a_dataloader_refuses_it() -> None:
    balance = levada.Balance("flops", max_cp=2)
    with pytest.raises(levada.InvalidArgument, match="max_cp cuts packed rows"):
        levada.DataLoader([1, 2], batch_size=1, balance=balance, max_tokens=8, lengths=[1, 1])


def test_groups_need_torch() -> None:
    with pytest.raises(levada.Unsupported, match="call init_process_group"):
        levada.ContextGroups("dp=2", max_cp=2)
