"""How large a file may be to be read at all: more than real ones weigh, and little enough to cost nobody a start.

A sparse file of a terabyte costs whoever makes it nothing. What ends in the seal of a trusted key is not bounded here:
its tag covers the size, see store.read().
"""

from __future__ import annotations

from safecache import config
from safecache.kinds import Kind

__all__ = ["RECORD", "UNSEALED", "largest"]

_MIB, _GIB = 1 << 20, 1 << 30

# A record has some hundred bytes; that of the list of a kernel's files, a digest for each of these dozen.
RECORD = _MIB

# Without a seal that holds an entry is never used, but told from one that was cut short, by its name: 10 ms at most.
UNSEALED = 16 * _MIB
# Where unsealed ones are used: graphs that hold their constants have some GB.
_UNSEALED_AND_USED = 4 * _GIB
_ENTRIES = (Kind.AOT_ENTRY, Kind.FX_ENTRY)
# Of what carries no seal of its own.
_LARGEST = {
    # The generated code of the largest graphs has some MB.
    Kind.SOURCE: 64 * _MIB,
    # A precompiled header has 0.3 GB, an extension with kernels for all GPUs (such as FlashAttention's) up to 1 GB.
    Kind.NATIVE_CODE: 4 * _GIB,
    # Cubins and modules have up to some MB, the IR of the largest kernels some tens.
    Kind.KERNEL: 256 * _MIB,
    # JSON of what was measured, of all kernels in one file.
    Kind.AUTOTUNING: 64 * _MIB,
    Kind.COMPILE_CRASH: _MIB,
}


def largest(kind: Kind, *, unsealed: bool = False) -> int:
    """In bytes. ``unsealed``: whether entries without a seal are used, whatever the settings say, as for adopting."""
    if kind in _ENTRIES and (unsealed or config.current().trust == "private"):
        return _UNSEALED_AND_USED
    return _LARGEST.get(kind, UNSEALED)
