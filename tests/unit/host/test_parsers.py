"""Files of the kernel are parsed exactly, whatever a process calls itself, and damaged ones yield nothing."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.host import cgroup, procfs

STAT = (
    b"4711 (%s) D 17 4711 4711 0 -1 4194304 100 0 23 0 250 50 7 8 20 0 1 0 12345 1 2 3"
    b" 0 0 0 0 0 0 0 0 0 0 0 0 17 5 0 0 9\n"
)


@given(st.binary(max_size=20))
def test_a_process_name_may_have_any_bytes(name: bytes) -> None:
    """Also `)`, blanks, newlines and what looks like further fields."""
    assert procfs.stat(STAT % name) == (name, b"D", 17, 23, 300 / procfs.TICKS, 12345, 5)


@given(st.binary(max_size=300))
def test_damaged_files_yield_nothing_and_never_fail(content: bytes) -> None:
    """Every parser returns a value or nothing."""
    for parse in (procfs.stat, procfs.schedstat, procfs.status, procfs.read_bytes, procfs.pressure, cgroup.throttling):
        parse(content)
    procfs.cpu_list(content), procfs.children(content), procfs.busy_seconds(content), cgroup.paths(content)


LONG = b"1" * 5000


@pytest.mark.parametrize(
    ("parse", "content"),
    [
        (procfs.stat, STAT.replace(b" 23 ", b" %s " % LONG) % b"x"),
        (procfs.status, b"Uid: %s 0 0 0\n" % LONG),
        (procfs.status, b"Uid: 0\nVmSwap: %s kB\n" % LONG),
        (procfs.read_bytes, b"read_bytes: %s\n" % LONG),
        (cgroup.throttling, b"nr_periods %s\nnr_throttled 3\n" % LONG),
        (
            lambda content: [*procfs.children(content), *procfs.busy_seconds(b"cpu0 " + content * 9)] or None,
            LONG + b" ",
        ),
    ],
)
def test_a_number_that_the_kernel_cannot_have_is_none(parse: Callable[[bytes], object], content: bytes) -> None:
    """Python would refuse to convert one of so many digits."""
    assert parse(content) is None


@given(st.integers(0, len(STAT) - 60))
def test_a_truncated_stat_yields_nothing(length: int) -> None:
    """A read of a process that ends meanwhile may be short."""
    assert procfs.stat((STAT % b"x")[:length]) is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"1500000000 2000000000 17\n", (1.5, 2.0)),
        (b"0 0 3\n", (0.0, 0.0)),
        (b"0 0 0\n", None),  # scheduler statistics are off
        (b"1 2\n", None),
        (b"", None),
        (b"1" * 400 + b" 2 3", None),
    ],
)
def test_schedstat(content: bytes, expected: tuple[float, float] | None) -> None:
    """Nanoseconds on a CPU and in the run queue."""
    assert procfs.schedstat(content) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"0-3,8\n", {0, 1, 2, 3, 8}),
        (b"5", {5}),
        (b"", set()),
        (b"\n", set()),
        (b"0-99999999999", set()),
        (b"a-b", set()),
        (b"-1", set()),
        (b"0" * 5000 + b"1", set()),
    ],
)
def test_lists_of_cpus(content: bytes, expected: set[int]) -> None:
    """A list that is damaged, or absurdly long, is empty."""
    assert procfs.cpu_list(content) == expected


def test_busy_time_leaves_out_idle_and_waiting_for_storage() -> None:
    """User, nice, system, interrupts and steal are busy; guest time is part of user time."""
    content = b"cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 10 20 5000 700 3 4 63 50 0\ncpu1 1 0 0 1 1 0 0 0 0 0\nintr 1 2\n"

    assert procfs.busy_seconds(content) == {0: 200 / procfs.TICKS, 1: 1 / procfs.TICKS}


def test_pressure_is_the_total_of_some() -> None:
    """In seconds; the file has microseconds."""
    content = b"some avg10=1.53 avg60=1.20 avg300=1.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"

    assert procfs.pressure(content) == 2.5


def reader(files: dict[str, bytes]) -> cgroup.Read:
    """Return a function that reads these files."""

    def read(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    return read


V2 = {
    "/a/cpu.max": b"200000 100000\n",
    "/a/b/cpu.max": b"max 100000\n",
    "/a/b/c/cpu.max": b"50000 100000\n",
}
V1 = {
    "/cpu,cpuacct/a/cpu.cfs_period_us": b"100000\n",
    "/cpu,cpuacct/a/cpu.cfs_quota_us": b"150000\n",
    "/cpu,cpuacct/a/b/cpu.cfs_period_us": b"100000\n",
    "/cpu,cpuacct/a/b/cpu.cfs_quota_us": b"-1\n",
}
SEPARATE = {path.replace("/cpu,cpuacct", "/cpu"): content for path, content in V1.items()}
HYBRID = {f"/unified{path}": content for path, content in V2.items()}


@pytest.mark.parametrize(
    ("processes_cgroups", "files", "expected"),
    [
        (b"0::/a/b/c\n", V2, [("/a/b/c/cpu.stat", "", 0.5), ("/a/cpu.stat", "", 2.0)]),
        (b"0::/a/b/c\n", HYBRID, [("/unified/a/b/c/cpu.stat", "", 0.5), ("/unified/a/cpu.stat", "", 2.0)]),
        (
            b"4:cpu,cpuacct:/a/b\n1:name=systemd:/x\n",
            V1,
            [("/cpu,cpuacct/a/cpu.stat", "/cpu,cpuacct/a/cpuacct.usage", 1.5)],
        ),
        (b"2:cpuacct:/z\n1:cpu:/a/b\n0::/\n", SEPARATE, [("/cpu/a/cpu.stat", "/cpuacct/z/cpuacct.usage", 1.5)]),
        (b"0::/\n", V2, []),
        (b"0::/../../a\n", V2, []),
        (b"0::/gone (deleted)\n", V2, []),
        (b"damaged", V2, []),
    ],
)
def test_cpu_limits_of_all_levels(
    processes_cgroups: bytes, files: dict[str, bytes], expected: list[tuple[str, str, float]]
) -> None:
    """From the process's own cgroup upwards, for version 2, version 1 and hybrid hierarchies."""
    assert list(cgroup.cpu_limits(cgroup.paths(processes_cgroups), reader(files))) == expected


@pytest.mark.parametrize(
    ("content", "usage", "expected"),
    [
        (b"usage_usec 1500000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 9\n", b"", (10, 4, 1.5)),
        (b"nr_periods 10\nnr_throttled 4\nthrottled_time 9\n", b"2500000000\n", (10, 4, 2.5)),
        (b"nr_periods 10\nnr_throttled 4\n", b"", (10, 4, None)),
        (b"usage_usec 1500000\n", b"", None),  # no CPU limit was ever set
    ],
)
def test_throttling(content: bytes, usage: bytes, expected: tuple[int, int, float | None] | None) -> None:
    """Of both versions."""
    assert cgroup.throttling(content, usage) == expected
