"""What a person knows a graph by: the function that is being compiled, and Dynamo's id of the compile.

Sources: ``_compile`` in torch/_dynamo/convert_frame.py; ``CompileContext`` in torch/_guards.py. The same in torch 2.11
to 2.15.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType

__all__ = ["backward", "forward", "frame"]

_COMPILE = ("torch._dynamo.convert_frame", "_compile")
# By Dynamo's ids: a backward graph may be compiled when the function is left.
_functions: dict[str, str] = {}


def frame() -> str:
    """Dynamo's id of the compile that this thread is in, such as "0/1": the function's, and which of its compiles."""
    context = getattr(sys.modules.get("torch._guards"), "CompileContext", None)
    found = None if context is None else context.current_compile_id()
    return "" if found is None else str(found)


def forward() -> str:
    """The function that this thread compiles, with its file and line; "" if that cannot be told.

    Takes some ten microseconds: it looks through the frames of the thread.
    """
    compile_id = frame()
    code = _code()
    if code is None:
        return _functions.get(compile_id, "") if compile_id else ""
    name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has only the latter
    text = f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    if compile_id:
        _functions[compile_id] = text
    return text


def backward() -> str:
    """As forward(), of its backward graph."""
    name = forward()
    return f"{name} backward" if name else ""


def _code() -> CodeType | None:
    above: FrameType | None = sys._getframe(1)
    while above is not None:
        if (above.f_globals.get("__name__"), above.f_code.co_name) == _COMPILE:
            code = above.f_locals.get("code")
            return code if isinstance(code, CodeType) else None
        above = above.f_back
    return None
