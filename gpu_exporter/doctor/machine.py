"""Checks what gpu-exporter runs on: platform, container, port, DCGM, kubelet, kernel log and clock.

No check blocks or needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from gpu_exporter.http.client import unverified_tls
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.finding import Finding, FindingLevel
from gpu_exporter.version import __version__

ROOT = Path("/")


def read(path: Path) -> str:
    """Return the content of a small file of the system; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def software(root: Path = ROOT, system: str = "", processor: str = "") -> list[Finding]:
    """Return versions, user and platform; a second finding if gpu-exporter is untested on this platform."""
    system, processor = system or platform.system(), processor or platform.machine()
    user = f", uid {os.geteuid()}" if hasattr(os, "geteuid") else ""
    what = f"gpu-exporter {__version__}, Python {platform.python_version()}, {system} {processor}{user}"
    untested = _untested(root, system, processor)
    return [
        Finding("platform", FindingLevel.OK, what),
        *([Finding("platform", FindingLevel.NOTE, untested)] if untested else []),
    ]


def _untested(root: Path, system: str, processor: str) -> str:
    """Return what is untested on this platform; docs/platforms.md has the reasons."""
    if system == "Windows":
        return "Windows: not tested; NVML works the same, but kernel log, PCI bus and pods cannot be read"
    if system != "Linux":
        return f"{system}: NVIDIA has no driver for it; only `--source replay` and `--source simulated` work"
    if "microsoft" in read(root / "proc/sys/kernel/osrelease").lower():
        return "WSL: not tested; its NVML supports a part of what Linux has, and its kernel logs no GPU faults"
    if (root / "etc/nv_tegra_release").exists() or "nvidia,tegra" in read(root / "proc/device-tree/compatible"):
        return "Jetson: not tested; its GPU is not a PCIe device, and NVML supports little of it: use tegrastats"
    if processor not in ("x86_64", "AMD64"):
        return f"Linux {processor}: not tested; no difference from x86_64 is known"
    return ""


def container(environ: Mapping[str, str] = os.environ, *, mig: bool = False) -> list[Finding]:
    """Check the variables of NVIDIA's container runtime, which limit what a container sees. `mig`: MIG mode is on."""
    findings = []
    visible = environ.get("NVIDIA_VISIBLE_DEVICES")
    # the runtime sets `void` when something else allocates the GPUs
    if visible == "none":
        what, cure = "NVIDIA_VISIBLE_DEVICES=none: this container gets no GPU", "set it to all"
        findings.append(Finding("container", FindingLevel.WARN, what, cure))
    elif visible not in (None, "", "all", "void"):
        what = f"NVIDIA_VISIBLE_DEVICES={visible}: this container sees only these GPUs of the node"
        findings.append(Finding("container", FindingLevel.NOTE, what))
    granted = environ.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if granted and not {"utility", "all"} & {name.strip() for name in granted.split(",")}:
        what, cure = f"NVIDIA_DRIVER_CAPABILITIES={granted} lacks utility, which provides NVML", "add utility"
        findings.append(Finding("container", FindingLevel.WARN, what, cure))
    if mig and visible is not None and environ.get("NVIDIA_MIG_MONITOR_DEVICES") != "all":
        what = "a GPU is in MIG mode, and this container may not see all instances"
        cure = "set NVIDIA_MIG_MONITOR_DEVICES=all and add CAP_SYS_ADMIN"
        findings.append(Finding("container", FindingLevel.NOTE, what, cure))
    return findings


PATIENCE = 0.5
LARGEST_PAGE = 4 << 20
# What identifies an exporter by its response; gpu-exporter comes first, because it has DCGM's names, too.
EXPORTERS = (
    ("Server: gpu-exporter", "gpu-exporter"),
    ("gpu_exporter_build_info", "gpu-exporter"),
    ("DCGM_FI_", "dcgm-exporter"),
    ("nvidia_smi_", "nvidia_gpu_exporter"),
    ("nvitop", "nvitop-exporter"),
    ("HTTP/1", "another program"),
    ("", "another program, which does not speak HTTP"),
)
CLOCK_DAEMONS = frozenset({"chronyd", "ntpd", "openntpd", "phc2sys"})
STA_UNSYNC = 0x40


