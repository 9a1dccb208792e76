"""Fuzzing targets: an adapter for each parser of untrusted input, with valid inputs."""

from __future__ import annotations

import gzip
import json
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import trustme

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.catalogue.xids import load as load_xids
from gpu_exporter.config import read_file
from gpu_exporter.diagnosis import diagnose, report
from gpu_exporter.diagnosis.remote_scrapes import remote_scrapes
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.diagnosis.window import FAMILIES, seen
from gpu_exporter.events.event_log import EventLog, GpuEvidence
from gpu_exporter.events.event_store import EventStore
from gpu_exporter.events.kernel_log_entry import LogEntry, LogPosition
from gpu_exporter.events.kernel_log_parser import parse, parse_kmsg
from gpu_exporter.http import web_config
from gpu_exporter.http.client import Remote
from gpu_exporter.kubernetes.client import in_cluster
from gpu_exporter.migration.files import Migration
from gpu_exporter.model.errors import GpuExporterError, GpuLost
from gpu_exporter.model.gpu import Gpu, XidEvent
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.model.metric import MetricSet, Pace
from gpu_exporter.owners import pods, resource_slices
from gpu_exporter.owners.kubelet import Kubelet
from gpu_exporter.pipeline.fields_file import FieldsFile
from gpu_exporter.sources.recording.format import load, ticks
from gpu_exporter.sources.recording.replay import ReplaySource
from tests import PACKAGED_RECORDINGS, ROOT
from tests.fuzz import host_files, hostile_text, profiles, traces
from tests.fuzz.harness import Command, Parser, Target
from tests.fuzz.servers import BodyServer, exchanged
from tests.soak.kernel_log import PREFIXES, true_line
from tests.support.fakes.apiserver import PODS, pod_object, slice_object
from tests.support.fakes.kubelet import Claim, FakeKubelet, Given, field, given, pod
from tests.support.tools import free_port, until

GPU = Gpu(0, "GPU-0", "00000000:06:00.0", "NVIDIA H200", "nvidia0", "580.1")
HASH = "$2b$04$" + "abcdefghijklmnopqrstu." * 2 + "ABCDEFGHI"
YAML_TOKENS = (
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!binary ",
    b"!!python/name:os.system ",
    b"? ",
    b"| ",
    b"- ",
    b"---\n",
    b"%TAG ",
)


def _blocks(page: str, language: str) -> list[bytes]:
    """Return the code blocks of a docs page."""
    text = (ROOT / "docs" / page).read_text()
    return [block.encode() for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


# --- configuration -----------------------------------------------------------------------------------------------


@contextmanager
def _web_config(folder: Path) -> Iterator[Parser]:
    def take(content: bytes) -> Iterable[str]:
        web_config.parse(content, folder, lambda path: b"-----BEGIN CERTIFICATE-----\n")
        return ()

    yield Parser(take)


def _web_configs() -> Sequence[bytes]:
    contents = [block for block in _blocks("security.md", "yaml") if b"basic_auth_users:" in block]
    documented = [re.sub(rb"\$2y\$10\$\S*", HASH.encode(), content) for content in contents]
    tls = {"cert_file": "a", "key_file": "b", "min_version": "TLS12", "cipher_suites": ["TLS_AES_128_GCM_SHA256"]}
    more = {
        "rate_limit": {"interval": "10ms", "burst": 5},
        "tls_server_config": {**tls, "curve_preferences": ["X25519"]},
    }
    return [*documented, json.dumps(more).encode(), f"basic_auth_users: &a\n  me: {HASH}\n".encode()]


@contextmanager
def _config(folder: Path) -> Iterator[Parser]:
    path = folder / "config.yaml"

    def take(content: bytes) -> Iterable[str]:
        path.write_bytes(content)
        read_file(path)
        return ()

    yield Parser(take, [Command(("check", "--config", str(path)), frozenset({3}))])


def _configs() -> Sequence[bytes]:
    return [
        b"interval: 300ms\nmetrics: full\naddress: 127.0.0.1:9400\nprocesses: yes\nlog-format: json\n",
        b"source: replay\nrecording: h200_workloads\nspeed: 2.5\nloop: on\ngauge-window: 30\n",
        b'{"nodes": 100, "gpus": 8, "seed": 1, "faults": "lost node-003/1 at 60s for 30s", "devices": "g:0,2-3"}\n',
        b"xid_overrides: a.yaml\nkubernetes-pod-labels: app,team.*\ndcgm_hostengine: '[::1]:5555'\nexpected_gpus: 8\n",
    ]


@contextmanager
def _fields(folder: Path) -> Iterator[Parser]:
    file = FieldsFile(Path("fields.csv"))
    yield Parser(lambda content: file.select(content)[1])


def _fields_files() -> Sequence[bytes]:
    table = (
        b"# Format: name, type, help\r\nDCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).\r\n"
        b'DCGM_FI_DEV_XID_ERRORS, gauge, "Value of the last XID, if any"\nDCGM_FI_DRIVER_VERSION, label, Driver.\n'
        b'252, DCGM_FI_DEV_FB_USED, gauge, x\nDCGM_FI_DEV_BAR1_USED_BYTES, counter, "of ""two""\nlines"\n'
    )
    return [table, *_blocks("dcgm-exporter.md", "csv")]


@contextmanager
def _rewrite(folder: Path) -> Iterator[Parser]:
    def take(content: bytes) -> Iterable[str]:
        migration = Migration()
        migration.migrate(content.decode())
        return [reason for _, reasons in migration.problems for reason in reasons]

    yield Parser(take)


def _dashboards() -> Sequence[bytes]:
    lines = (ROOT / "tests" / "data" / "peer_queries.jsonl").read_text().splitlines()
    queries = [json.loads(line)["query"] for line in lines]
    variable = {
        "type": "query",
        "definition": "",
        "query": "label_values(nvidia_smi_index, job)",
        "regex": '/uuid="(.)',
    }
    panels = [{"targets": [{"expr": query, "legendFormat": "{{uuid}}"}], "transformations": [{}]} for query in queries]
    boards = [{"panels": panels[each : each + 5], "templating": {"list": [variable]}} for each in range(0, 60, 5)]
    rules = [{"alert": "A", "expr": query, "annotations": {"a": "{{ $labels.uuid }}"}} for query in queries[-5:]]
    files = [json.dumps(board) for board in boards]
    return [each.encode() for each in (*files, f"groups:\n- name: a\n  rules: {json.dumps(rules)} # all\n")]


# --- files -------------------------------------------------------------------------------------------------------


def _event_log() -> EventLog:
    return EventLog(load_xids(None), lambda pci: GpuEvidence(GPU, {}) if pci == GPU.pci_bus_id else None)


@contextmanager
def _state(folder: Path) -> Iterator[Parser]:
    """Load, expose and save a state. Whatever the file contains, the exporter starts."""
    directory, saved = folder / "state", folder / "saved"
    directory.mkdir()

    def take(content: bytes) -> Iterable[str]:
        (directory / "events.json").write_bytes(content)
        events = _event_log()
        EventStore(directory).load(events)
        events.add_driver_xids([XidEvent(time.time(), GPU.pci_bus_id, 79)])
        events.samples([GPU], nvml_up=True)
        events.problems()
        json.dumps(events.recent(), allow_nan=False)
        EventStore(saved).save(events, time.time())
        return ()

    yield Parser(take)


def _states() -> Sequence[bytes]:
    events, rng = _event_log(), Random(1)
    events.registered(GPU, 100.0)
    events.add_driver_xids([XidEvent(150.0 + code, GPU.pci_bus_id, code) for code in (31, 79, 79)])
    for number in range(20):
        events.add_kernel_log_entry(LogEntry(LogPosition("boot", number), 160.0, true_line(rng)[1]), 160.0 + number)
    events.position = LogPosition("6f7b", 1234)
    empty = _event_log()
    return [json.dumps({"events": log.state()}).encode() for log in (events, empty)]


@contextmanager
def _recording(folder: Path) -> Iterator[Parser]:
    """Load a recording, read its GPUs over two loops, and read its ticks."""
    path = folder / "input.jsonl"
    metrics, now = selected(MetricSet.FULL), [0.0]

    def take(content: bytes) -> Iterable[str]:
        path.write_bytes(content)
        recording = load(path)
        now[0] = 0.0
        source = ReplaySource(recording, clock=lambda: now[0])
        gpus = [source.attach(index, metrics) for index in range(min(8, source.count()))]
        for step in range(5):
            now[0] = step * recording.duration / 2.3
            for gpu in gpus:
                try:
                    gpu.read(frozenset(Pace))
                except GpuLost as error:
                    yield str(error)
        for tick in ticks(path):
            yield tick.phase
            yield tick.gpu.uuid

    diagnose = ("diagnose", "--recording", str(path))
    check = ("check", "--source", "replay", "--recording", str(path))
    yield Parser(take, [Command(diagnose, frozenset({1})), Command(check, frozenset({3}))])


def _recordings() -> Sequence[bytes]:
    """The headers of the packaged recordings with some of their lines."""
    seeds = []
    for path in sorted(PACKAGED_RECORDINGS.glob("*.jsonl.gz")):
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        seeds += [b"".join(lines[:4]), b"".join((lines[0], *lines[100:106]))]
    return seeds


def _perhaps_zipped(rng: Random, content: bytes) -> bytes:
    """Compress one content in three, and damage one of these in four."""
    if rng.random() > 0.3:
        return content
    zipped = bytearray(gzip.compress(content, 1, mtime=0))
    if rng.random() < 0.25:
        zipped[rng.randrange(len(zipped))] ^= 1 << rng.randrange(8)
    return bytes(zipped[: rng.randrange(len(zipped))] if rng.random() < 0.1 else zipped)


@contextmanager
def _kernel_log(folder: Path) -> Iterator[Parser]:
    """Parse lines and records of /dev/kmsg, and count them all in one event log."""
    events, counted = _event_log(), 0

    def take(content: bytes) -> Iterable[str]:
        nonlocal counted
        record = parse_kmsg(content)
        found = [record.xid_line] if record else []
        for line in content.decode(errors="replace").split("\n"):
            found.append(parse(line))
        for xid in found:
            if xid:
                counted += 1
                at = xid.at
                events.add_kernel_log_entry(
                    LogEntry(LogPosition("boot", counted), at, xid), at if at is not None else 0.0
                )
        if found and counted % 10 == 0:
            events.samples([GPU], nvml_up=True)
            json.dumps(events.recent(), allow_nan=False)
            json.dumps(events.state(), allow_nan=False)
        return ()

    yield Parser(take)


def _kernel_logs() -> Sequence[bytes]:
    rng = Random(1)
    lines = [prefix(true_line(rng)[0]).encode() for prefix in PREFIXES]
    kmsg = [f"3,{number},123456789,-;{true_line(rng)[0]}\n SUBSYSTEM=pci\n".encode() for number in range(5)]
    return [*lines, *kmsg, b"\n".join(lines)]


# --- answers of servers ------------------------------------------------------------------------------------------


@contextmanager
def _kubelet(folder: Path) -> Iterator[Parser]:
    kubelet = FakeKubelet(folder / "kubelet.sock")
    kubelet.start()
    client = Kubelet(kubelet.socket, (), 5.0)

    def take(content: bytes) -> Iterable[str]:
        kubelet.raw = content
        listing = client.ask()
        return [text for row in (*listing.allocated, *listing.claimed) for text in row]

    try:
        yield Parser(take)
    finally:
        client.close()
        kubelet.stop()


def _kubelet_answers() -> Sequence[bytes]:
    several = (pod("train-0", Given("nvidia.com/gpu", ["GPU-0", "GPU-1"])), pod("dra", Claim("node", "gpu-0")))
    shared = [given(f"p{number}", "GPU-0::1", resource="nvidia.com/gpu.shared") for number in range(3)]
    return [b"".join(field(1, message) for message in messages) for messages in (several, shared)] + [b""]


def _perhaps_message(rng: Random, content: bytes) -> bytes:
    """Replace two contents in three by a well-formed message with random fields, whose texts are from the content."""

    def message(depth: int) -> bytes:
        if not depth or rng.random() < 0.2:
            begin = rng.randrange(len(content) + 1)
            texts = (b"nvidia.com/gpu", b"nvidia.com/gpu.shared", b"gpu.nvidia.com", b"GPU-0::1", b"")
            return rng.choice((*texts, content[begin : begin + rng.choice((1, 20, 5000))]))
        numbers = (rng.choice((1, 1, 2, 2, 3, 3, 4, 5)) for _ in range(rng.choice((1, 2, 5, 30))))
        return b"".join(field(number, message(depth - 1)) for number in numbers)

    return content if not content or rng.random() < 0.3 else field(1, message(rng.randrange(5)))[: 64 << 10]


@contextmanager
def _api_list(folder: Path) -> Iterator[Parser]:
    served, authority, tls = [b""], trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    (folder / "token").write_text("token\n")
    server = BodyServer(lambda path: served[0], _api_lists(), tls)
    place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    api, read = in_cluster(folder, place, patience=5.0), pods.PodReader([re.compile(".*")])

    def take(content: bytes) -> Iterable[str]:
        served[0] = content
        items, _ = api.list_objects(PODS)
        for item in items:
            read(item)
        resource_slices.uuids(found for item in items if (found := resource_slices.read(item)))
        return ()

    try:
        yield Parser(take)
    finally:
        api.close()
        server.stop()


def _api_lists() -> Sequence[bytes]:
    listed = [pod_object(f"p{number}", f"uid-{number}", {"app": "a", "x/y": "1"}) for number in range(3)]
    attributes = {"type": "gpu", "uuid": "GPU-0"}
    slices = [slice_object(version, {"gpu-0": attributes}, version=version) for version in ("v1", "v1beta1")]
    lists = ({"kind": "List", "metadata": {"resourceVersion": "12"}, "items": items} for items in (listed, slices))
    return [json.dumps(each).encode() for each in lists]


@contextmanager
def _diagnosed(seeds: Sequence[bytes], *, prometheus: bool) -> Iterator[Parser]:
    """Serve a content as the answer of a Prometheus or an exporter, and diagnose it."""
    served = [b""]

    def answer(path: str) -> bytes | None:
        if path.startswith("/api/v1/status"):
            return b'{"status":"success"}' if prometheus else None
        return served[0]

    server, stop = BodyServer(answer, seeds), threading.Event()
    stop.set()  # one scrape is enough
    url = f"http://127.0.0.1:{server.port}"

    def take(content: bytes) -> Iterable[str]:
        served[0] = content
        scrapes = remote_scrapes(Remote(url), 300.0, stop)
        if len(scrapes) == 1:
            scrapes.append(Scrape(scrapes[0].at + 15.0, scrapes[0].samples))
        diagnoses = diagnose.diagnose(seen(scrapes, {}))
        json.dumps(report.as_dict(diagnoses), allow_nan=False)
        return [line for text in report.lines(diagnoses, every=True) for line in text.split("\n")]

    try:
        yield Parser(take, [Command(("diagnose", "--url", url, "--for", "1s"), frozenset({1}))])
    finally:
        server.stop()


@contextmanager
def _prometheus(folder: Path) -> Iterator[Parser]:
    with _diagnosed(_prometheus_answers(), prometheus=True) as parser:
        yield parser


@contextmanager
def _metrics(folder: Path) -> Iterator[Parser]:
    with _diagnosed(_scraped(), prometheus=False) as parser:
        yield parser


def _scraped() -> Sequence[bytes]:
    """One GPU of the golden responses: every third family that a diagnosis reads, so that inputs stay small."""
    seeds = []
    for name in ("h200_x2_ddp.prom", "dcgm_exporter_4.9.prom"):
        lines = (ROOT / "tests" / "golden" / name).read_text().splitlines(keepends=True)
        wanted = [line for line in lines if any(family in line for family in FAMILIES) and 'gpu="1"' not in line]
        seeds += ["".join(wanted[:60]).encode(), "".join(wanted[60:120]).encode()]
    return seeds


def _prometheus_answers() -> Sequence[bytes]:
    """The scraped samples as a Prometheus returns them."""
    seeds = []
    for content in _scraped():
        result = [
            {
                "metric": {"__name__": sample.name} | dict(sample.labels),
                "values": [[1e9 + t, str(sample.value)] for t in (0, 15)],
            }
            for sample in parsed(content.decode())
        ]
        seeds.append(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode())
    return seeds


# --- requests ----------------------------------------------------------------------------------------------------


@contextmanager
def _http(folder: Path) -> Iterator[Parser]:
    """A running exporter whose memory counts, and whose log must not have a traceback."""
    port, log = free_port(), folder / "log"
    command = ("serve", "--address", f"127.0.0.1:{port}", "--source", "replay", "--recording", "h200_workloads")
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "gpu_exporter", *command], stderr=file)
    scrape = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    def serves() -> bool:
        try:
            return exchanged(port, scrape).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False

    def take(content: bytes) -> Iterable[str]:
        response = exchanged(port, content)
        statuses = re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", response)
        assert not response or statuses, f"no HTTP response: {response[:80]!r}"
        assert b"500" not in statuses, "status 500"
        assert b"Traceback" not in log.read_bytes()[-20_000:], "a traceback in the log"
        return ()

    try:
        until(serves, what="the exporter serves /metrics")
        yield Parser(take, process=process.pid)
        until(serves, what="the exporter still serves /metrics")
    finally:
        process.kill()
        process.wait()


