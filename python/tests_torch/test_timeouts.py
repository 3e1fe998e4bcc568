"""Calls wait half an hour by default if another rank may be running user code at the time, such as a checkpoint or an
evaluation. All calls with a `timeout` are of this kind. Run by `script/check python-torch`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import levada
import pytest
from levada.cli import feed as feed_command

MODULES = (
    "levada",
    "levada.exchange",
    "levada.ddp",
    "levada.testing",
    "levada.dropin.areal",
    "levada.dropin.bridge",
    "levada.dropin.fairscale",
    "levada.dropin.megatron",
    "levada.dropin.swift",
    "levada.dropin.torchdata",
)
HALF_AN_HOUR = 1800.0


def _public(module: str) -> Iterator[tuple[str, Any]]:
    found = importlib.import_module(module)
    for name in getattr(found, "__all__", [each for each in vars(found) if not each.startswith("_")]):
        value = getattr(found, name)
        if getattr(value, "__module__", "").startswith("levada"):
            yield f"{module}.{name}", value
            if inspect.isclass(value):
                methods = inspect.getmembers(value, callable)
                yield from ((f"{module}.{name}.{method}", each) for method, each in methods if not method.startswith("_"))


def _defaults() -> dict[str, Any]:
    defaults = {}
    for module in MODULES:
        for name, value in _public(module):
            try:
                parameters = inspect.signature(value).parameters.values()
            except (TypeError, ValueError):  # not a function, or a C function without a signature
                continue
            defaults.update({f"{name}({each.name})": each.default for each in parameters if "timeout" in each.name})
    return defaults


def test_every_timeout_that_covers_user_code_defaults_to_half_an_hour() -> None:
    defaults = _defaults()
    named = {"levada.Feed(timeout)", "levada.join(timeout)", "levada.exchange.redistribute(timeout)"}
    named |= {"levada.Pipeline.run(start_timeout)", "levada.dropin.areal.DataManager(timeout)"}
    assert named <= defaults.keys(), sorted(defaults)
    assert {name: default for name, default in defaults.items() if default != HALF_AN_HOUR} == {}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("levada.dropin._areal_samples", "_TIMEOUT"),
        ("levada.dropin.bridge", "TIMEOUT"),
        ("levada.dropin.megatron", "TIMEOUT"),
        ("levada.dropin.torchdata.reading_service", "_TIMEOUT"),
    ],
)
def test_a_drop_in_without_a_timeout_waits_half_an_hour(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) == HALF_AN_HOUR


def test_the_command_waits_half_an_hour_for_a_callables_batches() -> None:
    assert feed_command._parse(["module:callable"]).timeout == HALF_AN_HOUR
