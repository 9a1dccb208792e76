"""Following the kernel log: a pipe of packets replaces /dev/kmsg, because a read gives one record of it, too."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_exporter.events.kernel_log_entry import LogPosition
from gpu_exporter.events.kernel_log_reader import KernelLog, boot_id, unix_time

BOOT = "e88b8429-bd31-4e61-9c27-244eb56f8912"
LINE = "Nov 20 12:00:00 host kernel: [ 12.345678] NVRM: Xid (PCI:0000:03:00): {}, GPU has fallen off the bus.\n"
OTHER = "Nov 20 12:00:00 host kernel: [ 12.345678] eth0: link up\n"


def record(sequence: int, text: str = "NVRM: Xid (PCI:0000:03:00): 79, lost", priority: int = 3) -> bytes:
    """Return a record of /dev/kmsg, two seconds after boot."""
    return f"{priority},{sequence},2000000,-;{text}\n SUBSYSTEM=pci\n".encode()


class Kmsg:
    """A named pipe called kmsg in packet mode, and a procfs with the boot."""

    def __init__(self, folder: Path) -> None:
        self.path, self.procfs = folder / "kmsg", folder / "proc"
        (self.procfs / "sys/kernel/random").mkdir(parents=True)
        self.boot(BOOT)
        os.mkfifo(self.path)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that is not open loses its content
        self._writer = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        fcntl.fcntl(self._writer, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)  # packets: a read gives one write

    def boot(self, number: str) -> None:
        """Reboot."""
        (self.procfs / "sys/kernel/random/boot_id").write_text(number + "\n")

    def write(self, *records: bytes) -> None:
        """Write records, each of which is returned by one read."""
        for each in records:
            os.write(self._writer, each)

    def log(self, start: LogPosition | None = None, read: Callable[[int, int], bytes] = os.read) -> KernelLog:
        """Return a reader, with clocks an hour of wall time and a minute after boot."""
        return KernelLog(self.path, start, procfs=self.procfs, read=read, clocks=lambda: (3600.0, 60.0))

    def close(self) -> None:
        """Close the writing end."""
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture
def kmsg(tmp_path: Path) -> Iterator[Kmsg]:
    """A fake /dev/kmsg."""
    fake = Kmsg(tmp_path)
    yield fake
    fake.close()


def codes(log: KernelLog) -> list[int]:
    """Return the codes of new lines."""
    return [logged.line.code for logged in log.read()]


def test_kmsg_from_the_first_record_then_following(kmsg: Kmsg) -> None:
    """Records in the ring are read at once, later ones when they come, and none twice."""
    kmsg.write(record(7), record(8, "eth0: link up"), record(9, priority=11), record(10, "x\n KEY=1"))
    log = kmsg.log()

    (logged,) = log.read()
    assert (logged.position, logged.line.code, logged.at) == (LogPosition(BOOT, 7), 79, 3542.0)
    assert logged.line.pci == "00000000:03:00.0"
    assert (log.position, log.reason, log.missed) == (LogPosition(BOOT, 10), "", 0)
    assert log.read() == []
    kmsg.write(record(11), b"garbage", record(12))
    assert [logged.position.number for logged in log.read()] == [11, 12]
    log.close()


def test_kmsg_resumes_in_the_same_boot_only(kmsg: Kmsg) -> None:
    """Records from before a restart are not read again; those that were overwritten meanwhile are counted."""
    kmsg.write(record(7), record(8), record(11))
    log = kmsg.log(LogPosition(BOOT, 7))
    assert [logged.position.number for logged in log.read()] == [8, 11]
    assert log.missed == 2
    log.close()

    kmsg.boot("another")
    kmsg.write(record(3))
    log = kmsg.log(LogPosition(BOOT, 7))
    assert [logged.position for logged in log.read()] == [LogPosition("another", 3)]
    assert log.missed == 0
    log.close()


def test_kmsg_of_an_unknown_boot_is_read_whole(kmsg: Kmsg) -> None:
    """Without a boot id, another reader's sequence number is ignored."""
    (kmsg.procfs / "sys/kernel/random/boot_id").unlink()
    kmsg.write(record(3))
    log = kmsg.log(LogPosition("", 7))
    assert codes(log) == [79]
    log.close()
    kmsg.write(record(3), record(4))
    assert codes(log) == [79]  # but its own sequence numbers are used
    log.close()


def test_kmsg_overwritten_while_reading(kmsg: Kmsg) -> None:
    """After EPIPE, reading continues with the oldest remaining record, and lost ones are counted."""
    answers: list[bytes | OSError] = [record(5), BrokenPipeError(), record(9), BlockingIOError()]

    def read(fd: int, size: int) -> bytes:
        assert size >= 8192  # a real kernel refuses fewer reads
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    log = kmsg.log(read=read)
    assert [logged.position.number for logged in log.read()] == [5, 9]
    assert (log.missed, log.reason) == (3, "")
    log.close()


def test_kmsg_that_fails_returns_earlier_records(kmsg: Kmsg) -> None:
    """An error ends this read; the next one opens the file again and repeats no record."""
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
    """A call ends even if the log is written faster than it is read."""
    numbers = iter(range(10**9))
    log = kmsg.log(read=lambda fd, size: record(next(numbers), "noise"))
    assert log.read() == []
    assert log.position == LogPosition(BOOT, 19_999)
    log.close()


