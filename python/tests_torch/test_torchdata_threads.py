"""Several threads on one DataLoader2. Run by `script/check threads`."""

from __future__ import annotations

import pathlib

import pytest
from racing import TIMES, run

pytestmark = pytest.mark.timeout(300 * TIMES)


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_on_one_loader_get_each_item_once_or_are_refused(tmp_path: pathlib.Path, workers: int) -> None:
    run(
        tmp_path,
        f"""
        from levada.dropin.torchdata import DataLoader2, MultiProcessingReadingService
        from torch.utils.data.datapipes.iter import IterableWrapper
        pipe = IterableWrapper(range(2000)).sharding_filter().map(same)
        with DataLoader2(pipe, reading_service=MultiProcessingReadingService({workers}, "forkserver")) as loader:
            items, got = iter(loader), []
            def take():
                while len(got) < 2000:
                    try:
                        for item in items: got.append(item)
                        return
                    except levada.InvalidArgument as error:
                        if not is_busy(error): raise
                        time.sleep(0)
            outcomes = together(take, take, take)
            assert not any(outcomes), outcomes
            assert sorted(got) == list(range(2000)), len(got)
            assert sorted(loader) == list(range(2000))
        """,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_other_threads_may_call_anything_on_a_loader(tmp_path: pathlib.Path, workers: int) -> None:
    run(
        tmp_path,
        f"""
        from levada.dropin.torchdata import DataLoader2, MultiProcessingReadingService
        from torch.utils.data.datapipes.iter import IterableWrapper
        pipe = IterableWrapper(range(500)).sharding_filter().map(same)
        loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService({workers}, "forkserver"))
        over = threading.Event()
        def repeat(use):
            def work():
                done = 0
                while not over.is_set():
                    try:
                        use()
                        done += 1
                    except levada.InvalidArgument as error:
                        if not is_busy(error): raise
                    except RuntimeError as error:
                        if "has been invalidated" not in str(error): raise
                    time.sleep(0.001)
                return done
            return work
        def take():
            try:
                done = 0
                while done < 5:
                    try:
                        items = list(loader)
                        assert len(set(items)) == len(items), collections.Counter(items).most_common(3)
                        done += 1
                    except levada.InvalidArgument as error:
                        if not is_busy(error): raise
                    except RuntimeError as error:
                        if "has been invalidated" not in str(error): raise
                return done
            finally:
                over.set()
        outcomes = together(take, repeat(loader.state_dict), repeat(lambda: loader.seed(3)))
        assert all(isinstance(each, int) for each in outcomes), outcomes
        over.clear()
        outcomes = together(take, repeat(lambda: next(iter(loader))))
        assert all(isinstance(each, int) for each in outcomes), outcomes
        def end():
            while True:
                try:
                    return loader.shutdown()
                except levada.InvalidArgument as error:
                    if not is_busy(error): raise
        def to_the_end():
            try:
                while True: list(loader)
            except RuntimeError as error:
                return str(error)
            except levada.InvalidArgument as error:
                return str(error)
        outcomes = together(to_the_end, end, end)
        assert "shut down" in outcomes[0] or "another thread" in outcomes[0], outcomes
        assert outcomes[1:] == [None, None] and not multiprocessing.active_children(), outcomes
        """,
    )
