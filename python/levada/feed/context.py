"""Runs functions on other threads with the caller's context variables and torch modes, which are per thread."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable
from typing import Any


def in_callers_context(work: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `work` on any thread, in the context of the thread that calls this function."""
    context, enter_modes = contextvars.copy_context(), _torch_modes()

    def run(*arguments: Any) -> Any:
        with contextlib.ExitStack() as modes:
            enter_modes(modes)
            return context.run(work, *arguments)

    return run


def _torch_modes() -> Callable[[contextlib.ExitStack], None]:
    """Returns a function that enters the current thread's torch modes: gradients, inference mode, autocast, device and
    number of threads."""
    torch = sys.modules.get("torch")
    if torch is None:
        return lambda _: None
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    accelerator = _accelerator(torch)
    kinds = ["cpu"] if accelerator is None else ["cpu", accelerator[0]]
    autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if _is_autocast(torch, kind)]
    caches = torch.is_autocast_cache_enabled()
    threads = torch.get_num_threads()

    def enter(modes: contextlib.ExitStack) -> None:
        if accelerator is not None:
            torch.get_device_module(accelerator[0]).set_device(accelerator[1])
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        modes.enter_context(torch.inference_mode(inference))
        modes.enter_context(torch.set_grad_enabled(grad))
        for kind, dtype in autocast:
            modes.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=caches))

    return enter


def _is_autocast(torch: Any, kind: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(kind))
    except TypeError:  # torch before 2.4
        return False


def _accelerator(torch: Any) -> tuple[str, int] | None:
    """Returns the kind and index of the current device of an accelerator that this process already uses."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_initialized():
            return kind, module.current_device()
    return None
