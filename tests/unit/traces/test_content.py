"""Sources of traces: compressed, piped, damaged, as patterns and as URLs."""

from __future__ import annotations

import bz2
import gzip
import http.server
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces import content
from gpu_exporter.traces.content import expanded, is_stream, opened
from gpu_exporter.traces.reader import read
from tests.support.traces import SyntheticTrace

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b"[1, 2]"
GZIP, ZSTD = gzip.compress(TEXT, mtime=0), zstd.compress(TEXT)


def _example() -> bytes:
    trace = SyntheticTrace(rank=3, world_size=8)
    for number in range(50):
        trace.device(100 * number + 50, 20)
    return json.dumps(trace.content()).encode()


@pytest.mark.parametrize(
    ("packed", "unpacked", "truncated", "damage"),
    [
        (TEXT, TEXT, False, ""),
        (b"", b"", False, ""),
        (GZIP, TEXT, False, ""),
        (GZIP + GZIP, TEXT * 2, False, ""),
        (GZIP[:-1], TEXT, True, ""),
        (GZIP[:-4] + b"oops", b"", False, "damaged gzip: Error -3 while decompressing data: incorrect length check"),
        (GZIP + b"oops", TEXT, False, "damaged gzip: Error -3 while decompressing data: incorrect header check"),
        (ZSTD, TEXT, False, ""),
        (ZSTD + ZSTD, TEXT * 2, False, ""),
        (zstd.compress(TEXT * 99)[:-1], b"", True, ""),
        (ZSTD + b"oops", TEXT, False, "damaged zstd: Unable to decompress Zstandard data: Unknown frame descriptor"),
        (zstd.compress(TEXT, options={zstd.CompressionParameter.window_log: 31}), TEXT, False, ""),
    ],
)  # fmt: skip
def test_packed_files(tmp_path: Path, packed: bytes, unpacked: bytes, truncated: bool, damage: str) -> None:
    """Members and frames follow each other; damage and truncation are told apart."""
    path = tmp_path / "t"
    path.write_bytes(packed)
    with opened(str(path)) as found:
        assert found.read() == unpacked
        assert (found.truncated, found.damage) == (truncated, damage)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress], ids=("plain", "gzip", "zstd"))
@pytest.mark.parametrize("size", [7, 4096, 1 << 20])
def test_blocks_do_not_change_the_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, pack: Callable[[bytes], bytes]
) -> None:
    for name in ("CHUNK_BYTES", "PACKED_BYTES", "HEAD_BYTES"):
        monkeypatch.setattr(content, name, size)
    path = tmp_path / "t"
    path.write_bytes(pack(_example()))
    with opened(str(path)) as found:
        assert found.head == _example()[: len(found.head)]
        assert found.read() == _example()


