"""Names that tests parametrize over without importing torch, as model_scenes.py does."""

UNPICKLABLE = ["lambda", "launcher", "lock", "getstate", "recursion"]
PLACES = ["aot", "fx"]
