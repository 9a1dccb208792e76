"""Errors that end a command with one line, or that concern one GPU or one source."""

from __future__ import annotations


class GpuExporterError(Exception):
    """An error that the user can fix: the message is one line that names the cause and the fix."""


class GpuLost(GpuExporterError):
    """A GPU stopped answering; affects only that GPU. `reason` is one of lost, reset_required, unknown, gone."""

    def __init__(self, message: str, reason: str = "lost") -> None:
        super().__init__(message)
        self.reason = reason


class SourceLost(GpuExporterError):
    """The library stopped answering; the source reconnects. `reason` is a label value."""

    def __init__(self, message: str, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason
