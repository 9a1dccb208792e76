"""Following the kernel log: a pipe of packets stands in for /dev/kmsg, whose reads give one record each too."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_exporter.health.kernel_log_reader import KernelLog, Position, Start, boot_id, unix_time

BOOT = "e88b8429-bd31-4e61-9c27-244eb56f8912"
LINE = "Nov 20 12:00:00 host kernel: [ 12.345678] NVRM: Xid (PCI:0000:03:00): {}, GPU has fallen off the bus.\n"
OTHER = "Nov 20 12:00:00 host kernel: [ 12.345678] eth0: link up\n"


def record(sequence: int, text: str = "NVRM: Xid (PCI:0000:03:00): 79, lost", priority: int = 3) -> bytes:
    """A record of /dev/kmsg, two seconds after boot."""
    return f"{priority},{sequence},2000000,-;{text}\n SUBSYSTEM=pci\n".encode()


class Kmsg:
    """A named pipe called kmsg, in packet mode, beside a /proc that knows the boot."""

    def __init__(self, folder: Path) -> None:
        self.path, self.procfs = folder / "kmsg", folder / "proc"
        (self.procfs / "sys/kernel/random").mkdir(parents=True)
        self.boot(BOOT)
        os.mkfifo(self.path)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe forgets when nobody has it open
        self._writer = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        fcntl.fcntl(self._writer, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)  # packets: a read gives one write

    def boot(self, number: str) -> None:
        """Another boot."""
        (self.procfs / "sys/kernel/random/boot_id").write_text(number + "\n")

    def write(self, *records: bytes) -> None:
        """Each of them is what one read gives."""
        for each in records:
            os.write(self._writer, each)

    def log(self, start: Start | Position = Start.FIRST, read: Callable[[int, int], bytes] = os.read) -> KernelLog:
        """A reader of it, an hour of wall clock and a minute after boot."""
        return KernelLog(self.path, start, procfs=self.procfs, read=read, clocks=lambda: (3600.0, 60.0))

    def close(self) -> None:
        """Nobody writes any more."""
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture
def kmsg(tmp_path: Path) -> Iterator[Kmsg]:
    """A stand-in for /dev/kmsg."""
    stand_in = Kmsg(tmp_path)
    yield stand_in
    stand_in.close()


def codes(log: KernelLog) -> list[int]:
    """The codes of what is new."""
    return [logged.line.code for logged in log.read()]


def test_kmsg_from_the_first_record_then_following(kmsg: Kmsg) -> None:
    """What is in the ring comes at once, later records when they come, and nothing twice."""
    kmsg.write(record(7), record(8, "eth0: link up"), record(9, priority=11), record(10, "x\n KEY=1"))
    log = kmsg.log()

    (logged,) = log.read()
    assert (logged.position, logged.line.code, logged.at) == (Position(BOOT, 7), 79, 3542.0)
    assert logged.line.pci == "00000000:03:00.0"
    assert (log.position, log.reason, log.missed) == (Position(BOOT, 10), "", 0)
    assert log.read() == []
    kmsg.write(record(11), b"garbage", record(12))
    assert [logged.position.number for logged in log.read()] == [11, 12]
    log.close()


def test_kmsg_resumes_in_the_same_boot_only(kmsg: Kmsg) -> None:
    """What was seen before a restart is not seen again; what was overwritten meanwhile is counted."""
    kmsg.write(record(7), record(8), record(11))
    log = kmsg.log(Position(BOOT, 7))
    assert [logged.position.number for logged in log.read()] == [8, 11]
    assert log.missed == 2
    log.close()

    kmsg.boot("another")
    kmsg.write(record(3))
    log = kmsg.log(Position(BOOT, 7))
    assert [logged.position for logged in log.read()] == [Position("another", 3)]
    assert log.missed == 0
    log.close()


def test_kmsg_from_the_end(tmp_path: Path) -> None:
    """Only what comes from now on; after a failure it doesn't go back to what was there before."""
    path = tmp_path / "kmsg"  # a file has what a pipe has not: an end to go to
    path.write_bytes(record(7))
    log = KernelLog(path, Start.END, procfs=tmp_path)
    assert log.read() == []
    log.close()
    assert log.read() == []
    with path.open("ab") as file:
        file.write(record(8))
    assert codes(log) == [79]
    assert log.missed == 0
    log.close()


