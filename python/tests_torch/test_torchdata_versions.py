"""The torchdata drop-in compared with torchdata's releases. Run by `script/check python-torch`."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
VERSIONS = ("0.7.1", "0.8.0", "0.9.0")
TORCHDATA_FIRST = """
from torchdata.datapipes.iter import IterableWrapper
from levada.dropin import torchdata as dropin
"""
DROPIN_FIRST = """
from levada.dropin import torchdata as dropin
from torchdata.datapipes.iter import IterableWrapper
"""


def run_script(folder: pathlib.Path, text: str, search: pathlib.Path | None = None, *arguments: str) -> list[Any]:
    """Runs a separate program that writes a line of JSON for each result. Returns the results."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    path = os.pathsep.join([str(search or folder), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith(("[", "{", '"'))]


def folder_of(version: str) -> pathlib.Path:
    folder = ROOT / "build" / "torchdata" / version
    if not folder.is_dir():
        pytest.skip(f"torchdata {version} is not in {folder.relative_to(ROOT)}; script/torchdata installs it there")
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("imports", [TORCHDATA_FIRST, DROPIN_FIRST], ids=["torchdata first", "dropin first"])
@pytest.mark.parametrize("version", VERSIONS)
def test_datapipes_of_torchdata_work_whichever_is_imported_first(
    tmp_path: pathlib.Path, version: str, imports: str
) -> None:
    body = """
    import json, multiprocessing, os, sys
    multiprocessing.set_forkserver_preload(["levada.dropin.torchdata"])

    def add_one(item):
        return item + 1

    def numbered(pipe, info):
        return pipe.enumerate()

    def dispatching():
        pipe = IterableWrapper(range(12)).shuffle().prefetch(3)
        pipe = pipe.sharding_round_robin_dispatch(dropin.SHARDING_PRIORITIES.MULTIPROCESSING)
        assert type(pipe).__module__.startswith("torchdata."), type(pipe)
        return pipe.map(add_one).prefetch(2)

    def divided():
        even, odd = IterableWrapper(range(12)).sharding_filter().round_robin_demux(2)
        return even.zip(odd)

    def main():
        import torch.distributed as dist
        for context in sys.argv[1:]:
            service = dropin.MultiProcessingReadingService(2, context, worker_init_fn=numbered)
            with dropin.DataLoader2(dispatching(), reading_service=service) as loader:
                got = list(loader)
            print(json.dumps([context, sorted(number for number, _ in got), sorted(item for _, item in got)]))
        with dropin.DataLoader2(divided(), reading_service=dropin.MultiProcessingReadingService(2)) as loader:
            print(json.dumps(["divided", sorted(map(sum, loader))]))
        store = "file://" + os.path.abspath(__file__) + ".store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        synced = IterableWrapper(range(5)).fullsync()
        service = dropin.DistributedReadingService()
        print(json.dumps(["synced", service.initialize(synced) is synced]))
        service.finalize()
        both = dropin.SequentialReadingService(
            dropin.DistributedReadingService(), dropin.MultiProcessingReadingService(2, "fork")
        )
        with dropin.DataLoader2(IterableWrapper(range(5)).sharding_filter().fullsync(), reading_service=both) as loader:
            print(json.dumps(["ranks", sorted(loader), sorted(loader)]))

    if __name__ == "__main__":
        main()
    """
    contexts = ["fork", "spawn", "forkserver"] if version == VERSIONS[-1] else ["fork"]
    got = run_script(tmp_path, imports + textwrap.dedent(body), folder_of(version), *contexts)
    numbers, items = [number for each in range(6) for number in (each, each)], list(range(1, 13))
    assert got[:-3] == [[context, numbers, items] for context in contexts]
    assert got[-3:] == [["divided", [2, 4, 10, 12, 18, 20]], ["synced", True], ["ranks", list(range(5)), list(range(5))]]


@pytest.mark.timeout(600)
def test_a_program_without_a_main_guard_has_concurrent_loaders(tmp_path: pathlib.Path) -> None:
    told = run_script(
        tmp_path,
        """
        import dataclasses, json, multiprocessing, warnings
        warnings.simplefilter("always")
        multiprocessing.set_forkserver_preload(["levada.dropin.torchdata"])
        from levada.dropin.torchdata import DataLoader2, MultiProcessingReadingService
        from torch.utils.data.datapipes.iter import IterableWrapper

        @dataclasses.dataclass
        class Sample:
            number: int

        def sample(number):
            return Sample(number + offset)

        offset = 100
        pipe = IterableWrapper(range(6)).sharding_filter().map(sample)
        loaders = [DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) for _ in range(2)]
        loaders.append(DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")))
        with warnings.catch_warnings(record=True) as caught:
            items = [iter(loader) for loader in loaders]
        print(json.dumps([[type(item) is Sample and item.number for item in epoch] for epoch in items]))
        print(json.dumps([str(each.message) for each in caught if "forkserver" in str(each.message)]))
        for loader in loaders:
            loader.shutdown()
        """,
    )
    assert told[0] == [[100, 101, 102, 103, 104, 105]] * 3
    assert len(told[1]) == 1 and "fork would lack" in told[1][0]


@pytest.mark.timeout(600)
def test_states_that_torchdata_saved_are_loaded(tmp_path: pathlib.Path) -> None:
    told = run_script(
        tmp_path,
        """
        import json
        import torchdata.dataloader2 as upstream
        from levada.dropin import torchdata as dropin
        from torchdata.datapipes.iter import IterableWrapper
        services = upstream.SequentialReadingService(upstream.InProcessReadingService())
        loader = upstream.DataLoader2(IterableWrapper(range(9)).shuffle(), reading_service=services)
        loader.seed(4)
        list(loader)
        state = loader.state_dict()
        for change in ({}, {"randomness_state": None}):
            kept = {name: value for name, value in {**state, **change}.items() if value is not None}
            kept.setdefault("reading_service_state", None)
            own = dropin.SequentialReadingService(dropin.InProcessReadingService())
            with dropin.DataLoader2.from_state(kept, own, allow_pickle=True) as loader:
                print(json.dumps(sorted(loader)))
        """,
        folder_of("0.9.0"),
    )
    assert told == [list(range(9))] * 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
def test_graph_modules_export_all_names_of_torchdatas(tmp_path: pathlib.Path, version: str) -> None:
    told = run_script(
        tmp_path,
        """
        import importlib, json
        for name in ("graph", "graph.settings", "graph.utils"):
            upstream = importlib.import_module(f"torchdata.dataloader2.{name}")
            defined = [each for each in vars(upstream).values() if getattr(each, "__module__", "") == upstream.__name__]
            named = [each.__name__ for each in defined if not each.__name__.startswith("_")]
            public = getattr(upstream, "__all__", named)
            own = importlib.import_module(f"levada.dropin.torchdata.{name}")
            print(json.dumps([name, len(public), sorted(set(public) - set(own.__all__))]))
        """,
        folder_of(version),
    )
    assert told == [["graph", 9, []], ["graph.settings", 2, []], ["graph.utils", 4, []]]


PINNING = """
import json, os
import torch
torch.cuda.is_available = lambda: True  # which pin_memory() asks; what pins here needs no device
from torchdata.datapipes.iter import IterableWrapper
from levada.dropin import torchdata as dropin

def pin(item, device):
    return [item, str(device), os.getpid()]

def dispatching():
    pipe = IterableWrapper(range(6)).sharding_round_robin_dispatch(dropin.SHARDING_PRIORITIES.MULTIPROCESSING)
    return pipe.map(str)

def pinning(pipe, *_):
    pipe = pipe.pin_memory(device="meta", pin_memory_fn=pin)
    assert type(pipe).__module__.startswith("torchdata."), type(pipe)
    return pipe
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
def test_pin_memory_of_torchdata_pins_in_the_process_that_consumes(tmp_path: pathlib.Path, version: str) -> None:
    body = """
    with dropin.DataLoader2(pinning(dispatching()), reading_service=dropin.MultiProcessingReadingService(2, "fork")) as loader:
        print(json.dumps([[item, device, process == os.getpid()] for item, device, process in loader]))
    """
    told = run_script(tmp_path, PINNING + textwrap.dedent(body), folder_of(version))
    assert told == [[[str(number), "meta", True] for number in range(6)]]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
def test_pin_memory_of_torchdata_is_never_omitted_unlike_a_prefetch(tmp_path: pathlib.Path, version: str) -> None:
    body = """
    def prefetching(pipe, info):
        return pipe.prefetch(2)

    for init in (prefetching, pinning):
        service = dropin.MultiProcessingReadingService(2, "fork", worker_init_fn=init)
        try:
            with dropin.DataLoader2(dispatching(), reading_service=service) as loader:
                print(json.dumps(list(loader)))
        except Exception as error:
            print(json.dumps(str(error)))
    """
    prefetched, refused = run_script(tmp_path, PINNING + textwrap.dedent(body), folder_of(version))
    assert prefetched == [str(number) for number in range(6)]
    assert "requests items on its own thread" in refused, refused
