"""Writes recordings."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import IO, Any, cast

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.sources.recording.format import FORMAT, MOST_BYTES, MOST_LINES, VERSION, beyond_limit


class RecordingWriter:
    """Writes a recording, with gzip if the name ends in .gz. With `mask`, UUIDs do not identify the machine.

    `source` is the name of the source of the values; of a replay, the one from which the replayed file was recorded.

    Every method raises GpuExporterError if the file cannot be written.
    """

    def __init__(
        self, path: Path, gpus: Sequence[Gpu], interval: float, *, source: str = "", mask: bool = False
    ) -> None:
        self._path = path
        self._bytes = self._lines = 0
        with self._write_errors():
            if path.is_fifo():  # opening it would wait for a reader
                raise GpuExporterError(f"recording {path}: not a regular file; choose another --out")
            raw = path.open("wb")
            binary = gzip.GzipFile(fileobj=raw, mode="wb") if path.suffix == ".gz" else raw
            self._files: tuple[IO[Any], ...] = (io.TextIOWrapper(cast(IO[bytes], binary), encoding="utf-8"), raw)
        self._write(
            {
                "format": FORMAT,
                "version": VERSION,
                "created": date.today().isoformat(),
                "source": source,
                "driver": gpus[0].driver if gpus else "",
                "interval_seconds": interval,
                "gpus": [
                    {
                        "gpu": gpu.index,
                        "UUID": f"GPU-00000000-0000-0000-0000-{gpu.index:012d}" if mask else gpu.uuid,
                        "device": gpu.device,
                        "modelName": gpu.model,
                        "pci_bus_id": gpu.pci_bus_id,
                    }
                    for gpu in gpus
                ],
            }
        )

    def tick(self, t: float, gpu: int, samples: Mapping[str, float]) -> None:
        """Write what one GPU read at unix time t. Values keep seven significant digits or their whole part.

        A line beyond what a reader accepts is an error, and is not written.
        """
        rounded = {name: int(v) if v == int(v) else float(f"{v:.7g}") for name, v in samples.items()}
        self._write({"t": round(t, 4), "gpu": gpu, "samples": rounded})

    def _write(self, content: Mapping[str, object]) -> None:
        line = json.dumps(content, separators=(",", ":")) + "\n"
        if self._bytes + len(line) > MOST_BYTES or self._lines + 1 > MOST_LINES:
            full = f"it is complete up to here, because {beyond_limit('unpacked')} cannot be read"
            raise GpuExporterError(f"recording {self._path}: {full}; record for a shorter time")
        self._bytes, self._lines = self._bytes + len(line), self._lines + 1
        with self._write_errors():
            self._files[0].write(line)

    def close(self) -> None:
        """Finish the file."""
        with self._write_errors():
            for file in self._files:
                file.close()

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        """Turn errors of the file system into GpuExporterError."""
        try:
            yield
        except OSError as error:
            raise GpuExporterError(f"recording {self._path}: {error.strerror or error}") from error
