"""Files mapped without a descriptor.

:class:`mmap.mmap` keeps a descriptor of its own for as long as the mapping lives (until Python 3.13), so that a cache
of many files ends with none left for connections. The mapping itself needs none.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

_FAILED = ctypes.c_void_p(-1).value


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.munmap.restype = ctypes.c_int
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


def map_shared(file: int, nbytes: int, writable: bool = True) -> memoryview:
    """Return the first ``nbytes`` of a file as memory that other processes see; ``file`` may be closed at once.

    The mapping ends with the last buffer over it.

    Raises
    ------
    OSError
        If it cannot be mapped.
    """
    libc = _libc()
    rights = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    address = libc.mmap(None, nbytes, rights, mmap.MAP_SHARED, file, 0)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    memory = (ctypes.c_char * nbytes).from_address(address)
    # Not at exit: other threads may still read.
    weakref.finalize(memory, libc.munmap, address, nbytes).atexit = False
    view = memoryview(memory).cast("B")
    return view if writable else view.toreadonly()