def bind(address: Address) -> None:
    """Bind the address and release it at once, without listening. Raises OSError if that fails."""
    candidates = socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    refused: list[OSError] = []
    for family, kind, protocol, _, where in candidates:
        try:
            with socket.socket(family, kind, protocol) as probe:
                if os.name == "posix":  # as the server does; elsewhere it would share the port
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(where)
        except OSError as error:
            refused.append(error)
    for refusal in refused:  # without IPv6 only that address fails, and the server still works
        if refusal.errno == errno.EADDRINUSE or len(refused) == len(candidates):
            raise refusal


def fetch(address: Address, certificate: bytes = b"") -> str:
    """Return the /metrics response with its headers, as far as it arrives in time; without TLS, else with it.

    A server that has this `certificate` (DER) is the exporter of these settings, even if it requires one of clients.
    """
    end = time.monotonic() + PATIENCE
    page = _exchange(address, end)
    if any(mark in page for mark, _ in EXPORTERS[:-2]) or time.monotonic() > end:
        return page
    return _exchange(address, end, unverified_tls(), certificate) or page


def _exchange(address: Address, end: float, tls: ssl.SSLContext | None = None, certificate: bytes = b"") -> str:
    page = b""
    with (
        suppress(OSError),
        socket.create_connection((address.host or "127.0.0.1", address.port), PATIENCE) as plain,
        tls.wrap_socket(plain) if tls else nullcontext(plain) as connection,
    ):
        if certificate and isinstance(connection, ssl.SSLSocket) and connection.getpeercert(True) == certificate:
            return EXPORTERS[0][0]
        connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        while (left := end - time.monotonic()) > 0 and len(page) < LARGEST_PAGE:
            connection.settimeout(left)
            chunk = connection.recv(1 << 16)
            if not chunk:
                break
            page += chunk
    return page.decode(errors="replace")


def port(
    address: Address, take: Callable[[Address], None] = bind, page: Callable[[Address], str] = fetch
) -> list[Finding]:
    """Check whether `serve` could listen there, and if not, what does."""
    try:
        take(address)
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) != errno.EADDRINUSE:
            why = getattr(error, "strerror", None) or error
            return [
                Finding("port", FindingLevel.WARN, f"cannot listen on {address}: {why}", "choose another --address")
            ]
    else:
        return [Finding("port", FindingLevel.OK, f"{address} is free to listen on")]
    text = page(address)
    who = next(name for mark, name in EXPORTERS if mark in text)
    if who == "gpu-exporter":
        return [Finding("port", FindingLevel.OK, f"{address} is served by gpu-exporter already")]
    cure = "stop it, or choose another --address; both programs can read the same GPUs"
    return [Finding("port", FindingLevel.WARN, f"{address} is taken by {who}", cure)]


def processes(root: Path = ROOT) -> frozenset[str]:
    """Return the names of all visible processes, which the kernel truncates to 15 letters."""
    return frozenset(read(comm).strip() for comm in (root / "proc").glob("[0-9]*/comm"))


def answers(host: str, number: int) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, number), PATIENCE).close()
    except OSError:
        return False
    return True


def dcgm(root: Path = ROOT, listens: Callable[[str, int], bool] = answers) -> list[Finding]:
    """Check whether DCGM's host engine runs here. If not, there is no finding: it is not needed."""
    if "nv-hostengine" in processes(root):
        where = "a process"
    elif (root / "tmp/nv-hostengine").is_socket():
        where = "its socket"
    elif listens("127.0.0.1", 5555):
        where = "port 5555"
    else:
        return []
    what = f"DCGM runs here ({where}): no conflict, both can read GPM; --source dcgm reads through DCGM"
    return [Finding("dcgm", FindingLevel.NOTE, what)]


