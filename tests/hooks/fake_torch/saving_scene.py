"""A save that fails tells hook and stock apart: the hook swallows the error. Importing this activates safecache."""

import functools
import sys

import torch
import wrapt
from probe import AUTOGRAD_CACHE, import_all

import safecache

import_all()
module = sys.modules[AUTOGRAD_CACHE]
cache = module.AOTAutogradCache
NAME = AUTOGRAD_CACHE + ".AOTAutogradCache.save"
ours = vars(cache)["save"]
safecache.deactivate()
stock = vars(cache)["save"]
safecache.activate()
saving = sys.modules["safecache.entries.saving"]
attempt, attempts, theirs = saving.guard_save, [], []


def count_attempts(*args):
    attempts.append(1)
    return attempt(*args)


saving.guard_save = count_attempts


def save():
    del torch.calls[:], theirs[:], attempts[:]
    torch.failures["save"] = ValueError("no")
    try:
        cache.save("key", None, False)
    except ValueError:
        assert not attempts
        return "stock", len(torch.calls), len(theirs)
    return {0: "neither", 1: "hooked"}.get(len(attempts), "hooked twice"), len(torch.calls), len(theirs)


def wrap_with_wrapt():
    def wrapper(wrapped, instance, args, kwargs):
        theirs.append(1)
        return wrapped(*args, **kwargs)

    return wrapt.wrap_function_wrapper(module, "AOTAutogradCache.save", wrapper)


def wrap_with_closure(below):
    @functools.wraps(below)
    def closure(*args, **kwargs):
        theirs.append(1)
        return below(*args, **kwargs)

    cache.save = staticmethod(closure)
