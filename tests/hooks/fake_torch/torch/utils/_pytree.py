import importlib

__all__ = ["importlib"]