def test_kmsg_of_an_unknown_boot_is_read_whole(kmsg: Kmsg) -> None:
    """Without a boot id no sequence number of another reader is believed."""
    (kmsg.procfs / "sys/kernel/random/boot_id").unlink()
    kmsg.write(record(3))
    log = kmsg.log(Position("", 7))
    assert codes(log) == [79]
    log.close()
    kmsg.write(record(3), record(4))
    assert codes(log) == [79]  # but its own are
    log.close()


def test_kmsg_overwritten_while_reading(kmsg: Kmsg) -> None:
    """EPIPE: the reader was overtaken. It goes on with the oldest record that is left, and counts what it lost."""
    answers: list[bytes | OSError] = [record(5), BrokenPipeError(), record(9), BlockingIOError()]

    def read(fd: int, size: int) -> bytes:
        assert size >= 8192  # a kernel refuses less
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    log = kmsg.log(read=read)
    assert [logged.position.number for logged in log.read()] == [5, 9]
    assert (log.missed, log.reason) == (3, "")
    log.close()


def test_kmsg_that_fails_gives_what_it_had(kmsg: Kmsg) -> None:
    """An error costs the rest of this read; the next one opens it again and says nothing twice."""
    answers: list[bytes | OSError] = [record(5), OSError(5, "Input/output error"), record(5), record(6)]

    def read(fd: int, size: int) -> bytes:
        answer = answers.pop(0) if answers else BlockingIOError()
        if isinstance(answer, OSError):
            raise answer
        return answer

    log = kmsg.log(read=read)
    assert codes(log) == [79]
    assert log.reason == f"{kmsg.path}: input/output error"
    assert [logged.position.number for logged in log.read()] == [6]
    assert log.reason == ""
    log.close()


def test_a_flood_is_read_in_parts(kmsg: Kmsg) -> None:
    """A log that is written faster than it is read doesn't keep a call for ever."""
    numbers = iter(range(10**9))
    log = kmsg.log(read=lambda fd, size: record(next(numbers), "noise"))
    assert log.read() == []
    assert log.position == Position(BOOT, 19_999)
    log.close()


def write(path: Path, *lines: str, mode: str = "a") -> None:
    """Append to a log."""
    with path.open(mode) as file:
        file.writelines(lines)


def test_a_file_is_followed(tmp_path: Path) -> None:
    """Complete lines, each once, with the offset behind it; a line is waited for until it is whole."""
    path = tmp_path / "kern.log"
    write(path, OTHER, LINE.format(79), LINE.format(48)[:50])
    log = KernelLog(path)

    (logged,) = log.read()
    inode = str(path.stat().st_ino)
    assert (logged.line.code, logged.at) == (79, None)
    assert logged.position == Position(inode, len(OTHER + LINE.format(79)))
    assert log.read() == []
    write(path, LINE.format(48)[50:], OTHER)
    assert codes(log) == [48]
    assert log.position == Position(inode, path.stat().st_size)
    log.close()


def test_a_file_starts_where_told(tmp_path: Path) -> None:
    """From the first line, from the end, or behind what was read; a position of another or a shorter file is none."""
    path = tmp_path / "kern.log"
    write(path, LINE.format(13), LINE.format(31))
    inode = str(path.stat().st_ino)
    starts: list[Start | Position] = [Start.FIRST, Start.END, Position(inode, len(LINE.format(13)))]
    starts += [Position("1", 7), Position(inode, 10**6)]
    logs = [KernelLog(path, start) for start in starts]

    assert [codes(log) for log in logs] == [[13, 31], [], [31], [13, 31], [13, 31]]
    write(path, LINE.format(79))
    assert [codes(log) for log in logs] == [[79]] * 5
    for log in logs:
        log.close()


def test_from_the_end_means_whole_lines(tmp_path: Path) -> None:
    """The rest of a line that was being written is not a line of its own, even if it looks like one."""
    path = tmp_path / "kern.log"
    write(path, "Nov 20 12:00:00 host app: ")
    log = KernelLog(path, Start.END)
    assert codes(log) == []
    write(path, "NVRM: Xid (PCI:0000:03:00): 79, forged\n", LINE.format(48))
    assert codes(log) == [48]
    log.close()


