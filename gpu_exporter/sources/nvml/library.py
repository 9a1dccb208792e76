"""Gives NVIDIA's library back. The bindings keep it for good, but a new driver comes with a new library."""

from __future__ import annotations

import _ctypes

import pynvml


def shut_down(times: int) -> None:
    """Undo that many nvmlInit and unload the library, so that the next one loads what is then on disk. Never raises.

    No call may be inside the library. On an H200 (driver 580) nvmlShutdown closes every device file, of several
    nvmlInit only the last one.
    """
    undone = failed = 0
    for _ in range(times):
        try:
            pynvml.nvmlShutdown()
            undone += 1
        except pynvml.NVMLError as error:
            # It keeps no state then; whatever else may have failed, code that still has state stays loaded.
            undone += error.value == pynvml.NVML_ERROR_UNINITIALIZED
            failed += 1
    if undone == times:
        _unload(failed)


def _unload(uncounted: int) -> None:
    """Forget and close the library, unless someone else in this process uses the bindings, too, or they are others than
    those that this knows. They don't count down when nvmlShutdown fails: `uncounted` times."""
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
