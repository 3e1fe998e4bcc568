"""Several threads on one DataLoader2. Run by `script/check python-torch`."""

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
