"""Code shared by the commands written in Python: parses arguments and writes to standard output."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any, NoReturn

from levada.base.errors import EngineError, InvalidArgument


class Parser(argparse.ArgumentParser):
    """Accepts only complete option names, and raises InvalidArgument for wrong arguments."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(f"{message}; see {self.prog} --help")


def write(text: str) -> None:
    """Writes a line to standard output. Raises EngineError if that fails, and ends the process by SIGPIPE if the reader
    has closed it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    except OSError as error:
        sys.stdout = None  # otherwise, Python would try again at exit
        raise EngineError(f"cannot write to standard output: {error.strerror}") from None
