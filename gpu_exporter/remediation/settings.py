"""The configuration of the controller: a YAML file that docs/remediation.md describes. Times are UTC."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from functools import cache
from pathlib import Path

from gpu_exporter.catalogue.fleet_faults import NODES, SHARE, WINDOW
from gpu_exporter.conditions.tree import duration as time_text
from gpu_exporter.http.proxies import TrustedProxies
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.user_text import address, duration, file_content, networks
from gpu_exporter.io.yaml_decoding import yaml_as
from gpu_exporter.model.errors import GpuExporterError

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MINUTES_PER_DAY = 24 * 60
_TEXT = re.compile(r"([A-Z][a-z]{2})(?:-([A-Z][a-z]{2}))? (\d\d):(\d\d)-(\d\d):(\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """The weekdays on which it begins (0 is Monday), and when it begins and ends, in minutes since midnight.

    It ends on the next day if the end is not after the begin.
    """

    days: frozenset[int]
    begin: int
    end: int

    def contains(self, now: float) -> bool:
        """Return whether the unix time `now` is inside."""
        moment = datetime.fromtimestamp(now, timezone.utc)
        day, minute = moment.weekday(), 60 * moment.hour + moment.minute
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        today = day in self.days and minute >= self.begin
        return today or ((day - 1) % 7 in self.days and minute < self.end)


def window(text: str) -> MaintenanceWindow:
    """Parse `Mon-Fri 08:00-18:00` or `Sat 22:00-06:00`. Raises ValueError."""
    found = _TEXT.fullmatch(text)
    if not found or found[1] not in DAYS or (found[2] or found[1]) not in DAYS:
        raise ValueError(f"{text!r} is not a window; use for example Mon-Fri 08:00-18:00 (UTC)")
    first, last = DAYS.index(found[1]), DAYS.index(found[2] or found[1])
    days = frozenset((first + step) % 7 for step in range((last - first) % 7 + 1))
    begin, end = (60 * int(found[hour]) + int(found[hour + 1]) for hour in (3, 5))
    if max(int(found[3]), int(found[5])) > 24 or max(begin, end) > MINUTES_PER_DAY or begin == MINUTES_PER_DAY:
        raise ValueError(f"{text!r} has a time that does not exist; use 00:00 to 24:00")
    if int(found[4]) > 59 or int(found[6]) > 59:
        raise ValueError(f"{text!r} has a time that does not exist; use 00:00 to 24:00")
    return MaintenanceWindow(days, begin, end)


_LABEL = re.compile(r"(!?)([\w./-]{1,317})(?:(!?=)([\w.-]{0,63}))?", re.ASCII)
# Labels of the pods of a Job of Kubernetes: a gang only if it is Indexed, because the others are often independent.
JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")
# A label of pods whose Jobs a JobSet restarts: they need not be read.
JOBSET = "jobset.sigs.k8s.io/jobset-name"
# Labels by which pods belong to one job, which cannot go on without one of them.
GANG_LABELS = (
    "gpu-exporter.io/gang",
    "scheduling.x-k8s.io/pod-group",
    "kueue.x-k8s.io/pod-group-name",
    "volcano.sh/job-name",
    "training.kubeflow.org/job-name",
    JOBSET,
    "leaderworkerset.sigs.k8s.io/group-key",
    "ray.io/cluster",
    *JOB_LABELS,
)
# The most that is read from the file of a token.
MOST_TOKEN_BYTES = 1 << 12
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


class Mode(Enum):
    """What the controller does with the nodes of a pool. Each mode includes what the one before it does."""

    OFF = "off"
    OBSERVE = "observe"
    CORDON = "cordon"
    DRAIN = "drain"

    @property
    def acts(self) -> bool:
        """Whether nodes are really changed."""
        return self in (Mode.CORDON, Mode.DRAIN)


@dataclass(frozen=True, slots=True)
class Budget:
    """How many nodes of a pool may be out of service: the smaller of a number and a share.

    With `topology_key`, at most `per_topology` of them have the same value of this label.
    """

    nodes: int = 1
    share: float = 0.1
    topology_key: str = ""
    per_topology: int = 1

    def limit(self, total: int) -> int:
        """Return how many of `total` nodes may be out of service. A pool of one or two nodes is never acted on."""
        return min(self.nodes, max(int(self.share * total + 1e-9), 1 if total >= 3 and self.share > 0 else 0))


class RemediationScope(Enum):
    """Which pods are evicted from a node: those with GPUs, or all that `kubectl drain` would evict."""

    GPU = "gpu"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """Which pods are evicted, and how long that may take.

    Pods of a protected namespace (a name, or a pattern such as `kube-*`), those of `protected_priority` or more, and
    those without a controller unless `unmanaged`, are never evicted. Pods of one namespace that have one of the
    `gang_labels` with the same value are evicted together; JOB_LABELS count only for pods of an Indexed Job. A pod may
    ask for at most `longest_checkpoint`.
    """

    pods: RemediationScope = RemediationScope.GPU
    timeout: str = "2h"
    longest_checkpoint: str = "30m"
    protected_namespaces: tuple[str, ...] = ("kube-*", "gpu-operator", "monitoring")
    protected_priority: int = 1_000_000_001
    unmanaged: bool = False
    gang_labels: tuple[str, ...] = GANG_LABELS

    @property
    def timeout_seconds(self) -> float:
        """After how long a drain that is not complete is given up."""
        return duration(self.timeout)

    @property
    def checkpoint_seconds(self) -> float:
        """How long a pod may ask for before it is evicted."""
        return duration(self.longest_checkpoint)


@dataclass(frozen=True, slots=True)
class NodePool:
    """Nodes that are treated alike. A node belongs to the first pool whose selector matches its labels."""

    name: str
    selector: str = ""
    mode: Mode = Mode.OBSERVE
    budget: Budget = Budget()
    confirm: str = "60s"
    clean: str = "15m"
    new_boot: bool = True
    active_check: bool = False
    degraded: bool = False
    windows: tuple[str, ...] = ()
    drain: DrainSettings = DrainSettings()

    @property
    def confirm_seconds(self) -> float:
        """For how long a fault must last before the node is cordoned."""
        return duration(self.confirm)

    @property
    def clean_seconds(self) -> float:
        """For how long a repaired node must be healthy."""
        return duration(self.clean)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the selector matches these labels."""
        return all(_holds(term, labels) for term in _terms(self.selector))

    def is_open(self, now: float) -> bool:
        """Return whether new nodes may be cordoned, and drains may begin, at the unix time `now`."""
        return not self.windows or any(window(text).contains(now) for text in self.windows)


