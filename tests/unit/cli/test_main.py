"""One line for each error that nobody foresaw."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpu_exporter.cli.main import unexpected


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "out of memory"),
        (ValueError("field 'target' is required for AnnAssign"), "out of memory"),  # Python's parser without memory
        (SystemError("<built-in function compile> returned NULL without setting an exception"), "out of memory"),
        (SystemError("error return without exception set"), "out of memory"),
        (
            ImportError("libcrypto.so.3: failed to map segment from shared object"),
            "libcrypto.so.3: failed to map segment from shared object: raise the memory limit",
        ),
        (RuntimeError("can't start new thread"), "cannot start a thread"),
        (ValueError("a\nb\x1b"), "unexpected error: ValueError: a b\N{REPLACEMENT CHARACTER}; please report it"),
    ],
)
def test_an_unforeseen_error_is_one_line(error: Exception, line: str) -> None:
    assert unexpected(error).startswith(line)
    assert "\n" not in unexpected(error)


def test_closed_standard_output_is_no_error() -> None:
    """As under some daemons: what nobody reads is not written."""
    command = ["sh", "-c", 'exec "$0" -m gpu_exporter metrics xid >&-', sys.executable]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
