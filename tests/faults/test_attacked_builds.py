"""Who can write to the cache while a compiler runs there has nothing built, loaded or sealed of his own making."""

from __future__ import annotations

import pytest
from scenes import load_scenes

from faults.trojan import CONSTRUCTOR, Attack

# Before the compiler starts, everything that it could read in the exposed places is exchanged; and as soon as it has
# ended, what it has written there.
COMPILER = """#!/bin/sh
exchange() {{
    find {places} -type f "$@" -print | while read -r file; do
        grep -q leave_marker "$file" || {{ cat {code} "$file" > "$file.evil"; mv "$file.evil" "$file"; }}
    done
}}
case "$*" in
*" -o "*)
    echo "$@" >> {log}
    exchange \\( -name "*.cpp" -o -name "*.h" \\)
    find {places} -name "*.gch" -exec cp {code} {{}} \\;
    g++ "$@" || exit
    for library in $(find {places} -name "*.so"); do cp {trojan} "$library"; done ;;
*) exec g++ "$@" ;;
esac
"""


class BuildAttack(Attack):
    def __init__(self, home, trojan):
        super().__init__(home)
        self.headers = home.base / "headers"
        self.log = home.base / "commands"
        self.compiler = home.base / "compiler"
        code = home.base / "code"
        code.write_text(f"#ifndef EVIL\n#define EVIL\n#include <cstdio>\n#include <cstdlib>\n{CONSTRUCTOR}#endif\n")
        places = f"{home.cache} {self.headers}"
        self.compiler.write_text(COMPILER.format(places=places, code=code, trojan=trojan, log=self.log))
        self.compiler.chmod(0o755)
        for place in (home.cache, self.headers):
            place.mkdir()
            place.chmod(0o777)

    def build(self, **how):
        return self.run(
            scene=load_scenes.build_under_attack, directory=str(self.headers), compiler=str(self.compiler), **how
        )


@pytest.fixture
def attack(home, trojan):
    return BuildAttack(home, trojan)


def test_on_stock_torch_what_was_exchanged_runs(attack):
    """Or the tests here would prove nothing."""
    answer = attack.build(stock=True)
    assert attack.ran, answer


def test_it_is_neither_loaded_nor_sealed(attack):
    built = attack.build()
    assert built.ok and built.result and not attack.ran, built
    assert built.stats["directory writable by others"] == 2 and "hook inactive" not in built.stats, built
    for path in attack.files("*.so") + list(attack.headers.rglob("*.h")):
        assert b"leave_marker" not in path.read_bytes() or path.suffix == ".h", path
    again = attack.build()
    assert again.ok and again.result and not attack.ran, again


def test_compiler_sees_nothing_of_the_exposed_places(attack):
    assert attack.build().ok
    commands = attack.log.read_text().splitlines()
    assert len(commands) >= 3, commands
    for command in commands:
        assert str(attack.home.cache) not in command and str(attack.headers) not in command, command
