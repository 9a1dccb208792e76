"""Loads and unloads NVIDIA's library.

The bindings would keep it for the life of the process, but a new driver comes with a new library.
"""

from __future__ import annotations

import _ctypes

import pynvml


def load() -> None:
    """Load the library, or count another use of it. Raises NVMLError."""
    pynvml.nvmlInit()


def release(times: int) -> None:
    """Undo that many `load`s, then unload the library if nothing uses it any more. Never raises.

    No call may be inside the library. On an H200 (driver 580), nvmlShutdown closes every device file; after several
    nvmlInit, only the last nvmlShutdown does.
    """
    undone = failed = 0
    for _ in range(times):
        try:
            pynvml.nvmlShutdown()
            undone += 1
        except pynvml.NVMLError as error:
            # After this error the library has no state. After any other error it may have some, and must stay loaded.
            undone += error.value == pynvml.NVML_ERROR_UNINITIALIZED
            failed += 1
    if undone == times:
        _unload(failed)


def _unload(uncounted: int) -> None:
    """Close the library and clear it in the bindings, so that the next `load` reads the one that is then on disk.

    Does nothing if another user of the bindings in this process has the library loaded, or if the bindings lack what
    this relies on. The bindings do not count down when nvmlShutdown fails, which it did `uncounted` times.
    """
    lock = getattr(pynvml, "libLoadLock", None)
    cache = getattr(pynvml, "_nvmlGetFunctionPointer_cache", None)
    close = getattr(_ctypes, "dlclose", None)
    if lock is None or cache is None or close is None or not hasattr(pynvml, "_nvmlLib_refcount"):
        return
    with lock:
        library = getattr(pynvml, "nvmlLib", None)
        if library is None or pynvml._nvmlLib_refcount > uncounted:
            return
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = None, 0
        cache.clear()
    close(library._handle)
