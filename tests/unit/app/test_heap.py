"""Memory that the C library keeps, measured in a process of its own."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

GLIBC = hasattr(ctypes.CDLL(None), "malloc_info")
THREADS = """
import ctypes, threading
from gpu_exporter.app import heap
if {share}: heap.share()
together = threading.Barrier(8)
def work():
    held = bytearray(2000)
    together.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
heap.trim()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(not GLIBC, reason="another C library than glibc")
@pytest.mark.parametrize(("share", "few"), [(True, True), (False, False)])
def test_threads_share_one_arena(share: bool, few: bool) -> None:
    """Without `share`, each thread has its own arena, up to eight times the number of cores."""
    command = [sys.executable, "-c", THREADS.format(share=share)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert (said.count("<heap nr=") == 1) is few


LARGE = """
import ctypes
from gpu_exporter.app import heap
libc = ctypes.CDLL(None)
def show():
    libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
    libc.fflush(None)
if {share}: heap.share()
first = bytearray(8 << 20)
del first
show()
later = bytearray(4 << 20)
show()
"""


@pytest.mark.skipif(not GLIBC, reason="another C library than glibc")
@pytest.mark.parametrize(("share", "mapped"), [(True, 1), (False, 0)])
def test_large_blocks_are_not_kept_in_the_heap(share: bool, mapped: int) -> None:
    """Without `share`, a large block that is freed makes glibc take smaller ones from the heap."""
    command = [sys.executable, "-c", LARGE.format(share=share)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after = map(int, re.findall(r'<total type="mmap" count="(\d+)"', said))

    assert after - before == mapped
