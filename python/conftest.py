"""What tests start can be interrupted, also where pytest was started in the background, as which it ignores SIGINT and
would hand that on. Their caches lie in a folder of their own."""

import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """The user's cache folder of this process and of those that it starts."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", str(folder))
        yield folder
