"""The scrapes of a remote exporter, or the last ones of a Prometheus."""

from __future__ import annotations

import threading
import time

from gpu_exporter.diagnosis import gather, prometheus
from gpu_exporter.diagnosis.remote import Remote, exporter_url
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.diagnosis.window import FAMILIES
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError

# A Prometheus may scrape only once a minute, and a rate needs two scrapes.
LAST_SECONDS = 300.0


def of_url(remote: Remote, seconds: float | None, stop: threading.Event) -> list[Scrape]:
    """Scrape an exporter for `seconds`, or query a Prometheus for its last `seconds`. Raises GpuExporterError."""
    if prometheus.is_prometheus(remote):
        return prometheus.scrapes(remote, FAMILIES, seconds or LAST_SECONDS)
    gather.watchable(seconds or gather.WATCH_SECONDS)
    scrapes = [_scraped(remote)]
    end = time.monotonic() + (seconds or gather.WATCH_SECONDS)
    while time.monotonic() < end and not stop.wait(gather.TICK_SECONDS):
        scrape = _scraped(remote)
        if scrape.at > scrapes[-1].at:  # else it is the same collection, or the exporter's clock was set back
            scrapes.append(scrape)
    return scrapes


def _scraped(remote: Remote) -> Scrape:
    base = Remote(exporter_url(remote.url), *remote.credentials)
    try:
        return gather.stamped(parsed(base.metrics()))
    except ValueError as error:
        raise GpuExporterError(
            f"{base.url}/metrics: not Prometheus text ({printable(str(error), 120)}); give the URL of an exporter, or "
            "of a Prometheus"
        ) from error