@dataclass(frozen=True, slots=True)
class Breaker:
    """Stops new cordons for a fault of the fleet, until it is `quiet` for so long.

    That is a fault that began on this many nodes, and this share of all, within `window` (`catalogue/fleet_faults.py`).
    """

    nodes: int = int(NODES.value)
    share: float = SHARE.value
    window: str = time_text(WINDOW)
    quiet: str = "30m"


@dataclass(frozen=True, slots=True)
class Exporters:
    """How to find and ask the exporters: the pods of a namespace with these labels, at their own addresses."""

    namespace: str
    selector: str = "app.kubernetes.io/component=exporter"
    port: int = 9400
    scheme: str = "http"
    ca_file: str = ""
    server_name: str = ""
    user: str = ""
    password_file: str = ""
    timeout: str = "5s"


@dataclass(frozen=True, slots=True)
class Notify:
    """A URL that gets a POST request with each action, for the people or the system that repair nodes."""

    url: str = ""
    token_file: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. `namespace` is that of the Lease; `gpu_resources` are further names of resources that are GPUs.

    `events`: whether to write Events about nodes.
    `web_trusted_proxies` are those of the exporter: addresses and networks of proxies whose X-Forwarded-For counts.
    """

    namespace: str
    exporters: Exporters
    pools: tuple[NodePool, ...]
    lease: str = "gpu-exporter-remediation"
    interval: str = "30s"
    address: str = ":9401"
    webhook_token_file: str = ""
    gpu_resources: tuple[str, ...] = ()
    breaker: Breaker = Breaker()
    notify: Notify = field(default_factory=Notify)
    web_trusted_proxies: tuple[str, ...] = ()
    events: bool = True

    @property
    def proxies(self) -> TrustedProxies:
        """The proxies whose header X-Forwarded-For counts."""
        return TrustedProxies(networks(",".join(self.web_trusted_proxies)))

    def pool(self, labels: Mapping[str, str]) -> NodePool | None:
        """Return the pool of a node with these labels; None if it belongs to none."""
        return next((pool for pool in self.pools if pool.matches(labels)), None)


@cache
def _terms(selector: str) -> tuple[re.Match[str], ...]:
    """Return the parts of a label selector. Raises ValueError."""
    terms = []
    for term in filter(None, (part.strip() for part in selector.replace("==", "=").split(","))):
        found = _LABEL.fullmatch(term)
        if not found or (found[1] and found[3]):
            raise ValueError(f"{term!r} is not a label selector; use key=value, key!=value, key or !key")
        terms.append(found)
    return tuple(terms)


def _key(label: str) -> None:
    """Raise ValueError if a label has no valid name."""
    found = _LABEL.fullmatch(label)
    if not found or found[1] or found[3]:
        raise ValueError(f"{printable(label, 80)!r} is not the name of a label")


def _holds(term: re.Match[str], labels: Mapping[str, str]) -> bool:
    absent, key, operator, value = term.groups()
    if operator is None:
        return (key in labels) is not bool(absent)
    return (labels.get(key) == value) is (operator == "=")


def load(path: Path) -> Settings:
    """Return the settings in a file. Raises GpuExporterError with one line that names the item and the fix."""
    content = file_content(path)
    if isinstance(content, str):
        raise GpuExporterError(f"{path}: {content}", fix="give the controller's configuration with --config")
    try:
        return parse(content)
    except ValueError as error:
        raise GpuExporterError(f"{path}: {error}") from error


def parse(content: bytes) -> Settings:
    """Return the settings in YAML. Raises ValueError."""
    # In YAML 1.1, an unquoted `off` is false.
    content = re.sub(rb"(?m)^(\s*(?:-\s+)?mode:\s*)(off|Off|OFF)\s*$", rb'\1"off"', content)
    content = re.sub(rb"(\bmode:\s*)off(?=\s*[,}])", rb'\1"off"', content)
    settings = yaml_as(Settings, content)
    for problem in _problems(settings):
        raise ValueError(problem)
    return settings


def _problems(settings: Settings) -> Iterator[str]:
    """Yield what is wrong with the settings, and the fix."""
    yield from _wrong("address", lambda: address(settings.address))
    yield from _wrong("web_trusted_proxies", lambda: settings.proxies)
    for name, text in (
        ("interval", settings.interval),
        ("exporters.timeout", settings.exporters.timeout),
        ("breaker.window", settings.breaker.window),
        ("breaker.quiet", settings.breaker.quiet),
    ):
        yield from _wrong(name, lambda text=text: duration(text))
    if settings.breaker.nodes < 2:
        yield f"breaker.nodes: {settings.breaker.nodes} would stop after a single fault; use 2 or more"
    if not 0 <= settings.breaker.share <= 1:
        yield f"breaker.share: {settings.breaker.share:g} is not a share; use 0 to 1, such as 0.05 for 5 %"
    if settings.exporters.scheme not in ("http", "https"):
        yield f"exporters.scheme: {printable(settings.exporters.scheme, 20)!r}: use http or https"
    if bool(settings.exporters.user) != bool(settings.exporters.password_file):
        yield "exporters.user and exporters.password_file belong together: set both"
    if not 0 < settings.exporters.port < 1 << 16:
        yield f"exporters.port: {settings.exporters.port} is not a port; use 1 to 65535"
    for name, text, what in (
        ("namespace", settings.namespace, "a namespace"),
        ("exporters.namespace", settings.exporters.namespace, "a namespace"),
        ("lease", settings.lease, "a Lease"),
    ):
        if not _NAME.fullmatch(text):
            yield f"{name}: {printable(text, 40)!r} is not a name; use the name of {what}"
    if not settings.pools:
        yield "pools is empty: name at least one, such as [{name: all, mode: observe}]"
    if settings.notify.url and not settings.notify.url.startswith(("http://", "https://")):
        yield f"notify.url: {printable(settings.notify.url, 80)!r} is not a URL; use http://… or https://…"
    names = [pool.name for pool in settings.pools]
    for pool in settings.pools:
        if names.count(pool.name) > 1:
            yield f"pools: two have the name {printable(pool.name, 40)!r}; rename one"
        yield from (f"pools: {printable(pool.name, 40)}: {problem}" for problem in _pool_problems(pool))


def _pool_problems(pool: NodePool) -> Iterator[str]:
    if not _NAME.fullmatch(pool.name):
        yield "name: use lower-case letters, digits, dots and dashes"
    yield from _wrong("selector", lambda: _terms(pool.selector))
    yield from _wrong("confirm", lambda: duration(pool.confirm))
    yield from _wrong("clean", lambda: duration(pool.clean))
    yield from _wrong("drain.timeout", lambda: duration(pool.drain.timeout))
    yield from _wrong("drain.longest_checkpoint", lambda: duration(pool.drain.longest_checkpoint))
    for label in pool.drain.gang_labels:
        yield from _wrong("drain.gang_labels", lambda label=label: _key(label))
    for text in pool.windows:
        yield from _wrong("windows", lambda text=text: window(text))
    budget = pool.budget
    if budget.nodes < 0 or budget.per_topology < 0:
        yield "budget: numbers of nodes are 0 or more"
    if not 0 <= budget.share <= 1:
        yield f"budget.share: {budget.share:g} is not a share; use 0 to 1, such as 0.1 for a tenth"


def _wrong(name: str, parse: object) -> Iterator[str]:
    """Yield why a value cannot be parsed."""
    assert callable(parse)
    try:
        parse()
    except ValueError as error:
        yield f"{name}: {error}"
