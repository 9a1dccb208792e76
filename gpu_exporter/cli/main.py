"""The entry point. Every error, foreseen or not, is one line and an exit code.

It imports only the standard library until it handles errors: with too little memory, an import is what fails.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from contextlib import suppress

STDERR = 2
# How long the last line may take to be written there.
LAST_LINE_SECONDS = 1.2
# What no command returns as a result, such as "something was found" or "no GPU can be read".
UNEXPECTED = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
LONGEST_ERROR = 300


def main() -> None:
    """Run the command line."""
    debug = "--debug" in sys.argv[1:]
    if sys.stdout is None:  # closed, as by some daemons: the next file that is opened would be standard output
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if not debug:
        threading.excepthook = _uncaught
    try:
        from gpu_exporter.cli.group import execute

        code, message = execute(debug=debug)
    except KeyboardInterrupt:
        _print("interrupted", INTERRUPTED)
        os._exit(INTERRUPTED)  # a thread may be stuck in a driver, whose destructors would wait for it
    except BrokenPipeError:  # `gpu-exporter once | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code, message = BROKEN_PIPE, ""
    except Exception as error:  # noqa: BLE001 - an unforeseen error is one line, too
        if debug:
            traceback.print_exc()
        code, message = UNEXPECTED, unexpected(error)
    if message:
        _print(message, code)
    sys.exit(code)


def unexpected(error: BaseException) -> str:
    """Return one line about an unforeseen error."""
    # What Python's parser and compiler say if an allocation fails, also while a module is imported.
    of_parser = isinstance(error, ValueError) and " is required for " in str(error) and str(error).startswith("field '")
    of_compiler = isinstance(error, SystemError) and " without " in str(error) and "exception" in str(error)
    if isinstance(error, MemoryError) or of_parser or of_compiler:
        return "out of memory: raise the memory limit of this process (ulimit -v) or of its container"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return (
            "cannot start a thread: raise the limit of memory or of threads (ulimit -v, ulimit -u, or the container's)"
        )
    if isinstance(error, ImportError) and "failed to map segment" in str(error):
        return (
            f"{_one_line(str(error))}: raise the memory limit of this process (ulimit -v) or of its container; if the"
            " library is on a file system that is mounted with noexec, move it"
        )
    line = _one_line(f"{type(error).__name__}: {error}")
    return f"unexpected error: {line}; please report it with the traceback that --debug shows"


def _one_line(text: str) -> str:
    short = " ".join(text.split())[:LONGEST_ERROR]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in short)


def _uncaught(args: threading.ExceptHookArgs) -> None:
    """Print one line for an error that ends a thread. `serve` logs it instead."""
    if args.exc_value is not None:
        _print(unexpected(args.exc_value), UNEXPECTED)


def _print(message: str, code: int) -> None:
    """Print a line to stderr. If its reader stalls, end the process with `code` instead of waiting for it."""
    if sys.stderr is None:  # closed: another file may have its number
        return
    line = f"gpu-exporter: {message}\n".encode(errors="replace")
    with suppress(OSError):  # its reader has ended
        # Not through sys.stderr, whose lock a stuck thread may hold.
        for start in range(0, len(line), select.PIPE_BUF):
            if not select.select((), (STDERR,), (), LAST_LINE_SECONDS)[1]:
                os._exit(code)
            os.write(STDERR, line[start : start + select.PIPE_BUF])
