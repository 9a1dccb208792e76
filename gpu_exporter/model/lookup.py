"""A cached answer of a remote party (kubelet, API server, files of jobs), with its age and error."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)


T = TypeVar("T")


# What was told longer ago is not true of the pods of today any more.
KEPT_SECONDS = 600.0


# The longest wait after a failure: kubelet is back soon after a restart.
LONGEST_WAIT = 5.0


INTERNAL = "internal_error"


class LookupFailed(Exception):
    """A teller has no answer. `reason` is a word for a label, the message one line that names the cure.

    Where only a part of the answer is missing, `rest` is the other.
    """

    def __init__(self, reason: str, message: str, rest: Any = None) -> None:
        super().__init__(message)
        self.reason, self.rest = reason, rest


def brief(text: object) -> str:
    """What others say, as a part of one line."""
    return " ".join(str(text).split())[:200]


class Lookup(Generic[T]):
    """Written by the teller's thread, read by any. What is told again the same stays the same object."""

    def __init__(self, source: str, nothing: T) -> None:
        self.source = source
        self.up = False
        self.told_at: float | None = None
        self.errors: Counter[str] = Counter()
        self.heard = threading.Event()
        self._nothing = self._value = nothing
        self._reason = ""

    def tell(self, value: T) -> None:
        """An answer came; said in the log if that is news."""
        if value != self._value:
            self._value = value
        self.told_at = time.monotonic()
        if self._reason or not self.heard.is_set():
            log.info("attribution: %s answers", self.source)
        self.up, self._reason = True, ""
        self.heard.set()

    def alive(self) -> None:
        """What was told still holds."""
        self.told_at = time.monotonic()

    def fail(self, error: LookupFailed, rest: T | None = None) -> None:
        """No answer came, or only the `rest` of it; said in the log if that is news."""
        if rest is not None:
            self._value, self.told_at = rest, time.monotonic()
        self.errors[error.reason] += 1
        if error.reason != self._reason:
            log.warning("attribution: %s: %s", self.source, error)
        self.up, self._reason = False, error.reason
        self.heard.set()

    def broke(self) -> None:
        """An error of ours is being handled; said in the log, with where it was, if that is news."""
        self.errors[INTERNAL] += 1
        if self._reason != INTERNAL:
            log.exception("attribution: %s: unexpected error, please report it", self.source)
        self.up, self._reason = False, INTERNAL
        self.heard.set()

    @property
    def age(self) -> float | None:
        """Seconds since the last answer; None if there was none."""
        return None if self.told_at is None else time.monotonic() - self.told_at

    @property
    def value(self) -> T:
        """What was told last, unless that is too long ago."""
        age = self.age
        return self._value if age is not None and age < KEPT_SECONDS else self._nothing
