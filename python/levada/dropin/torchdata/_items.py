"""The items that a process delivers to a reading service, and how that process is started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from levada.base.errors import StageFailed
from levada.pipeline.run import Run


class Items:
    """Iterates the items of a run for a datapipe of this process. A pause makes the iterator wait instead of end, and
    exceptions also carry torchdata's text."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._pauses = 0
        self._is_closed = False

    def __iter__(self) -> Iterator[Any]:
        items = iter(self._run)
        while True:
            pauses = self._pauses  # read first: pause() counts last
            is_paused = not self._goes_on.is_set()
            try:
                item = next(items)
            except StopIteration:
                # A pause that has ended in the meantime also ends next(), which then returns the item after it.
                if self._is_closed or not (is_paused or pauses != self._pauses):
                    return
                self._goes_on.wait()
                continue
            except Exception as error:
                _add_place(error)
                raise
            yield item

    def pause(self) -> None:
        self._goes_on.clear()
        self._pauses += 1
        self._run.pause()

    def resume(self) -> None:
        self._run.resume()
        self._goes_on.set()

    def close(self) -> None:
        """Ends a thread that waits for resume()."""
        self._is_closed = True
        self._goes_on.set()


class _Text(str):
    """A text that KeyError shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _add_place(error: Exception) -> None:
    """Adds torchdata's description of the place to the text of an exception that a datapipe of another process
    raised."""
    failed = error.__cause__
    is_text = not error.args or isinstance(error.args[0], str)
    if not isinstance(failed, StageFailed) or not is_text:
        return
    place = failed.process.partition(" (")[0].replace("worker ", "worker process ").removeprefix("the ")
    text = f"Caught {type(error).__name__} in {place}.\nOriginal {failed.traceback}"
    error.args = (_Text(text), *error.args[1:])
