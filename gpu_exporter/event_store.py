"""Where events outlive the process: `events.json` to go on counting from, `events.jsonl` as their history."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_exporter.events import EventLog

log = logging.getLogger(__name__)

# The history is turned over at this size, and one older file is kept.
LARGEST = 1 << 20


class EventStore:
    """A directory. What can't be written there is said in the log once, and costs nothing else."""

    def __init__(self, directory: Path) -> None:
        self._state = directory / "events.json"
        self._history = directory / "events.jsonl"
        self._written = 0.0
        self._complained = ""

    def load(self, events: EventLog) -> None:
        """Restore what is there. A file that is no state is put aside, for nothing is counted by guessing."""
        try:
            state = json.loads(self._state.read_text(encoding="utf-8"))
            events.restore(state["events"])
            self._written = float(state["written"])
        except FileNotFoundError:
            return
        except OSError as error:
            self._complain(f"{self._state}: {error.strerror}; Xids are counted from what the kernel log still has")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            aside = self._state.with_suffix(".bad")
            self._complain(f"{self._state} is not a state of this exporter: put aside as {aside.name}, counting anew")
            with contextlib.suppress(OSError):
                os.replace(self._state, aside)

    def save(self, events: EventLog, settled_before: float) -> None:
        """Write the state, whole or not at all, and events older than `settled_before` (unix time) to the history."""
        state = events.state()
        settled = [event for event in state["recent"] if self._written < event["at"] <= settled_before]
        try:
            self._state.parent.mkdir(parents=True, exist_ok=True)
            self._append(settled)
            self._written = max((event["at"] for event in settled), default=self._written)
            draft = self._state.with_suffix(".draft")
            draft.write_text(json.dumps({"written": self._written, "events": state}), encoding="utf-8")
            os.replace(draft, self._state)
        except OSError as error:
            self._complain(
                f"{self._state.parent}: {error.strerror}; Xids are not kept over a restart (see --state-dir)"
            )
        else:
            self._complained = ""

    def _append(self, events: Iterable[Mapping[str, Any]]) -> None:
        lines = "".join(json.dumps(event) + "\n" for event in events)
        if not lines:
            return
        if self._history.exists() and self._history.stat().st_size + len(lines) > LARGEST:
            os.replace(self._history, self._history.with_suffix(".jsonl.1"))
        with self._history.open("a", encoding="utf-8") as file:
            file.write(lines)

    def _complain(self, message: str) -> None:
        if message != self._complained:
            log.warning("%s", message)
        self._complained = message
