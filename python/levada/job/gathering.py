"""Bytes of all ranks of a process group, before Levada joins them."""

from __future__ import annotations

import datetime
import importlib
import time
from typing import Any

from levada.base.errors import EngineError, Timeout
from levada.job.arrivals import arrivals_at


def all_gather(group: Any, mine: bytes, timeout: float) -> list[bytes]:
    """Returns the bytes of all ranks, by group rank. Each has the same number of bytes. Works on any device of the group."""
    torch = importlib.import_module("torch")
    kinds = [device.type for device in getattr(group, "_device_types", [])]
    kind = "cpu" if "cpu" in kinds or not kinds else kinds[0]
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())
    sent = torch.tensor(list(mine), dtype=torch.uint8, device=device)
    received = [torch.empty_like(sent) for _ in range(group.size())]
    began = time.monotonic()
    with arrivals_at(group, "to join its group") as arrivals:
        try:
            group.allgather([received], [sent]).wait(datetime.timedelta(seconds=timeout))
        except RuntimeError as error:
            kind = Timeout if time.monotonic() - began >= timeout else EngineError
            why = str(error).partition("\n")[0]
            raise kind(
                f"{arrivals.describe()} ({why}); see whether all of them join it, and whether a firewall lies between "
                "their hosts"
            ) from error
    return [bytes(each.tolist()) for each in received]
