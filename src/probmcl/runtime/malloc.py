"""Memory that a process has used stays its own."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""What glibc's malloc.h calls them: how much free memory may stay, and how many blocks get a mapping of their own."""


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, for the next tensor of that size; says whether it could be told so.

    By default glibc gives every large block back to the system at once, and the system hands it out again page by page,
    zeroed: on a CPU that took half of the processor time of a forward pass, and a quarter of a training step's. The
    price is a fifth more memory at the peak. It concerns the whole process: the command asks for it, the library leaves
    it to whoever owns the process.
    """
    if sys.platform != "linux":
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return tell is not None and bool(tell(TRIM_THRESHOLD, 2**31 - 1)) and bool(tell(MMAP_MAX, 0))