def write(path: Path, *lines: str, mode: str = "a") -> None:
    """Append to a log."""
    with path.open(mode) as file:
        file.writelines(lines)


def test_a_file_is_followed(tmp_path: Path) -> None:
    """Each complete line once, with the offset behind it; incomplete lines are awaited."""
    path = tmp_path / "kern.log"
    write(path, OTHER, LINE.format(79), LINE.format(48)[:50])
    log = KernelLog(path)

    (logged,) = log.read()
    inode = str(path.stat().st_ino)
    assert (logged.line.code, logged.at) == (79, None)
    assert logged.position == LogPosition(inode, len(OTHER + LINE.format(79)))
    assert log.read() == []
    write(path, LINE.format(48)[50:], OTHER)
    assert codes(log) == [48]
    assert log.position == LogPosition(inode, path.stat().st_size)
    log.close()


def test_a_message_of_several_lines(tmp_path: Path) -> None:
    """A GPU that does not answer when the driver starts has no XID; its message may be complete only later."""
    path = tmp_path / "kern.log"
    prefix = "2026-11-20T11:00:00Z host kernel: "
    path.write_text(
        f"{prefix}NVRM: The NVIDIA GPU 0000:b3:00.0\n{prefix}NVRM: (PCI ID: 10de:26b5) installed in it has\n"
    )
    log = KernelLog(path)
    assert log.read() == []
    with path.open("a") as file:
        file.write(f"{prefix}NVRM: fallen off the bus and is not responding to commands.\n{prefix}NVRM: loading\n")
    (entry,) = log.read()
    assert (entry.line.pci, entry.line.code, entry.at) == ("00000000:B3:00.0", 79, 1795172400.0)


def test_start_position_of_a_file(tmp_path: Path) -> None:
    """At the beginning, or behind earlier lines; a position of another or shorter file is ignored."""
    path = tmp_path / "kern.log"
    write(path, LINE.format(13), LINE.format(31))
    inode = str(path.stat().st_ino)
    starts = [None, LogPosition(inode, len(LINE.format(13)))]
    starts += [LogPosition("1", 7), LogPosition(inode, 10**6)]
    logs = [KernelLog(path, start) for start in starts]

    assert [codes(log) for log in logs] == [[13, 31], [31], [13, 31], [13, 31]]
    write(path, LINE.format(79))
    assert [codes(log) for log in logs] == [[79]] * 4
    for log in logs:
        log.close()


def test_a_long_line_is_dropped_whole(tmp_path: Path) -> None:
    """Memory stays bounded, and no part of the line is taken for a line."""
    path = tmp_path / "kern.log"
    write(path, "x" * 200_000, LINE.format(79), LINE.format(48))
    log = KernelLog(path)
    assert codes(log) == [48]
    assert log.position == LogPosition(str(path.stat().st_ino), path.stat().st_size)
    log.close()


def test_rotation(tmp_path: Path) -> None:
    """By renaming: the old file is read to its end, also while the writer still has it open, then the new one."""
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
    """By copying and truncating: reading starts again."""
    path = tmp_path / "kern.log"
    write(path, LINE.format(13), OTHER, partial)
    log = KernelLog(path)
    assert codes(log) == [13]
    write(path, LINE.format(79), mode="w")
    assert codes(log) == [79]
    log.close()


def test_a_file_that_comes_later(tmp_path: Path) -> None:
    """Until it exists, the reason says so."""
    path = tmp_path / "kern.log"
    log = KernelLog(path)
    assert log.read() == []
    assert log.reason == f"{path}: no such file or directory; in a container, mount the host's"
    write(path, LINE.format(79))
    assert codes(log) == [79]
    assert log.reason == ""
    log.close()


def test_a_big_file_is_read_in_parts(tmp_path: Path) -> None:
    """Eight MiB per call."""
    path = tmp_path / "kern.log"
    lines = 9 * 2**20 // len(OTHER)
    write(path, OTHER * lines, LINE.format(79))
    log = KernelLog(path)
    assert codes(log) == []
    assert log.position == LogPosition(str(path.stat().st_ino), 2**23 // len(OTHER) * len(OTHER))
    assert codes(log) == [79]
    log.close()


def folder(path: Path) -> None:
    """Make a folder."""
    path.mkdir()


def unix_socket(path: Path) -> None:
    """Make a socket, which cannot be opened."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [folder, os.mkfifo, unix_socket, lambda path: path.symlink_to(path)])
def test_unreadable_files(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Never an exception or a wait: one line with the file's name, and again at the next call."""
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
    """dmesg_restrict makes a read fail, a file's mode an open: the reason has the fix."""

    def refuse(fd: int, size: int) -> bytes:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / name
    path.touch()
    log = KernelLog(path, read=refuse)
    assert log.read() == []
    assert log.reason.startswith(f"{path}: operation not permitted; ")
    assert log.reason.endswith(cure)


def test_bad_paths() -> None:
    """A setting can have any value."""
    log = KernelLog(Path("a\0b"))
    assert log.read() == []
    assert "null" in log.reason
    log.close()


def test_clocks(tmp_path: Path) -> None:
    """Times of the kernel count from the boot; a boot without an id is unknown."""
    assert unix_time(2.0, now=1000.0, monotonic=10.0) == 992.0
    assert boot_id(tmp_path) == ""
    assert len(boot_id(Path("/proc"))) == 36
