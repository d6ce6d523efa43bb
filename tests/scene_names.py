"""Names that tests parametrize over without importing torch, as scenes.py does."""

UNPICKLABLE = ["lambda", "launcher", "lock", "getstate", "recursion"]
PLACES = ["aot", "fx"]
