"""What a source of a trace contains: opened wherever it lies, decompressed, in blocks, whatever its size.

A source is the name of a file, `-` for standard input, a pipe such as `<(zstd -dc trace.json.zst)`, or the URL of an
object that fsspec can open, such as `s3://bucket/rank0.json.gz`.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import glob, has_magic
from itertools import chain
from pathlib import Path
from re import compile as pattern
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, cast

from gpu_exporter.io.file_access import open_regular
from gpu_exporter.model.errors import GpuExporterError

Progress = Callable[[int, int], None]  # bytes read, bytes of the source; 0 if that is not known

STDIN = "-"
CHUNK_BYTES = 4 << 20
PACKED_BYTES = 1 << 20
HEAD_BYTES = 4096
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Files that were compressed with `zstd --long=31` need a window of 2 GiB.
ZSTD_WINDOW = 31
ZSTD_EXTRA = "it is compressed with zstd, which needs the extra zstd: pip install backports.zstd"
URL_EXTRA = "URLs need the extra distributed: pip install fsspec"
_URL = pattern(r"(?!file:)[a-z][a-z0-9+.-]+://")
_DIGITS = pattern(r"(\d+)")
_CLIENT_ERRORS = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
)


def is_url(source: str) -> bool:
    """Return whether a source is opened through fsspec."""
    return _URL.match(source) is not None


def is_stream(source: str) -> bool:
    """Return whether only this process can read a source: standard input, a pipe, or an open file of this process."""
    if source == STDIN:
        return True
    if is_url(source):
        return False
    path = Path(source)
    with suppress(OSError):
        return path.is_fifo() or path.resolve().parts[1:2] in (("proc",), ("dev",))
    return False


def expanded(patterns: Sequence[str]) -> list[str]:
    """Return the sources that names, patterns (`rank*.json.gz`) and URLs stand for. Numbers in names are in order.

    Raises GpuExporterError if a pattern matches nothing, or if a source is given twice.
    """
    sources: list[str] = []
    for given in patterns:
        sources += _matching(given.removeprefix("file://"))
    twice = next((source for source, times in Counter(sources).items() if times > 1), None)
    if twice is not None:
        raise GpuExporterError(f"{twice} is given twice: give one file for each rank")
    return sources


def _matching(given: str) -> list[str]:
    if not has_magic(given) or (not is_url(given) and os.path.lexists(given)):
        return [given]
    if is_url(given):
        scheme = given.partition("://")[0]
        try:
            with _errors_of_fsspec():
                system, path = _fsspec().core.url_to_fs(given)
                found = [name if is_url(name) else f"{scheme}://{name}" for name in system.glob(path)]
        except (GpuExporterError, OSError) as error:
            raise GpuExporterError(f"{given}: {getattr(error, 'strerror', None) or error}") from error
    else:
        found = glob(given, recursive=True)
    if not found:
        raise GpuExporterError(f"{given}: no file matches this pattern")
    return in_order(found)


def in_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of the numbers in them: rank2 before rank10."""
    return sorted(names, key=lambda name: [(int(part), "") if part.isdigit() else (0, part) for part in _parts(name)])


def _parts(name: str) -> list[str]:
    return [part for part in _DIGITS.split(name) if part]


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise GpuExporterError(URL_EXTRA) from None
    return fsspec


@contextmanager
def _errors_of_fsspec() -> Iterator[None]:
    """Turn the errors of fsspec and of the clients that it uses into one line each."""
    try:
        yield
    except (ImportError, ValueError) as error:  # "Install s3fs to access S3", an unknown scheme
        raise GpuExporterError(_line(error)) from error
    except FileNotFoundError as error:  # its text is the URL
        raise OSError(0, f"not found ({_line(error.__cause__)})" if error.__cause__ else "not found") from error
    except _client_errors() as error:
        raise OSError(0, _line(error)) from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _client_errors() -> tuple[type[Exception], ...]:
    """Return what the clients raise that is no OSError, of the clients that are loaded."""
    return tuple(getattr(sys.modules[module], name) for module, name in _CLIENT_ERRORS if module in sys.modules)


