"""A cached answer of a remote party (kubelet, API server, files of jobs), with its age and error."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any, Generic, TypeVar

from gpu_exporter.model.errors import with_fix

log = logging.getLogger(__name__)


T = TypeVar("T")


# An older answer may be of pods that have ended.
KEPT_SECONDS = 600.0
# The longest wait after a failure: a restarted kubelet answers again soon.
LONGEST_WAIT = 5.0
INTERNAL = "internal_error"


class LookupFailed(Exception):
    """A remote party did not answer. `reason` is a label value, `message` the cause, and `fix` what to do about it.

    If only a part of the answer is missing, `rest` is the part that arrived. `retry_after` are the seconds for which
    the remote party asks not to be asked again.
    """

    def __init__(self, reason: str, message: str, rest: Any = None, *, fix: str = "", retry_after: float = 0.0) -> None:
        super().__init__(with_fix(message, fix))
        self.reason, self.message, self.fix, self.rest = reason, message, fix, rest
        self.retry_after = retry_after


class Incomplete(LookupFailed):
    """An answer of which entries were dropped, because they exceed a limit. The `rest` holds; the lookup stays up."""


class Lookup(Generic[T]):
    """The last answer, its age and the failures. One thread writes it, any thread may read it.

    After an answer that equals the last one, `value` is still the same object. `settled` is set after the first
    answer or failure.
    """

    def __init__(self, source: str, nothing: T) -> None:
        self.source = source
        self.up = False
        self.answered_at: float | None = None
        self.errors: Counter[str] = Counter()
        self.settled = threading.Event()
        self._nothing = self._value = nothing
        self._reason = ""
        self._logged_drops: dict[str, float] = {}

    def answer(self, value: T) -> None:
        """Store an answer. Log the first one, and the first one after a failure."""
        if value != self._value:
            self._value = value
        self.answered_at = time.monotonic()
        if self._reason or not self.settled.is_set():
            log.info("attribution: %s answers", self.source)
        self.up, self._reason = True, ""
        self.settled.set()

    def confirm(self) -> None:
        """Reset the age: the last answer is still valid."""
        self.answered_at = time.monotonic()

    def drop(self, error: Incomplete) -> None:
        """Count an answer of which entries were dropped; log each reason once in KEPT_SECONDS."""
        self.errors[error.reason] += 1
        now = time.monotonic()
        if now - self._logged_drops.get(error.reason, -KEPT_SECONDS) >= KEPT_SECONDS:
            self._logged_drops[error.reason] = now
            log.warning("attribution: %s: %s", self.source, error)

    def fail(self, error: LookupFailed, rest: T | None = None) -> None:
        """Record a failure, with the `rest` of an answer if there is one; log it if its reason is new."""
        if rest is not None:
            self._value, self.answered_at = rest, time.monotonic()
        self.errors[error.reason] += 1
        if error.reason != self._reason:
            log.warning("attribution: %s: %s", self.source, error)
        self.up, self._reason = False, error.reason
        self.settled.set()

    def fail_unexpectedly(self) -> None:
        """Record the exception being handled, a bug; log it with its traceback if the last failure was another."""
        self.errors[INTERNAL] += 1
        if self._reason != INTERNAL:
            log.exception("attribution: %s: unexpected error, please report it", self.source)
        self.up, self._reason = False, INTERNAL
        self.settled.set()

    @property
    def age(self) -> float | None:
        """Seconds since the last answer; None if there is none."""
        return None if self.answered_at is None else time.monotonic() - self.answered_at

    @property
    def value(self) -> T:
        """The last answer, or `nothing` if it is older than KEPT_SECONDS."""
        age = self.age
        return self._value if age is not None and age < KEPT_SECONDS else self._nothing
