"""Fuzz the decoders for as long as you like: ``python tests/fuzz/campaign.py [DECODER …] --seconds 60``.

With atheris, which watches which lines and comparisons of safecache an input reaches (``pip install 'safecache[fuzz]'``);
or, with ``--blind``, without it. Starts from the inputs that are kept in tests/fuzz/corpus, and keeps those that reach
more than they do, so that from then on every run of the tests tries them. An input that fails is left in the current
directory, and its traceback printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]
# Kept inputs are a few dozen for each decoder, and small.
_MOST_BYTES = 4096
_INSTALL = "atheris is not installed: pip install 'safecache[fuzz]', or fuzz without it: --blind"


@contextmanager
def _isolated() -> Iterator[None]:
    unset = dict.fromkeys(("SAFECACHE_KEY_FILE", "SAFECACHE_KEYRING", "SAFECACHE_NAMESPACE"), "")
    with tempfile.TemporaryDirectory() as base, mock.patch.dict(os.environ, unset, XDG_CONFIG_HOME=base):
        yield


def fuzz(name: str, command: list[str]) -> None:
    """Hand this process to libFuzzer, with its own command line."""
    import atheris

    with atheris.instrument_imports(include=["safecache"]):
        from fuzz import decoders
    decoder = next(decoder for decoder in decoders.DECODERS if decoder.name == name)

    def change(content: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        # Its own way now and then: it knows what the comparisons were about.
        if chance.random() < 0.3:
            return atheris.Mutate(content, most)
        return decoder.change(content, chance)[:most]

    atheris.Setup([*command, f"-max_len={_MOST_BYTES}"], decoder.check, custom_mutator=change)
    atheris.Fuzz()


def _with_atheris(name: str, seconds: int, corpus: Path) -> int:
    """Fuzz in a process of its own, then merge what was new into the corpus."""
    with tempfile.TemporaryDirectory() as base:
        found, engine = Path(base, "found"), Path(base, "engine")
        found.mkdir()
        # A program of its own, since libFuzzer starts itself again to merge.
        engine.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} --engine {name} "$0" "$@"\n')
        engine.chmod(0o755)
        done = subprocess.run([engine, f"-max_total_time={seconds}", "-print_final_stats=1", found, corpus])
        if done.returncode == 0:
            done = subprocess.run([engine, "-merge=1", corpus, found], stderr=subprocess.DEVNULL)
    return done.returncode


def _blindly(name: str, seconds: int) -> int:
    from fuzz import decoders

    decoder = next(decoder for decoder in decoders.DECODERS if decoder.name == name)
    kept, tried, end = decoder.kept(), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        seed = random.SystemRandom().getrandbits(64)
        chance = random.Random(seed)
        content = decoder.change(chance.choice(kept), chance)
        try:
            decoder.check(content)
        except BaseException:
            failed = Path(f"crash-{name}-{seed}")
            failed.write_bytes(content)
            print(f"{name}: input {failed}", file=sys.stderr)
            raise
        tried += 1
    print(f"{name}: {tried} inputs, {tried / seconds:.0f} a second")
    return 0


def main() -> int:
    if sys.argv[1:2] == ["--engine"]:
        with _isolated():
            fuzz(sys.argv[2], sys.argv[3:])
        return 0
    from fuzz import decoders

    names = [decoder.name for decoder in decoders.DECODERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("decoder", nargs="*", metavar="DECODER", help=f"of {', '.join(names)}; all, without one")
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder")
    parser.add_argument("--blind", action="store_true", help="without atheris: random changes, and nothing is kept")
    chosen = parser.parse_args()
    if unknown := set(chosen.decoder) - set(names):
        parser.error(f"no such decoder: {', '.join(sorted(unknown))}")
    if not chosen.blind and importlib.util.find_spec("atheris") is None:
        parser.error(_INSTALL)
    with _isolated() if chosen.blind else nullcontext():
        for name in chosen.decoder or names:
            corpus = TESTS / "fuzz" / "corpus" / name
            failed = _blindly(name, chosen.seconds) if chosen.blind else _with_atheris(name, chosen.seconds, corpus)
            if failed:
                return failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
