"""A receiver of messages of training loops: the socket of an exporter, without the exporter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.job_receiver import Receiver
from tests.support.tools import until


class JobSocket:
    """Listens as an exporter does. `messages` are those received so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[dict[str, Any]] = []
        self._receiver = Receiver(path)

    def receive(self) -> list[dict[str, Any]]:
        """Read what has arrived, and return all messages."""
        self.messages += map(json.loads, self._receiver.receive())
        return self.messages

    def last_by_rank(self) -> dict[int, dict[str, Any]]:
        """Return the latest message of each rank."""
        return {message["rank"]: message for message in sorted(self.receive(), key=lambda message: message["elapsed"])}

    def wait(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until this many messages have arrived, and return all."""
        return until(lambda: self.receive() if len(self.receive()) >= count else [], what=f"{count} messages")

    def close(self) -> None:
        """Stop receiving and remove the socket, as an exporter does that ends."""
        self._receiver.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> JobSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def mean(message: dict[str, Any], key: str) -> float:
    """Return the mean of a histogram of a message, in seconds."""
    count = sum(message[key]["counts"])
    return float(message[key]["sum"] / count)
