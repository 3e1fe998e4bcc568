"""The recipes in packaging/ match Levada's files and requirements."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import re
from typing import Any

import levada
import yaml

ROOT = pathlib.Path(__file__).parents[2]
PORTFILE = (ROOT / "packaging/vcpkg/portfile.cmake").read_text()
RECIPE = (ROOT / "packaging/conda-forge/recipe.yaml").read_text()
CMAKE = (ROOT / "CMakeLists.txt").read_text()


def port() -> dict[str, Any]:
    port = json.loads((ROOT / "packaging/vcpkg/vcpkg.json").read_text())
    assert isinstance(port, dict)
    return port


def recipe() -> dict[str, Any]:
    recipe = yaml.safe_load(RECIPE)
    assert isinstance(recipe, dict)
    return recipe


def names(requirements: list[str]) -> set[str]:
    """Returns the package names in requirements, without versions."""
    return {re.split(r"[ <>=!]", requirement)[0] for requirement in requirements}


def packages(*, sentencepiece: bool) -> set[str]:
    """Returns the packages that CMakeLists.txt looks for, in lower case. Only the C++ library needs SentencePiece."""
    calls = re.findall(r"levada_find_packages\(([^)]*)\)", CMAKE)
    found = {name.lower() for call in calls for name in call.split()[::2]}
    return found if sentencepiece else found - {"sentencepiece"}


def test_the_recipes_have_the_version_of_the_package() -> None:
    assert port()["version"] == recipe()["context"]["version"] == levada.__version__
    assert f"project(levada VERSION {levada.__version__} " in CMAKE


def test_the_recipes_set_options_that_cmake_has() -> None:
    options = set(re.findall(r"^(?:option|set)\((\w+) ", CMAKE, re.MULTILINE))
    named = set(re.findall(r"LEVADA_\w+|BUILD_\w+", PORTFILE + RECIPE))
    assert {"LEVADA_BUNDLE", "LEVADA_MPI", "LEVADA_TESTS"} <= named <= options


def test_the_port_for_vcpkg_has_the_dependencies_of_cmake() -> None:
    plain = {dependency for dependency in port()["dependencies"] if isinstance(dependency, str)}
    assert {name.replace("-", "_") for name in plain} == packages(sentencepiece=True)
    hosts = {dependency["name"] for dependency in port()["dependencies"] if isinstance(dependency, dict)}
    assert hosts == {"vcpkg-cmake", "vcpkg-cmake-config"}
    assert all(re.search(rf"\b{name} LEVADA_{name.upper()}\b", PORTFILE) for name in port()["features"])


def test_the_port_for_vcpkg_uses_the_paths_that_cmake_installs() -> None:
    installed = (ROOT / "cmake/LevadaInstall.cmake").read_text()
    assert "${CMAKE_INSTALL_LIBDIR}/cmake/levada" in installed and "CONFIG_PATH lib/cmake/levada" in PORTFILE
    assert (ROOT / "packaging/vcpkg" / "../.." / "LICENSE").exists() and "${SOURCE_PATH}/LICENSE" in PORTFILE


def test_the_recipe_for_conda_has_the_dependencies_of_the_package() -> None:
    requirements = recipe()["requirements"]
    built = re.search(r"^requires = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert built is not None
    builders = set(json.loads(built[1]))
    assert {requirement.replace(" ", "") for requirement in requirements["host"]} >= builders
    assert names(requirements["host"]) == packages(sentencepiece=False) | names(list(builders)) | {"python", "pip"}
    needed = {each for each in importlib.metadata.requires("levada") or () if "extra ==" not in each}
    assert {each.replace(" ", "") for each in requirements["run"]} == needed | {"python"}
    assert recipe()["build"]["skip"] == ["not linux", 'match(python, "<3.10")']
