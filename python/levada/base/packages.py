"""Imports optional packages that a program may have installed."""

from __future__ import annotations

import importlib
from typing import Any

from levada.base.errors import Unsupported

__all__ = ["import_for"]


def import_for(user: str, package: str, module: str = "") -> Any:
    """Returns a module of a package. Raises Unsupported, which names `user`, if it is not installed."""
    try:
        return importlib.import_module(module or package)
    except ImportError as error:
        cause = "" if isinstance(error, ModuleNotFoundError) and error.name == package else f" ({error})"
        raise Unsupported(f"{user} needs the package {package}{cause}: pip install {package}") from None


def release_of(package: str) -> str:
    """Returns a package's name and version, because another version may encode a text differently."""
    import importlib.metadata  # this imports many modules

    return f"{package} {importlib.metadata.version(package)}"