def test_a_pipe_that_is_written_slowly_is_one_source(tmp_path: Path) -> None:
    """Compressed or not; its size is not known."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    packed = gzip.compress(_example(), mtime=0)
    assert is_stream(str(fifo))

    def write() -> None:
        with fifo.open("wb", buffering=0) as file:
            for at in range(0, len(packed), 100):
                file.write(packed[at : at + 100])

    thread = threading.Thread(target=write)
    thread.start()
    totals: set[int] = set()
    trace = read(fifo, lambda _, total: totals.add(total))
    thread.join()
    assert (len(trace.device_events), totals) == (50, {0})


def test_a_database_from_a_pipe_is_copied(tmp_path: Path) -> None:
    """SQLite seeks."""
    path, fifo = tmp_path / "r.sqlite", tmp_path / "fifo"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (x)")
    database.close()
    os.mkfifo(fifo)
    thread = threading.Thread(target=lambda: fifo.write_bytes(path.read_bytes()))
    thread.start()
    with opened(str(fifo)) as found, found.file() as copy:
        assert copy.read_bytes() == path.read_bytes()
        assert copy != path
    thread.join()
    assert not copy.exists()
    with opened(str(path)) as found, found.file() as same:
        assert same == path


@pytest.mark.parametrize(
    ("source", "stream"),
    [("-", True), ("/dev/stdin", True), ("/dev/zero", True), ("trace.json", False), ("s3://b/trace.json", False)],
)
def test_which_sources_only_this_process_can_read(source: str, stream: bool) -> None:
    assert is_stream(source) is stream


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are in order; a name that exists is no pattern; what matches nothing or twice is an error."""
    monkeypatch.chdir(tmp_path)
    for name in ("rank10.json", "rank9.json", "rank[1].json", "b.txt"):
        Path(name).touch()
    assert expanded(["rank*.json"]) == ["rank9.json", "rank10.json", "rank[1].json"]
    assert expanded(["rank[1].json", "b.txt", "absent.json"]) == ["rank[1].json", "b.txt", "absent.json"]
    assert expanded([f"file://{tmp_path}/b.*"]) == [f"{tmp_path}/b.txt"]
    with pytest.raises(GpuExporterError, match=r"x\*: no file matches"):
        expanded(["x*"])
    with pytest.raises(GpuExporterError, match=r"rank9\.json is given twice"):
        expanded(["rank9.json", "rank*.json"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.nsys-rep", b"", r"Nsight Systems: analyse what `nsys export --type sqlite .*/r.nsys-rep`"),
        ("r.ncu-rep", b"", r"`ncu --import .*/r.ncu-rep --csv --page raw"),
        ("renamed", b"NVR\0\x01", "a report of Nsight Compute"),
        ("snapshot", pickle.dumps({"segments": []}), r"a pickle.*torch.cuda._memory_viz trace_plot .*/snapshot"),
        ("t.zip", b"PK\x03\x04", r"`unzip -p .*/t.zip \| gpu-exporter trace analyze -`"),
        ("t.bz2", bz2.compress(b"{}"), r"`bzip2 -dc .*/t.bz2 \| gpu-exporter trace analyze -`"),
        ("k k.csv", b"Time (%)", r"`gpu-exporter trace top '.*/k k.csv'`"),
        ("cut.gz", gzip.compress(b"x", mtime=0)[:5], "the gzip data is truncated: copy the file again"),
        ("cut.zst", zstd.compress(TEXT * 99)[:-3], "the zstd data is truncated: copy the file again"),
        ("no.json", b'{"a": 1}', "no list of traceEvents"),
    ],
)  # fmt: skip
def test_what_is_no_trace_says_what_to_do(tmp_path: Path, name: str, text: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    with pytest.raises(GpuExporterError, match=f"^{path}: .*{message}"):
        read(path)


def test_without_the_packages_of_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line names the extra and the package."""
    for name in ("backports", "compression", "fsspec"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "t.zst").write_bytes(ZSTD)
    with pytest.raises(GpuExporterError, match=r"needs the extra zstd: pip install backports.zstd$"):
        read(tmp_path / "t.zst")
    with pytest.raises(GpuExporterError, match=r"^s3://b/t.json: URLs need the extra distributed: pip install fsspec$"):
        read("s3://b/t.json")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a folder."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_urls(tmp_path: Path, server: str) -> None:
    """Files of a web server, by name and by pattern; what it does not have is one line."""
    for rank in (2, 10):
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(_example(), mtime=0))
    assert expanded([f"{server}/rank*.json.gz"]) == [f"{server}/rank2.json.gz", f"{server}/rank10.json.gz"]
    assert len(read(f"{server}/rank2.json.gz").device_events) == 50
    with pytest.raises(GpuExporterError, match=f"^{server}/absent.json: not found"):
        read(f"{server}/absent.json")
    with pytest.raises(GpuExporterError, match=r"^http://127.0.0.1:1/t.json: not found \(Cannot connect"):
        read("http://127.0.0.1:1/t.json")
    with pytest.raises(GpuExporterError, match=r"^http://127.0.0.1:1/t\*.json: "):
        expanded(["http://127.0.0.1:1/t*.json"])
    with pytest.raises(GpuExporterError, match=r"^nowhere://x/t.json: Protocol not known: nowhere$"):
        read("nowhere://x/t.json")


@pytest.mark.parametrize("command", ["cat {0} | {1} -", "{1} - < {0}", "{1} <(cat {0})", "{1} /dev/stdin < {0}"])
def test_shells(tmp_path: Path, command: str) -> None:
    """Pipes, redirections and process substitutions."""
    path = tmp_path / "t.json"
    path.write_bytes(_example())
    analyze = f"{sys.executable} -m gpu_exporter trace analyze --json"
    ran = subprocess.run(["bash", "-c", command.format(path, analyze)], capture_output=True, text=True)
    assert ran.stderr == ""
    assert json.loads(ran.stdout)["ranks"][0]["rank"] == 3
