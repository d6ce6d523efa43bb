"""Where a process can open no more files, a compile ends as that of stock torch does, or goes on as that does."""

from __future__ import annotations

import re
import shutil

import pytest
from scenes import model_scenes

pytestmark = pytest.mark.default_release
# How many more can be opened: torch 2.15 itself needs 2 at once for a hit, and 6 to build a kernel.
WARM = [pytest.param(spare, True, id=f"{spare}-warm") for spare in (0, 1, 2)]
COLD = [pytest.param(spare, False, id=f"{spare}-cold") for spare in (0, 1, 3, 5, 6)]


def compile_with(home, warm_template, is_warm, **how):
    shutil.rmtree(home.base)
    home.base.mkdir()
    if is_warm:
        shutil.copytree(warm_template.base, home.base, dirs_exist_ok=True, symlinks=True)
    return home.run(model_scenes.compile_with_few_descriptors, **how)


@pytest.mark.parametrize(("spare", "is_warm"), WARM + COLD)
def test_compile_ends_as_that_of_stock_torch_and_the_next_process_recovers(home, warm_template, spare, is_warm):
    stock = compile_with(home, warm_template, is_warm, spare=spare, stock=True)
    ours = compile_with(home, warm_template, is_warm, spare=spare)
    # The same cause. Stock torch up to 2.14 fails as early as in the lookup of an FX entry, under another exception.
    assert ours.errors[-1:] == stock.errors[-1:] and (ours.ok or "Too many open files" in ours.messages[-1]), (
        ours,
        stock,
    )
    # Entries that cannot be opened, if any, and what is compiled for it: no directory is used in place of theirs.
    assert all(re.search(r"\[un(read|writ)able\]: .*Too many open files", warning) for warning in ours.warnings), ours
    if ours.ok:
        assert ours.hits == stock.hits, (ours, stock)
    again = home.run()
    assert again.ok and not again.warnings, again
