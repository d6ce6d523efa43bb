"""Scenes about launchers of Triton kernels; see scenes.py, and autotuners.py for what stands in for the GPU."""

from __future__ import annotations

import pickle

import autotuners


def dump_launcher(path, static=True):
    """Make a launcher and pickle it, plainly, to a file."""
    with autotuners.driver():
        launcher = autotuners.compiled(static=static).launchers[0]
        with open(path, "wb") as file:
            pickle.dump(launcher, file)
    return {"module": launcher.__module__, "qualname": launcher.__qualname__}


def launch_pickled(path):
    """Unpickle a launcher from a file and launch it; what was loaded and launched before and after."""
    with autotuners.driver() as driver:
        with open(path, "rb") as file:
            launcher = pickle.load(file)
        before = list(driver.loaded)
        autotuners.launch(launcher)
        return {
            "loaded before": before,
            "loaded": driver.loaded,
            "launched": driver.launched,
            "qualname": launcher.__qualname__,
        }
