"""Exchanges bytes among all ranks of a process group before Levada joins them."""

from __future__ import annotations

import datetime
import importlib
import time
from collections.abc import Callable
from typing import Any

from levada.base.errors import EngineError, Error, InvalidArgument, Timeout
from levada.job.arrivals import arrivals_at


_PAUSE, _MAX_PAUSE = 0.0002, 0.02
_TEXT_BYTES = 512
_DONE = "+"
_FAILURES: dict[str, type[Error]] = {"!": InvalidArgument, "~": Timeout, "-": EngineError}
"""Exceptions by the first byte of the fixed-size message that each rank sends to the others when ranks join."""


def wait(work: Any, until: float) -> None:
    """Waits for `work` of a process group until `until`, a time of time.monotonic(), and raises its exception. The
    program's signal handlers run during the wait; a single work.wait() would delay them."""
    pause = _PAUSE
    while not work.is_completed() and (left := until - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(2 * pause, _MAX_PAUSE)
    work.wait(datetime.timedelta(seconds=max(until - time.monotonic(), 0.001)))  # 0 would mean no timeout


def all_gather(group: Any, mine: bytes, timeout: float) -> list[bytes]:
    """Returns the bytes of all ranks, by group rank. All ranks must pass the same number of bytes. Works on any device
    of the group. Collective."""
    torch = importlib.import_module("torch")
    kinds = [device.type for device in getattr(group, "_device_types", [])]
    kind = "cpu" if "cpu" in kinds or not kinds else kinds[0]
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())
    sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
    received = [torch.empty_like(sent) for _ in range(group.size())]
    began = time.monotonic()
    with arrivals_at(group, "to join its group") as arrivals:
        try:
            wait(group.allgather([received], [sent]), began + timeout)
        except RuntimeError as error:
            kind = Timeout if time.monotonic() - began >= timeout else EngineError
            why = str(error).partition("\n")[0]
            raise kind(
                f"{arrivals.describe()} ({why}); check that all of them join it, and that no firewall is between "
                "their hosts"
            ) from error
    return [each.cpu().numpy().tobytes() for each in received]


def on_all(group: Any, until: float, work: Callable[[], str]) -> list[str]:
    """Returns the results of `work` on all ranks. An exception on one rank is raised on all. Collective."""
    try:
        mine = _DONE + work()
    except (Error, OSError, RuntimeError) as error:
        mark = next((mark for mark, kind in _FAILURES.items() if isinstance(error, kind)), "-")
        mine = mark + str(error)
    left = max(until - time.monotonic(), 0.001)
    sent = all_gather(group, mine.encode(errors="backslashreplace")[:_TEXT_BYTES].ljust(_TEXT_BYTES), left)
    texts = [each.decode(errors="replace").rstrip() for each in sent]
    for mark, kind in _FAILURES.items():
        for text in texts:
            if text.startswith(mark):
                raise kind(text.removeprefix(mark))
    return [text.removeprefix(_DONE) for text in texts]
