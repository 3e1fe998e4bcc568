"""A rank that raises in its step while a pipeline makes the items: the errors on the other ranks, and leftover processes."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import ranks

BODY = """
    if __name__ == "__main__":
        from levada import Pipeline
        def step(number):
            if rank == 1 and number == 5:
                time.sleep({pause})
                tell(failed=time.monotonic())
                raise ValueError("loss is NaN")
            time.sleep(0.005)  # the length of a step
        try:
            {loop}
            tell(finished=True)
        except levada.PeerLost as error:
            tell(heard=time.monotonic(), rank=error.rank, text=str(error))
        import multiprocessing
        tell(children=len(multiprocessing.active_children()))
    """

FEED = """feed = levada.Feed({source}, timeout=60)
            for item in feed: step(feed.step)"""
FED = {
    "stages on threads": "Pipeline(range(4000)).map(str, threads=2)",
    "shuffled": "Pipeline(range(4000)).shuffle(100).prefetch(4)",
    "workers": "Pipeline(range(4000)).dispatch().map(str).run(2, alone=True, context='forkserver')",
}

FULL_SYNC = """pipeline = Pipeline(lambda: iter(range(100_000))).shard().map(str).fullsync()
            {run}"""
SYNCED = {
    "with": """with pipeline.run({workers}, group=levada.join(), context='forkserver', timeout=60) as run:
                for number, item in enumerate(run): step(number)""",
    "plain": """run = pipeline.run({workers}, group=levada.join(), context='forkserver', timeout=60)
            for number, item in enumerate(run): step(number)""",
}


def _others(folder: pathlib.Path, loop: str, pause: float = 0) -> list[list[dict[str, Any]]]:
    """Returns the reports of ranks 0 and 2 for a loop in which rank 1 raises after a pause, and checks that they are
    prompt."""
    told = ranks.run_without_launcher(folder, 3, BODY.format(loop=loop, pause=pause))
    ranks.assert_prompt(told, failing=1)
    return [told[0], told[2]]


@pytest.mark.parametrize("source", FED)
def test_a_feed_over_a_pipeline_names_the_rank_whose_step_raised_and_its_exception(
    tmp_path: pathlib.Path, source: str
) -> None:
    for first, _ in _others(tmp_path, FEED.format(source=FED[source])):
        assert first["rank"] == 1
        assert "rank 1 left the feed at step 5 with ValueError: loss is NaN" in first["text"]


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", SYNCED)
def test_fullsync_names_the_rank_whose_step_raised_and_its_exception(
    tmp_path: pathlib.Path, how: str, workers: int
) -> None:
    loop = FULL_SYNC.format(run=SYNCED[how].format(workers=workers))
    for first, last in _others(tmp_path, loop, pause=1.0):  # long enough for the others to wait
        assert first["rank"] == 1
        assert "rank 1 left with ValueError: loss is NaN before item " in first["text"]
        assert "of fullsync" in first["text"]
        assert last == {"children": 0} or how == "plain"
