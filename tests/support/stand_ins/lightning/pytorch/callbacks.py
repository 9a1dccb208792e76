"""Stands for `lightning.pytorch.callbacks`."""

from __future__ import annotations

from typing import Any


class Callback:
    """Events that do nothing."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args: None