def _requests() -> Sequence[bytes]:
    accept = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    heads = {
        "GET /metrics HTTP/1.1": f"Accept: {accept}\r\nAccept-Encoding: gzip;q=0.5\r\nUser-Agent: Prometheus/3.0\r\n",
        "GET /metrics?name[]=a%20b&x=1 HTTP/1.1": "Range: bytes=0-1\r\nIf-None-Match: *\r\n",
        "GET /api/v1/gpus HTTP/1.1": "Authorization: Basic YTpi\r\nConnection: keep-alive\r\n",
        "HEAD /healthz HTTP/1.0": "Connection: close\r\n",
        "POST /-/reload HTTP/1.1": "Origin: http://x\r\nSec-Fetch-Site: cross-site\r\nContent-Length: 3\r\n\r\na=b",
        "POST /-/quit HTTP/1.1": "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n3\r\nabc\r\n0\r\n",
    }
    single = [f"{line}\r\nHost: localhost:9400\r\n{rest}\r\n".encode() for line, rest in heads.items()]
    return [*single, single[0] + single[2]]


TARGETS = (
    Target("web-config", _web_configs, _web_config, (ValueError,), YAML_TOKENS, longest=16 << 10),
    Target("config", _configs, _config, (GpuExporterError,), YAML_TOKENS, longest=16 << 10),
    Target("csv", _fields_files, _fields, (GpuExporterError,), (b'"', b'""', b"label", b"histogram", b"\r")),
    Target(
        "rewrite", _dashboards, _rewrite, (ValueError,), (b"or ", b"by (", b"[5m]", b"{", b")", b'\\"', b"nvidia_smi_")
    ),
    Target("state", _states, _state),
    Target("recording", _recordings, _recording, (GpuExporterError,), packed=_perhaps_zipped),
    Target("kernel-log", _kernel_logs, _kernel_log, tokens=(b"NVRM: Xid (", b"SXid", b"PCI:", b"GPU-I:", b", pid=")),
    Target("kubelet", _kubelet_answers, _kubelet, (LookupFailed,), packed=_perhaps_message),
    Target("api-list", _api_lists, _api_list, (LookupFailed,), (b'"continue":"x"', b'"items":5', b'"items":null')),
    Target("prometheus", _prometheus_answers, _prometheus, (GpuExporterError,)),
    Target("metrics", _scraped, _metrics, (GpuExporterError,), (b"# TYPE x counter\n", b'{le="', b"+Inf", b"# EOF\n")),
    *host_files.TARGETS,
    hostile_text.TARGET,
    *traces.TARGETS,
    *profiles.TARGETS,
    Target("http", _requests, _http, tokens=(b"\r\n\r\n", b"Host: ", b"Content-Length: ", b"chunked", b"%00", b"/../")),
)