def test_a_long_line_is_dropped_whole(tmp_path: Path) -> None:
    """Memory stays bounded, and no part of the line is taken for a line."""
    path = tmp_path / "kern.log"
    write(path, "x" * 200_000, LINE.format(79), LINE.format(48))
    log = KernelLog(path)
    assert codes(log) == [48]
    assert log.position == Position(str(path.stat().st_ino), path.stat().st_size)
    log.close()


def test_rotation(tmp_path: Path) -> None:
    """Renamed and made anew: the old file is read to its end, also while the writer still has it, then the new one."""
    path, old = tmp_path / "kern.log", tmp_path / "kern.log.1"
    write(path, LINE.format(13))
    log = KernelLog(path)
    assert codes(log) == [13]

    path.rename(old)
    write(old, LINE.format(31))
    assert codes(log) == [31]
    path.touch()
    write(old, LINE.format(43))
    assert codes(log) == [43]
    write(old, LINE.format(45))
    write(path, LINE.format(48))
    assert codes(log) == [45, 48]
    write(path, LINE.format(79))
    assert codes(log) == [79]
    log.close()


@pytest.mark.parametrize("partial", ["", "half a li"])
def test_truncation(tmp_path: Path, partial: str) -> None:
    """Copied and cut to nothing: reading begins anew."""
    path = tmp_path / "kern.log"
    write(path, LINE.format(13), OTHER, partial)
    log = KernelLog(path)
    assert codes(log) == [13]
    write(path, LINE.format(79), mode="w")
    assert codes(log) == [79]
    log.close()


def test_a_file_that_comes_later(tmp_path: Path) -> None:
    """Missing at first: the reason says so, until it is there."""
    path = tmp_path / "kern.log"
    log = KernelLog(path)
    assert log.read() == []
    assert log.reason == f"{path}: no such file or directory; in a container, mount the host's"
    write(path, LINE.format(79))
    assert codes(log) == [79]
    assert log.reason == ""
    log.close()


def test_a_big_file_is_read_in_parts(tmp_path: Path) -> None:
    """Eight MiB a call."""
    path = tmp_path / "kern.log"
    lines = 9 * 2**20 // len(OTHER)
    write(path, OTHER * lines, LINE.format(79))
    log = KernelLog(path)
    assert codes(log) == []
    assert log.position == Position(str(path.stat().st_ino), 2**23 // len(OTHER) * len(OTHER))
    assert codes(log) == [79]
    log.close()


def folder(path: Path) -> None:
    """Not a file."""
    path.mkdir()


def unix_socket(path: Path) -> None:
    """Nothing that can be opened."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [folder, os.mkfifo, unix_socket, lambda path: path.symlink_to(path)])
def test_what_can_not_be_read_has_a_reason(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Never an exception, never a wait: one line that names the file, and again at the next call."""
    path = tmp_path / "kern.log"
    make(path)
    log = KernelLog(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert log.read() == []
        assert log.reason.startswith(f"{path}: ")
        assert "\n" not in log.reason
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("name", "cure"), [("kmsg", "run as root or with CAP_SYSLOG"), ("kern.log", "group read it")])
def test_without_permission(tmp_path: Path, name: str, cure: str) -> None:
    """dmesg_restrict answers a read as a file's mode does an open: the reason has the cure."""

    def refuse(fd: int, size: int) -> bytes:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / name
    path.touch()
    log = KernelLog(path, read=refuse)
    assert log.read() == []
    assert log.reason.startswith(f"{path}: operation not permitted; ")
    assert log.reason.endswith(cure)


def test_a_path_that_is_none() -> None:
    """A setting can hold anything."""
    log = KernelLog(Path("a\0b"))
    assert log.read() == []
    assert "null byte" in log.reason
    log.close()


def test_clocks(tmp_path: Path) -> None:
    """The kernel counts from boot; a boot without an id has none."""
    assert unix_time(2.0, now=1000.0, monotonic=10.0) == 992.0
    assert boot_id(tmp_path) == ""
    assert len(boot_id(Path("/proc"))) == 36
