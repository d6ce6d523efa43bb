"""``safecache status``: what every hook does on the installed torch."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column, Table

import safecache
from safecache.errors import printable
from safecache.patching import targets
from safecache.settings import config, settings
from safecache.signing import keyring, provenance

__all__ = ["import_targets", "show"]

_HEALTHY = ("active", "in the source", "not for this torch")


def show(*, as_json: bool, importing: bool) -> int:
    """Print the status; 1 if a hook that could be active is not."""
    enabled = config.current().enabled
    if enabled:
        safecache.activate()
    failed = import_targets() if importing else {}
    hooks = [dict(hook._asdict(), reason=hook.reason or failed.get(hook.name, "")) for hook in safecache.status()]
    keys = keyring.current(tell=False)
    report = {
        "version": safecache.__version__,
        "enabled": enabled,
        "torch": provenance.torch_version(),
        "settings": {setting.variable: getattr(config.current(), setting.name) for setting in settings.SETTINGS},
        "key": keys.signing.id.hex() if keys.signing else None,
        "key_problem": keys.problem,
        "trusted_keys": sorted(key_id.hex() for key_id in keys.trusted),
        "refused_keys": list(keys.problems),
        "hooks": hooks,
    }
    if as_json:
        print(json.dumps(report))
    else:
        _print(report, hooks)
    healthy = not importing or all(hook["state"] in _HEALTHY for hook in hooks)
    return 0 if healthy and keys.signing and enabled else 1


def import_targets() -> dict[str, str]:
    """Import every target module; why not, by hook name, for those that cannot be."""
    failed = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("importing torch")
        for target in targets.TARGETS:
            if "torch" in sys.modules and target.is_not_for(provenance.torch_release()):
                continue  # which may not have the module either
            progress.update(task, description=f"importing {target.module}")
            try:
                importlib.import_module(target.module)
            except Exception as error:
                failed[target.name] = f"{type(error).__name__}: {error}"
    return failed


def _print(report: dict[str, Any], hooks: list[dict[str, str]]) -> None:
    console = Console()
    console.print(f"safecache {report['version']}, torch {report['torch'] or 'not installed'}")
    key = f"key {report['key']}" if report["key"] else f"no key: {report['key_problem']}"
    console.print(printable(key), markup=False)
    for problem in report["refused_keys"]:
        console.print(printable(f"key refused: {problem}"), markup=False)
    table = Table(Column("hook", overflow="fold"), "state", Column("reason", overflow="fold"))
    colours = {"active": "green", "in the source": "green", "not yet imported": "dim", "not for this torch": "dim"}
    for hook in hooks:
        colour = colours.get(hook["state"], "red")
        table.add_row(hook["name"], f"[{colour}]{hook['state']}[/]", printable(hook["reason"]))
    console.print(table)
