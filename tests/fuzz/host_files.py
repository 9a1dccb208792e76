"""The fuzzing targets of files of /proc and cgroups, where processes choose names, and of those of NCCL Inspector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpu_exporter.host import cgroup, procfs
from gpu_exporter.host.fabric.inspector import bandwidths
from gpu_exporter.io.decoding import printable
from tests.fuzz.harness import Parser, Target
from tests.support.fakes.nccl_inspector import coll, old_coll, p2p

TOKENS = (b") R ", b"(", b"\n", b"total=", b"0-3,8", b"nr_periods ", b"0::/../..", b"18446744073709551616")


@contextmanager
def _parsers(folder: Path) -> Iterator[Parser]:
    def take(content: bytes) -> Iterable[str]:
        stat = procfs.stat(content)
        for parse in (procfs.schedstat, procfs.status, procfs.read_bytes, procfs.pressure, cgroup.throttling):
            parse(content)
        for parse_many in (procfs.cpu_list, procfs.children, procfs.busy_seconds):
            parse_many(content)
        list(cgroup.cpu_limits(cgroup.paths(content), lambda path: content))
        return [printable(stat.name.decode("utf-8", "replace"), 64)] if stat else ()

    yield Parser(take)


def _files() -> Sequence[bytes]:
    own = [Path(f"/proc/self/{name}").read_bytes() for name in ("stat", "schedstat", "status", "cgroup", "io")]
    pressure = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    return [
        *own,
        Path("/proc/stat").read_bytes(),
        pressure,
        b"nr_periods 5\nnr_throttled 3\n",
        b"50000 100000\n",
        b"0-3,8\n",
    ]


@contextmanager
def _nccl(folder: Path) -> Iterator[Parser]:
    def take(content: bytes) -> Iterable[str]:
        values, wrong = bandwidths(content)
        assert all(0 <= value <= 1e14 for value in values.values())
        return [wrong]

    yield Parser(take)


TARGETS = (
    Target("host", _files, _parsers, tokens=TOKENS),
    Target("nccl-inspector", lambda: [(coll(5) + p2p(6, "Send")).encode(), old_coll(3, 2, 7).encode()], _nccl),
)
