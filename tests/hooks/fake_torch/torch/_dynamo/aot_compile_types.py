import pickle  # noqa: F401
