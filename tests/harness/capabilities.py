"""What root may do that others may not, given up."""

from __future__ import annotations

import ctypes
import struct


def drop_file_capabilities():
    """Make file modes count for root too: give up CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH (capset(2))."""
    header = struct.pack("=Ii", 0x20080522, 0)
    everything_else = 0xFFFFFFFF & ~0b110
    data = struct.pack("=6I", everything_else, everything_else, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    capabilities = bytearray(24)
    libc = ctypes.CDLL(None, use_errno=True)
    held = (ctypes.c_char * 24).from_buffer(capabilities)
    if libc.capget(header, held) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    kept = bytes(a & b for a, b in zip(capabilities, data, strict=True))
    if libc.capset(header, kept) != 0:
        raise OSError(ctypes.get_errno(), "capset")
