"""The compiled module levada._levada, and the C++ library that is installed with it."""

from __future__ import annotations

import pathlib
import sys

from levada.base.errors import Unsupported

__all__ = ["get_cmake_dir", "require_extension"]


def require_extension() -> None:
    """Imports levada._levada. If that fails, raises ImportError with a remedy."""
    if not sys.platform.startswith("linux"):
        raise ImportError(
            f"levada needs Linux, and this Python runs on {sys.platform}: use a Linux machine or container, on Windows WSL 2",
            name="levada",
        )
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    try:
        import levada._levada
    except ModuleNotFoundError as error:
        if error.name != "levada._levada":
            raise
        folder = pathlib.Path(__file__).parents[1]
        raise ImportError(
            f"{folder} has no compiled module levada._levada for {python}: install Levada with `{sys.executable} -m pip`, and "
            "start Python outside of Levada's source folder",
            name="levada._levada",
        ) from None
    except ImportError as error:
        raise ImportError(
            f"levada's compiled module cannot be loaded ({error}): install a wheel of Levada that is made for this system and "
            f"{python}, or build one from source here",
            name=error.name,
            path=error.path,
        ) from None


def get_cmake_dir() -> str:
    """Returns the folder of levadaConfig.cmake. A CMake project that is configured with `-Dlevada_DIR=` and this folder
    links `levada::levada` of `find_package(levada CONFIG)`, the C++ library in this package, which needs no other
    package. Raises Unsupported if the package was installed without it."""
    import levada._levada

    # Next to the compiled module, because in an editable install, the Python files are elsewhere.
    folder = pathlib.Path(levada._levada.__file__).parent / "lib" / "cmake" / "levada"
    if not (folder / "levadaConfig.cmake").is_file():
        raise Unsupported(
            f"this levada was installed without the CMake files of its C++ library ({folder} has no levadaConfig.cmake): "
            "reinstall it"
        )
    return str(folder)
