"""What is served of stored profiles: the list, one with its stacks, and pprof."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from gpu_exporter.profiling.records import ProcessStacks, StackKind, Summary
from gpu_exporter.profiling.store import ProfileStore
from gpu_exporter.traces.pprof import LabelledStacks, Times, labelled

MOST_LIST_BYTES = 1 << 20
# A profile for pprof is merged of at most so many, and of stacks with at most so much text; the newest are kept.
MOST_MERGED, MOST_MERGED_TEXT = 100, 16 << 20


class ProfileViews:
    """Answers about the profiles in a store. Files are read: call it on no thread that must not wait for a disk."""

    def __init__(self, store: ProfileStore) -> None:
        self._store = store

    def newest(self) -> str:
        """Return the id of the newest profile; empty if there is none. Reads no file."""
        summaries = self._store.summaries
        return summaries[-1].id if summaries else ""

    def listed(self) -> bytes:
        """Return the profiles without stacks as JSON, the newest first; the oldest are left out at MOST_LIST_BYTES."""
        entries, size = list[bytes](), 0
        for summary in reversed(self._store.summaries):
            entry = msgspec.json.encode(summary)
            size += len(entry) + 1
            if size > MOST_LIST_BYTES:
                break
            entries.append(entry)
        return b'{"profiles":[' + b",".join(entries) + b"]}"

    def one(self, profile_id: str) -> bytes | None:
        """Return a profile with its stacks as JSON; None if there is no such profile, or only its summary."""
        summary = next((each for each in self._store.summaries if each.id == profile_id), None)
        stacks = self._store.stacks(profile_id) if summary else None
        if summary is None or stacks is None:
            return None
        return msgspec.json.encode({**summary.to_json(), "stacks": stacks})

    def pprof(self, seconds: float) -> bytes:
        """Return the profiles that ended in the last `seconds` as one for pprof: wall time of all threads.

        Its samples have the labels gpu, pid, command, rank, reason and profile. It has none if there is no profile.
        """
        since = time.time() - seconds
        recent = [each for each in self._store.summaries if each.at + each.seconds > since][-MOST_MERGED:]
        merged, groups, size = list[Summary](), list[LabelledStacks](), 0
        for summary in reversed(recent):
            added = list(self._groups(summary))
            size += sum(len(stack) for group in added for stack in group.stacks)
            if size > MOST_MERGED_TEXT:
                break
            merged.append(summary)
            groups += added
        begin = merged[-1].at if merged else since
        length = sum(each.seconds for each in merged)
        rate = merged[0].rate if merged else 0
        return labelled({"wall": groups}, Times(length, begin, 1 / rate if rate else 0.0))

    def _groups(self, summary: Summary) -> Iterator[LabelledStacks]:
        processes = {process.pid: process for process in summary.processes}
        for of_process in self._store.stacks(summary.id) or ():
            if of_process.kind is not StackKind.WALL:
                continue
            process = processes.get(of_process.pid)
            labels = {
                "gpu": _gpus(of_process),
                "pid": str(of_process.pid),
                "command": process.command if process else "",
                "rank": process.rank if process else "",
                "reason": summary.reason.value,
                "profile": summary.id,
            }
            yield LabelledStacks(of_process.stacks, {key: value for key, value in labels.items() if value})


def _gpus(stacks: ProcessStacks) -> str:
    return ",".join(map(str, stacks.gpus))
