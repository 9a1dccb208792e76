"""The errors that end a command with one line, or cost a GPU or a source."""

from __future__ import annotations


class GpuExporterError(Exception):
    """An error that is the user's to mend: the message is one line that names the thing and the cure."""


class GpuLost(GpuExporterError):
    """A GPU stopped answering: costs that GPU. `reason` is one of lost, reset_required, unknown, gone."""

    def __init__(self, message: str, reason: str = "lost") -> None:
        super().__init__(message)
        self.reason = reason


class SourceLost(GpuExporterError):
    """The library stopped answering: costs the source, which reconnects. `reason` is a word for a label."""

    def __init__(self, message: str, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason
