"""How processes end, in words."""

from __future__ import annotations

import signal
from multiprocessing.process import BaseProcess


def exit_text(process: BaseProcess) -> str:
    """ "was killed by SIGKILL", "ended with exit status 3"; "was lost" while it has not ended."""
    code = process.exitcode
    if code is None:
        return "was lost"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
