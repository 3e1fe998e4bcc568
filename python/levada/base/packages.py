"""Imports optional packages that a program may have installed."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from levada.base.errors import Unsupported

__all__ = ["import_for", "is_of", "panics_as_errors", "release_of"]


def import_for(user: str, package: str, module: str = "") -> Any:
    """Returns a module of a package. Raises Unsupported, which names `user`, if it is not installed."""
    try:
        return importlib.import_module(module or package)
    except ImportError as error:
        cause = "" if isinstance(error, ModuleNotFoundError) and error.name == package else f" ({error})"
        raise Unsupported(f"{user} needs the package {package}{cause}: pip install {package}") from None


def is_of(value: Any, module: str, name: str) -> bool:
    """Returns whether a value is an object of a class of a module that the program may not have imported."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(value, found)


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raises the panic of a package written in Rust, which is no Exception, as a RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"the package failed: {error}") from error


def release_of(package: str) -> str:
    """Returns a package's name and version, because another version may encode a text differently."""
    import importlib.metadata  # this imports many modules

    return f"{package} {importlib.metadata.version(package)}"
