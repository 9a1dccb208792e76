"""The error that ends a command with an exit code of its own."""

from __future__ import annotations

import click


class CommandFailure(click.ClickException):
    """An error that ends a command with one line and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