class Content:
    """What a source contains, decompressed. It can be read once.

    `head` has its first bytes. After the last block, `truncated` says whether its compressed data ended too early, and
    `damage` what is wrong with them.
    """

    def __init__(self, file: BinaryIO, *, size: int = 0, progress: Progress | None = None, path: Path | None = None):
        self.truncated, self.damage = False, ""
        self.size = size  # bytes of the source; 0 if not known
        self.progress = progress
        self._file, self._read = file, 0
        start = self._start(file)
        self._packing, unpack = next(
            (found for magic, found in _UNPACKERS.items() if start.startswith(magic)), ("", Content._unchanged)
        )
        self._blocks = unpack(self, self._raw(start))
        self._path = None if self._packing else path
        self.head = b""
        while len(self.head) < HEAD_BYTES and (block := next(self._blocks, b"")):
            self.head += block
        self._pending = self.head

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content in blocks, about `CHUNK_BYTES` each. Raises OSError."""
        for block in chain((self._pending,) if self._pending else (), self._blocks):
            self._pending = b""
            if self.progress:
                self.progress(self._read, self.size)
            yield block

    def read(self) -> bytes:
        """Return all of it."""
        return b"".join(self)

    @contextmanager
    def file(self) -> Iterator[Path]:
        """Yield a file with the content: the source itself, or a temporary copy, for readers that seek."""
        if self._path:
            yield self._path
            return
        with NamedTemporaryFile(prefix="gpu-exporter-", suffix=".trace") as copy:
            for block in self:
                copy.write(block)
            copy.flush()
            yield Path(copy.name)

    @property
    def problem(self) -> str:
        """What is wrong with the compressed data, or empty."""
        return f"the {self._packing} data is truncated: copy the file again" if self.truncated else self.damage

    @staticmethod
    def _start(file: BinaryIO) -> bytes:
        """Return the first bytes of a file: a pipe may return fewer than it is asked for."""
        start = b""
        while len(start) < HEAD_BYTES and (more := file.read(HEAD_BYTES - len(start))):
            start += more
        return start

    def _raw(self, start: bytes) -> Iterator[bytes]:
        block = start
        while block:
            self._read += len(block)
            yield block
            block = self._file.read(PACKED_BYTES if self._packing else CHUNK_BYTES)

    def _unchanged(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        return blocks

    def _gunzipped(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        """Yield what gzip's data contain, with one or several members, as far as they are intact."""
        member, started = zlib.decompressobj(wbits=31), False
        for left in packed:
            while left:
                try:
                    block, started = member.decompress(left, CHUNK_BYTES), True
                except zlib.error as error:
                    self.damage = f"damaged gzip: {error}"
                    return
                left = member.unconsumed_tail
                if member.eof:
                    left = member.unused_data.lstrip(b"\0")
                    member, started = zlib.decompressobj(wbits=31), False
                if block:
                    yield block
        if started:
            if block := member.flush():
                yield block
            self.truncated = not member.eof

    def _unzstd(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        """Yield what zstd's data contain, with one or several frames, as far as they are intact."""
        zstd = _zstd()
        options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW}
        frame, started = zstd.ZstdDecompressor(options=options), False
        for data in packed:
            left = data
            while left or not frame.needs_input:
                try:
                    block, started = frame.decompress(left, CHUNK_BYTES), True
                except zstd.ZstdError as error:
                    self.damage = f"damaged zstd: {error}"
                    return
                left = b""
                if frame.eof:
                    left = frame.unused_data
                    frame, started = zstd.ZstdDecompressor(options=options), False
                if block:
                    yield block
        self.truncated = started


_UNPACKERS: dict[bytes, tuple[str, Callable[[Content, Iterator[bytes]], Iterator[bytes]]]] = {
    GZIP_MAGIC: ("gzip", Content._gunzipped),
    ZSTD_MAGIC: ("zstd", Content._unzstd),
}


def _zstd() -> Any:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise GpuExporterError(ZSTD_EXTRA) from None
    return zstd


@contextmanager
def opened(source: str, progress: Progress | None = None) -> Iterator[Content]:
    """Yield the content of a source. Raises OSError and GpuExporterError, without the name of the source."""
    if source == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise GpuExporterError("standard input is a terminal or closed: pipe a trace into this command")
        yield Content(sys.stdin.buffer, progress=progress)
    elif is_url(source):
        with _errors_of_fsspec(), _fsspec().open(source, "rb") as file:
            yield Content(cast(BinaryIO, file), size=getattr(file, "size", 0) or 0, progress=progress)
    else:
        path = Path(source)
        with _binary(path) as file:
            about = os.fstat(file.fileno())
            regular = stat.S_ISREG(about.st_mode)
            yield Content(file, size=about.st_size if regular else 0, progress=progress, path=path if regular else None)


def _binary(path: Path) -> BinaryIO:
    """Open a regular file or a pipe, and nothing else."""
    if path.is_fifo():
        return path.open("rb")
    return os.fdopen(open_regular(path, os.O_RDONLY), "rb")
