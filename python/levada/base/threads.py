"""Starting threads where the system may refuse one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from levada import _levada


def start_thread(what: str, name: str, work: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Starts a daemon thread that calls `work`. Raises EngineError where the system refuses one, which says for `what`."""
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
        return thread
    except RuntimeError:
        if sys.is_finalizing():
            raise
    _levada.throw_no_thread(what)
