"""Entry points for the plugin loaders of vLLM and SGLang, called in each process of a server.

The loaders call whatever is installed, so safecache_entry first checks that safecache is asked for. Both servers log an
exception of a plugin and go on without it. What must stop the server therefore ends the process.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import NoReturn

import safecache
from safecache.errors import ConfigError
from safecache.patching import activation
from safecache.patching.hook import HookState
from safecache.settings import config, units

__all__ = ["sglang", "vllm"]


def vllm() -> None:
    """Activate safecache in this process of vLLM, unless SAFECACHE=0, and show its metrics beside vLLM's.

    Ends the process with exit code 78 for a setting with a bad value; in strict mode also if a hook is not on.
    """
    if _start("vLLM") and config.current().metrics:
        from safecache import metrics

        metrics.show()


def sglang() -> None:
    """Activate safecache in this process of SGLang, like vllm(). Its metrics are those of all processes already."""
    _start("SGLang")


def _start(server: str) -> bool:
    """Activate safecache unless it is switched off. Return whether it is active now."""
    try:
        if not activation.is_active() and config.is_switched_off():
            return False
        activation.activate()
        problem = _find_objection() if config.current().strict else ""
        _say_active(server)
    except ConfigError as error:
        problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        if not config.current().strict:
            print(f"safecache: not active in this process: {problem}", file=sys.stderr)
            return False
    if problem:
        _stop_process(f"safecache: {server} does not start: {problem}")
    return True


def _find_objection() -> str:
    """Return the hooks that strict mode objects to: those that stand down or are overwritten by now; "" for none."""
    off = [hook for hook in activation.status() if hook.state in (HookState.STANDING_DOWN, HookState.OVERWRITTEN)]
    return "; ".join(f"{hook.name} is {hook.state}{hook.reason and f' ({hook.reason})'}" for hook in off)


def _stop_process(text: str) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    if threading.current_thread() is threading.main_thread():
        sys.exit(config.EXIT_CONFIG)
    # Another thread that exits ends nothing but itself.
    os._exit(config.EXIT_CONFIG)


def _say_active(server: str) -> None:
    from safecache.reporting import events

    states = [hook.state for hook in activation.status()]
    text = f"safecache {safecache.__version__} is active in this process of {server}"
    on, to_come = sum(state.is_on for state in states), states.count(HookState.NOT_IMPORTED)
    events.log_line(logging.INFO, f"{text}, with {units.write_count(on, 'hook')} on and {to_come} to come.")
