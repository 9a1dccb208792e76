"""Versions of the files in `--state-dir`, so that an older gpu-exporter does not overwrite what a newer one wrote.

Each file has a `version`, which rises when a change would be misread: a new field needs none, because unknown ones are
ignored. The first format had no version, and counts as 1. `events.jsonl` has the version of `events.json` beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_exporter.io.decoding import json_as


class NewerStateError(ValueError):
    """A file has the format of a newer gpu-exporter: it is left as it is."""


@dataclass(frozen=True, slots=True)
class _Versioned:
    version: int = 1


def check_version(content: bytes, known: int) -> None:
    """Raise NewerStateError if the content has a later version than the `known` one; ValueError if it is damaged."""
    found = json_as(_Versioned, content).version
    if found > known:
        raise NewerStateError(
            f"a newer gpu-exporter wrote it (version {found}, this one reads {known}): it is left as it is; upgrade"
            " gpu-exporter, or give this one another --state-dir"
        )
