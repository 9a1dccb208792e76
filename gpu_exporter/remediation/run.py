"""Run the controller until it is stopped, or explain what it would do with one node."""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from gpu_exporter.io.user_text import address, duration
from gpu_exporter.kubernetes.client import server_address
from gpu_exporter.kubernetes.writer import KubernetesWriter
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import ledger as lease
from gpu_exporter.remediation.announce import Announcer, described
from gpu_exporter.remediation.cluster import KubernetesCluster, ask
from gpu_exporter.remediation.controller import Controller
from gpu_exporter.remediation.evidence import Evidence
from gpu_exporter.remediation.leader import RENEW_SECONDS, Leader
from gpu_exporter.remediation.metrics import ControllerMetrics
from gpu_exporter.remediation.server import Hints, controller_server
from gpu_exporter.remediation.settings import Settings

log = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The pause after a failed cycle (seconds): it doubles with each failure.
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
# How often a controller that does not lead looks at the Lease, and the least time between two cycles (seconds).
FOLLOW_SECONDS, LEAST_SECONDS = 5.0, 5.0


def client(account: Path, environ: Mapping[str, str]) -> KubernetesWriter:
    """Return a client of the cluster that this pod runs in; close it. Raises GpuExporterError outside a cluster."""
    return KubernetesWriter(*server_address(environ, "the remediation controller runs only"), account)


def controller(settings: Settings, metrics: ControllerMetrics, api: KubernetesWriter) -> Controller:
    """Return a controller that uses this client."""
    cluster = KubernetesCluster(api, settings)
    identity = f"{socket.gethostname()}_{random.SystemRandom().randrange(1 << 32):08x}"
    leader = Leader(cluster, settings.namespace, settings.lease, identity)
    announcer = Announcer(cluster, metrics, settings.notify, identity, events=settings.events)
    return Controller(
        cluster,
        settings,
        leader,
        lambda node, addresses, pool: ask(settings.exporters, node, addresses, pool),
        announcer,
    )


def run(
    settings: Settings, stop: threading.Event, account: Path = ACCOUNT, environ: Mapping[str, str] = os.environ
) -> None:
    """Run until `stop` is set. Raises GpuExporterError if it cannot start."""
    metrics, hints = ControllerMetrics(), Hints()
    token_file = Path(settings.webhook_token_file) if settings.webhook_token_file else None
    with closing(client(account, environ)) as api:
        running = controller(settings, metrics, api)
        server = controller_server(address(settings.address), metrics, hints, token_file, settings.proxies)
        server.start()
        modes = ", ".join(f"{pool.name}: {pool.mode.value}" for pool in settings.pools)
        log.info("remediation controller %s on port %d; %s", running.leader.identity, server.port, modes)
        try:
            _Loop(running, metrics, hints, duration(settings.interval)).run(stop)
        finally:
            server.stop()
            try:
                running.leader.stop()
            except LookupFailed as error:
                log.warning("the Lease is not released: %s", error)


class _Loop:
    """Runs cycles: all exporters every `interval` seconds, those of hinted and draining nodes in between."""

    def __init__(self, running: Controller, metrics: ControllerMetrics, hints: Hints, interval: float) -> None:
        self._controller, self._metrics, self._hints, self._interval = running, metrics, hints, interval
        self._known: Mapping[str, Evidence] = {}
        self._draining: frozenset[str] = frozenset()
        self._full_at = float("-inf")
        self._wait = 0.0
        self._reason = ""

    def run(self, stop: threading.Event) -> None:
        """Run cycles until `stop` is set."""
        threading.Thread(target=self._wake_at_end, args=(stop,), name="wake", daemon=True).start()
        while not stop.is_set():
            began = time.monotonic()
            try:
                seconds = self._step(began)
                self._wait, self._reason = 0.0, ""
            except LookupFailed as error:
                seconds = self._failed(error)
            self._metrics.lead(leads=self._controller.leader.leads)
            stop.wait(min(LEAST_SECONDS, seconds) * random.uniform(0.8, 1.0))
            self._hints.wanted.wait(max(0.0, seconds - (time.monotonic() - began)))

    def _wake_at_end(self, stop: threading.Event) -> None:
        stop.wait()
        self._hints.wanted.set()

    def _step(self, now: float) -> float:
        """Do what is due; return for how many seconds nothing is. Raises LookupFailed."""
        leader, hinted = self._controller.leader, self._hints.take() | self._draining
        left = self._full_at + self._interval - now
        # A hinted cycle does not put off the next full one, so just before it, it is the full one.
        full = left <= (LEAST_SECONDS if hinted else 0.0)
        if leader.leads and not full and not hinted:
            leader.renew()
            return min(RENEW_SECONDS, left)
        observed = self._controller.cycle(None if full else hinted, self._known)
        if observed.plan is None:
            self._known, self._draining, self._full_at = {}, frozenset(), float("-inf")
            return FOLLOW_SECONDS
        self._known, self._draining = observed.evidence, observed.draining
        self._metrics.cycled.set_to_current_time()
        if full:
            self._full_at, left = now, self._interval
        return min(LEAST_SECONDS if self._draining else RENEW_SECONDS, left)

    def _failed(self, error: LookupFailed) -> float:
        """Log and count a failed cycle; return for how many seconds to wait."""
        self._controller.leader.lose()
        self._metrics.errors.labels(error.reason).inc()
        if error.reason not in (self._reason, "conflict"):
            log.warning("%s", error)
        self._reason = error.reason
        self._wait = min(LONGEST_WAIT, max(FIRST_WAIT, 2 * self._wait, error.retry_after))
        return self._wait


def explain(
    settings: Settings, name: str, account: Path = ACCOUNT, environ: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """Return what the controller would do with a node now, in a line for people and as JSON. It writes nothing.

    Raises GpuExporterError.
    """
    with closing(client(account, environ)) as api:
        running = controller(settings, ControllerMetrics(), api)
        try:
            item = running.cluster.lease()
            running.leader.ledger = lease.read(item) if item else lease.Ledger()
            observed = running.observe(None, {})
        except LookupFailed as error:
            raise GpuExporterError(error.message, fix=error.fix) from error
    each = next((one for one in observed.assessed if one.node.name == name), None)
    if each is None or observed.plan is None:
        fix = "check its name, the selectors of the pools, and whether it has GPUs or an exporter"
        raise GpuExporterError(f"node {name} belongs to no pool", fix=fix)
    decision = observed.plan.decisions[name]
    words = f"{name}: {decision.verb.value}: {decision.reason.value}: {decision.words}"
    return words, json.dumps(described(each, decision, observed.plan, time.time()), indent=2)