def kubelet(
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    readable: Callable[[Path], bool] = lambda path: os.access(path, os.R_OK | os.W_OK),
) -> list[Finding]:
    """Check whether kubelet can say which pod has which GPU."""
    folder = Path("var/lib/kubelet/pod-resources")
    path = root / folder / "kubelet.sock"
    inside = "KUBERNETES_SERVICE_HOST" in environ
    try:
        there = path.is_socket()
    except OSError:  # the folder is closed to this user
        there = True
    if there and readable(path):
        return [Finding("kubelet", FindingLevel.OK, "kubelet's pod-resources socket can be opened")]
    if there:
        what = "this user may not open kubelet's pod-resources socket: no pod names"
        return [
            Finding(
                "kubelet",
                FindingLevel.WARN if inside else FindingLevel.NOTE,
                what,
                "run as root (no capability is needed)",
            )
        ]
    if inside:
        what = "kubelet's pod-resources socket is not in this container: no pod names"
        return [Finding("kubelet", FindingLevel.WARN, what, f"mount the folder /{folder} of the host, read-only")]
    return [Finding("kubelet", FindingLevel.NOTE, "not in Kubernetes: no pod names")]


def opens(path: Path) -> None:
    """Open for reading and close. Raises OSError."""
    os.close(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)))


def kernel_log(root: Path = ROOT, open: Callable[[Path], None] = opens) -> list[Finding]:
    """Check whether XIDs can be read with the process that caused them."""
    try:
        open(root / "dev/kmsg")
    except FileNotFoundError:
        what, cure = (
            "no kernel log: XIDs come from NVML only, without the process that caused them",
            "give the container the host's /dev/kmsg",
        )
    except OSError:
        what, cure = (
            "this user may not read the kernel log: XIDs come from NVML only, without the process that caused them",
            "add CAP_SYSLOG",
        )
        if read(root / "proc/sys/kernel/dmesg_restrict").strip() == "1":
            cure += ", or `sysctl kernel.dmesg_restrict=0`"
    else:
        return [Finding("kernel_log", FindingLevel.OK, "the kernel log can be read")]
    return [Finding("kernel_log", FindingLevel.NOTE, what, cure)]


def unsynchronised() -> bool | None:
    """Return whether the kernel reports an unsynchronised clock; None if it cannot be asked.

    Python has no adjtimex, and files of time daemons are not visible inside a container.
    """
    buffer = ctypes.create_string_buffer(1024)
    try:
        ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, TypeError, AttributeError):
        return None
    status: int = struct.unpack_from("@I4li", buffer)[-1]
    return bool(status & STA_UNSYNC)


def clock(root: Path = ROOT, unsynchronised: Callable[[], bool | None] = unsynchronised) -> list[Finding]:
    """Check whether this machine's time can be compared with that of others."""
    adrift = unsynchronised()
    if adrift is None:
        return []
    if not adrift or (root / "run/systemd/timesync/synchronized").exists():
        return [Finding("clock", FindingLevel.OK, "the clock is synchronised")]
    daemons = CLOCK_DAEMONS & processes(root)
    if daemons:
        what = f"the kernel reports an unsynchronised clock, although {', '.join(sorted(daemons))} runs"
        return [Finding("clock", FindingLevel.NOTE, what, "see `chronyc tracking` or `ntpq -p`")]
    what = "the clock is not synchronised: timestamps will differ from those of other machines"
    return [Finding("clock", FindingLevel.WARN, what, "run chrony or systemd-timesyncd")]


def checks(
    address: Address, certificate: Callable[[], bytes] = bytes, *, kubelet_checked: bool = False
) -> tuple[Callable[[], list[Finding]], ...]:
    """Return the checks for this system. `certificate` returns that of the exporter's settings (DER), or raises.

    `kubelet_checked`: without kubelet's, because another check calls it.
    """

    def own_port() -> list[Finding]:
        try:
            own = certificate()
        except GpuExporterError as error:
            return [Finding("port", FindingLevel.WARN, error.message, error.fix), *port(address)]
        return port(address, page=partial(fetch, certificate=own))

    if platform.system() != "Linux":
        return (own_port,)
    return (own_port, dcgm, *(() if kubelet_checked else (kubelet,)), kernel_log, clock)
