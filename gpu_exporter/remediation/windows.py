"""Maintenance windows: when new nodes may be cordoned. All times are UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MINUTES_PER_DAY = 24 * 60
_TEXT = re.compile(r"([A-Z][a-z]{2})(?:-([A-Z][a-z]{2}))? (\d\d):(\d\d)-(\d\d):(\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Window:
    """The weekdays on which it begins (0 is Monday), and when it begins and ends, in minutes since midnight.

    It ends on the next day if the end is not after the begin.
    """

    days: frozenset[int]
    begin: int
    end: int

    def contains(self, now: float) -> bool:
        """Return whether the unix time `now` is inside."""
        moment = datetime.fromtimestamp(now, timezone.utc)
        day, minute = moment.weekday(), 60 * moment.hour + moment.minute
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        today = day in self.days and minute >= self.begin
        return today or ((day - 1) % 7 in self.days and minute < self.end)


def window(text: str) -> Window:
    """Parse `Mon-Fri 08:00-18:00` or `Sat 22:00-06:00`. Raises ValueError."""
    found = _TEXT.fullmatch(text)
    if not found or found[1] not in DAYS or (found[2] or found[1]) not in DAYS:
        raise ValueError(f"{text!r} is not a window; use for example Mon-Fri 08:00-18:00 (UTC)")
    first, last = DAYS.index(found[1]), DAYS.index(found[2] or found[1])
    days = frozenset((first + step) % 7 for step in range((last - first) % 7 + 1))
    begin, end = (60 * int(found[hour]) + int(found[hour + 1]) for hour in (3, 5))
    if max(int(found[3]), int(found[5])) > 24 or max(begin, end) > MINUTES_PER_DAY or begin == MINUTES_PER_DAY:
        raise ValueError(f"{text!r} has a time that does not exist; use 00:00 to 24:00")
    if int(found[4]) > 59 or int(found[6]) > 59:
        raise ValueError(f"{text!r} has a time that does not exist; use 00:00 to 24:00")
    return Window(days, begin, end)
