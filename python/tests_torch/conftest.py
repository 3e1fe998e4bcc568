"""Makes tests interruptible and gives them a separate cache folder. If pytest was started in the background it ignores
SIGINT, and the processes that tests start would inherit that. Also has the hosts of tests of several hosts."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from caches import own_cache as own_cache
from host_jobs import Launcher
from hosts import Hosts, hosts_or_skip

signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with hosts_or_skip(2) as made:
        yield made


@pytest.fixture(scope="module")
def launcher(hosts: Hosts) -> Iterator[Launcher]:
    with Launcher(hosts) as made:
        yield made
