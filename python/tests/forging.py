"""Messages that name any class with any parts, as a forged file or a hostile rank may contain them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from levada.batch import classes

_take_apart = classes.take_apart


class Forged:
    """Is packed as an object of the class `name`, with these parts."""

    def __init__(self, name: str, keys: Any = (), children: Any = (), state: Any = None, kind: str = "record") -> None:
        self.parts = kind, name, list(keys), list(children), state


def leaf(name: str, content: Any) -> Forged:
    return Forged(name, (), [content], None, "leaf")


@contextlib.contextmanager
def forging() -> Iterator[None]:
    """Makes this process pack Forged objects, like an attacker's modified copy of Levada."""

    def take_apart(value: Any, path: str, allowed: int) -> Any:
        return value.parts if type(value) is Forged else _take_apart(value, path, classes.ANY)

    classes.take_apart = take_apart
    try:
        yield
    finally:
        classes.take_apart = _take_apart


class Watched(NamedTuple):
    """An event of sys.audit() that an attacker's code would raise."""

    event: str
    detail: str


_EVENTS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "subprocess.Popen", "pty.spawn", "exec", "compile",
           "open", "os.remove", "os.rename", "os.mkdir", "os.chmod", "os.link", "os.symlink", "os.truncate", "shutil.",
           "tempfile.", "import", "socket.", "pickle.find_class", "marshal.", "ctypes.", "os.putenv", "signal.")  # fmt: skip

_seen: list[Watched] | None = None
_is_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event.startswith(_EVENTS):
        _seen.append(Watched(event, repr(arguments[:2])[:200]))


@contextlib.contextmanager
def watching() -> Iterator[list[Watched]]:
    """Yields the list of audit events that this process raises, on any thread, until the `with` statement ends."""
    global _seen, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_hook)
        _is_hooked = True
    seen: list[Watched] = []
    _seen = seen
    try:
        yield seen
    finally:
        _seen = None
