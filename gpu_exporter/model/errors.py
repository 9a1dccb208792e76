"""Errors that end a command with one line, or that concern one GPU or one source."""

from __future__ import annotations


class GpuExporterError(Exception):
    """An error that the user can fix: its text is one line that names the cause and the fix.

    `message` is the cause and `fix` what to do about it, if that is given apart.
    """

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(with_fix(message, fix))
        self.message, self.fix = message, fix


class WrongUsage(GpuExporterError):
    """What the user gave cannot be used: a value, or options that contradict each other."""


class GpuLost(GpuExporterError):
    """A GPU stopped answering; affects only that GPU.

    `reason` is a label value of `gpu_down_reason`, such as lost, reset_required, gone, stalled or ended.
    """

    def __init__(self, message: str, reason: str = "lost") -> None:
        super().__init__(message)
        self.reason = reason


class GpuNotSampled(GpuExporterError):
    """What a GPU is read through has no new sample of it, which says nothing about the GPU."""


class SourceLost(GpuExporterError):
    """The library stopped answering; the source reconnects. `reason` is a label value."""

    def __init__(self, message: str, reason: str = "unknown", *, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.reason = reason


def with_fix(message: str, fix: str) -> str:
    """Return a message and what to do about it, in one line."""
    return f"{message}: {fix}" if fix else message
