"""A program with a custom operator that can be changed without its cache key being, nor what is stated of it."""

from __future__ import annotations

import multiprocessing
import os
from unittest import mock


def run_program(*, added=1, factor=3, is_all=False, is_repeated=False):
    """What it computes, and has counted; ``added``: by the operator, to each number."""
    import torch

    import safecache
    from safecache.fingerprints import operators

    def shifted(x):
        return torch.ops.verified.shifted(x) * factor

    def trained(x):
        return torch.relu(x @ x.T).sum()

    with torch.library._scoped_library("verified", "DEF") as library:
        library.define("shifted(Tensor x) -> Tensor")
        # As if that was before safecache was imported, which then does not know what it is made of.
        with mock.patch.object(operators, "note_registration"):
            library.impl("shifted", lambda x: x + added, "CompositeImplicitAutograd")
        with torch.no_grad():
            value = torch.compile(shifted)(torch.ones(3))[0].item()
            if is_all:
                torch.compile(shifted, dynamic=True)(torch.ones(4, 5))
        if is_all:
            torch.compile(trained)(torch.ones(3, 3, requires_grad=True)).backward()
        if is_repeated:
            torch._dynamo.reset()
            with torch.no_grad():
                torch.compile(shifted)(torch.ones(3))
    return {**safecache.stats(), "value": value}


def run_in_parent_and_child():
    """Both have a cold start of Dynamo; the second one is forked."""
    import torch

    parent = run_program()
    torch._dynamo.reset()
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(run_program()))
    child.start()
    theirs.close()
    told = ours.recv()
    child.join()
    return parent, told


def seal_for_another(wrong, right):
    """What is cached of one graph is sealed again, with the user's own key, for another."""
    from safecache.reporting.kinds import Kind
    from safecache.signing import keyring, seal

    contents = []
    for path in (wrong, right):
        with open(path, "rb") as file:
            contents.append(file.read())
    payload, facts = seal.strip_unverified(contents[0]), seal.stated_provenance(contents[1])
    key = os.path.basename(os.path.dirname(right))
    with open(right, "wb") as file:
        file.write(seal.attach(payload, Kind.AOT_ENTRY, key, keyring.current().signing, facts))
