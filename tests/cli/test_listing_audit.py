"""Listing, showing, verifying and the commands of quarantine unpickle, execute and load nothing of what lies there."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import TESTS, python

WATCH = """
import ctypes, json, os, pickle, sys
from pathlib import Path
from harness import planted
from faults.damage import Marker
from helpers.caches import Cache, key
from safecache.signing import provenance, keyring, seal; from safecache.places import layout; from safecache.store import entry_files
from safecache.cli import main
from safecache.reporting.kinds import Reason
from safecache.reporting.kinds import Kind

base = Path(sys.argv[1])
cache = Cache(base / "cache")
hostile = pickle.dumps(Marker(str(base / "ran")))
source = f"import os; open(os.environ[{planted.MARKER!r}], 'w')".encode()
here = provenance.make_statement(Kind.AOT_ENTRY)
sealing = keyring.current().signing
for prefix, kind, folder in (("a", Kind.AOT_ENTRY, "aotautograd"), ("f", Kind.FX_ENTRY, "fxgraph/xx")):
    own = key(prefix, "x")
    for content in (hostile, seal.attach(hostile, kind, own, sealing, here), seal.attach(hostile, kind, own, sealing, {})):
        cache.file(cache.root / folder / own / layout.name_entry(content), 9999, content)
sources = [path for path in cache.code("x", 9999) + cache.kernel("x", 9999) + cache.header("x", 9999)]
for path in [*sources, cache.known_bad("x", 9999), *cache.crash("x", 9999)]:
    path.write_bytes(source)
for path in sources:
    if path.name == "k.json":
        path.write_bytes(json.dumps({"name": "k", "target": "__import__('os')"}).encode())
own = key("c", "py")
cache.file(cache.root / own[1:3] / f"{own}.py", 9999, source)
for path in list((cache.root / "aotautograd" / key("a", "x")).iterdir()):
    entry_files.quarantine(str(path), str(cache.root), Reason.DAMAGED)
    path.write_bytes(hostile)

os.environ[planted.MARKER] = str(base / "ran")
seen = planted.watch()
codes = []
def run(*arguments):
    codes.append(main.main([*arguments]))
for extra in ([], ["--json"]):
    run("ls", "--kind", "all", "--sort", "name", str(cache.root), *extra)
    for name in (key("a", "x"), key("f", "x"), own, key("c", "x"), "k"):
        run("show", name, "--in", str(cache.root), *extra)
    run("verify", str(cache.root), *extra)
    run("quarantine", "--in", str(cache.root), *extra)
items = sorted(name for name in os.listdir(cache.root / ".safecache" / "quarantine") if not name.endswith(".json"))
for item in items:
    run("quarantine", "show", item, "--in", str(cache.root))
    run("quarantine", "restore", item, "--in", str(cache.root))
run("quarantine", "rm", "--all", "--in", str(cache.root))
during, ran = list(seen), (base / "ran").exists()
# That all of it would have been seen:
pickle.loads(hostile)
exec(compile(source, "planted", "exec"))
try:
    ctypes.CDLL(str(next(path for path in sources if path.suffix == ".so")))
except OSError:
    pass
(base / "said").write_text(json.dumps([codes, len(items), during, ran, sorted({each.split()[0] for each in seen})]))
"""


def test_nothing_of_hostile_caches_is_unpickled_executed_or_loaded(tmp_path):
    done = python(WATCH, path=TESTS, arguments=(str(tmp_path),), env={"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert done.returncode == 0, done.stderr + done.stdout
    codes, items, during, ran, after = json.loads(Path(tmp_path, "said").read_text())
    assert during == [] and not ran
    assert items == 3 and set(codes) == {0, 1}
    assert after == ["compile", "ctypes.dlopen", "exec", "pickle.find_class"]
