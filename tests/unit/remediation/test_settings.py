"""The controller's configuration: defaults, selectors, windows, budgets, and errors that name the item and the fix."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.remediation.settings import (
    Breaker,
    Budget,
    DrainSettings,
    Exporters,
    MaintenanceWindow,
    Mode,
    NodePool,
    RemediationScope,
    Settings,
    load,
    parse,
    window,
)

MINIMAL = "namespace: gpu\nexporters: {namespace: gpu}\n"


def test_defaults() -> None:
    """As docs/remediation.md has them."""
    settings = parse(f"{MINIMAL}pools: [{{name: all}}]".encode())
    labels = settings.pools[0].drain.gang_labels
    assert labels[0] == "gpu-exporter.io/gang"
    assert labels[-1] == "job-name"
    drain = DrainSettings(
        RemediationScope.GPU, "2h", "30m", ("kube-*", "gpu-operator", "monitoring"), 1_000_000_001, False, labels
    )
    budget = Budget(1, 0.1, "", 1)
    pool = NodePool("all", "", Mode.OBSERVE, budget, "60s", "15m", True, False, False, (), drain)
    exporters = Exporters("gpu", "app.kubernetes.io/component=exporter", 9400, "http", timeout="5s")
    assert settings == Settings(
        "gpu", exporters, (pool,), "gpu-exporter-remediation", "30s", ":9401", "", (), Breaker(3, 0.05, "10m", "30m")
    )


@pytest.mark.parametrize(("networks", "client"), [("[]", "10.0.0.1"), ("[10.0.0.0/8, 'fd00::/8']", "192.0.2.7")])
def test_trusted_proxies(networks: str, client: str) -> None:
    settings = parse(f"{MINIMAL}pools: [{{name: all}}]\nweb_trusted_proxies: {networks}".encode())
    assert settings.proxies.client("10.0.0.1", "192.0.2.7") == client


def test_an_address_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"^web_trusted_proxies: .*'10\.0\.0' is not an IP address"):
        parse(f"{MINIMAL}pools: [{{name: all}}]\nweb_trusted_proxies: [10.0.0]".encode())


def test_durations_in_seconds() -> None:
    drain = DrainSettings(timeout="90s", longest_checkpoint="2m")
    assert (drain.timeout_seconds, drain.checkpoint_seconds) == (90.0, 120.0)
    pool = NodePool("a", confirm="3s", clean="1h")
    assert (pool.confirm_seconds, pool.clean_seconds) == (3.0, 3600.0)


@pytest.mark.parametrize(
    ("mode", "acts"), [(Mode.OFF, False), (Mode.OBSERVE, False), (Mode.CORDON, True), (Mode.DRAIN, True)]
)
def test_modes_that_change_nodes(mode: Mode, acts: bool) -> None:
    assert mode.acts is acts


def test_a_node_belongs_to_the_first_pool_that_matches() -> None:
    first, rest = NodePool("a", "pool=a"), NodePool("rest", "pool")
    settings = Settings("gpu", Exporters("gpu"), (first, rest))
    assert settings.pool({"pool": "a"}) is first
    assert settings.pool({"pool": "b"}) is rest
    assert settings.pool({}) is None


def test_a_file(tmp_path: Path) -> None:
    """An error names it."""
    path = tmp_path / "config.yaml"
    with pytest.raises(GpuExporterError, match=r"config.yaml: .*: give the controller's configuration with --config"):
        load(path)
    path.write_text(f"{MINIMAL}pools: []")
    with pytest.raises(GpuExporterError, match=r"config.yaml: pools is empty"):
        load(path)
    path.write_text(f"{MINIMAL}pools: [{{name: all}}]")
    assert load(path).pools == (NodePool("all"),)


@pytest.mark.parametrize("text", ["off", "'off'", "Off"])
def test_off_is_not_a_boolean(text: str) -> None:
    settings = parse(f"{MINIMAL}pools:\n  - name: all\n    mode: {text}\n".encode())
    assert settings.pools[0].mode is Mode.OFF


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("pools: []", "pools is empty: name at least one"),
        ("pools: [{name: a, drain: {timeout: never}}]", "pools: a: drain.timeout: 'never' is not a duration"),
        ("pools: [{name: a, drain: {gang_labels: ['a=b']}}]", "pools: a: drain.gang_labels: 'a=b' is not the name of"),
        ("pools: [{name: a, drain: {force: true}}]", r"pools\[0\].drain.force: unknown key"),
        (
            "pools: [{name: a, mode: delete}]",
            r"pools\[0\].mode: 'delete' is not one of off, observe, cordon, drain$",
        ),
        ("pools: 3", "pools: must be a list, not a whole number$"),
        ("pools: [{name: a, budget: {share: much}}]", r"pools\[0\].budget.share: must be a number, not text$"),
        ("pools: [{name: a}]\nlease:", "lease: must be text, not empty$"),
        ("pools: [{mode: off}]", r"pools\[0\]: name is missing; add it$"),
        ("pools: [{name: a, budgets: 1}]", r"pools\[0\].budgets: unknown key; use name, selector, mode"),
        ("pools: [{name: a}, {name: a}]", "pools: two have the name 'a'; rename one"),
        ("pools: [{name: a, clean: soon}]", "pools: a: clean: 'soon' is not a duration"),
        ("pools: [{name: a, selector: 'a b'}]", "pools: a: selector: 'a b' is not a label selector"),
        ("pools: [{name: a, windows: [Monday]}]", "pools: a: windows: 'Monday' is not a window"),
        ("pools: [{name: a, budget: {share: 10}}]", "pools: a: budget.share: 10 is not a share"),
        ("pools: [{name: a}]\nbreaker: {nodes: 1}", "breaker.nodes: 1 would stop after a single fault"),
        ("pools: [{name: a}]\nnotify: {url: 'file:///etc/passwd'}", "notify.url: 'file:///etc/passwd' is not a URL"),
        ("pools: [{name: a}]\nlease: a/b", "lease: 'a/b' is not a name; use the name of a Lease"),
        ("pools: [{name: a}]\naddress: here", "address: 'here' is not an address"),
        ("pools: [{name: a}]\ninterval: often", "interval: 'often' is not a duration"),
        ("pools: [{name: a}]\nbreaker: {share: 5}", "breaker.share: 5 is not a share"),
        ("pools: [{name: a}]\nbreaker: {window: long}", "breaker.window: 'long' is not a duration"),
        ("pools: [{name: a}]\nbreaker: {quiet: long}", "breaker.quiet: 'long' is not a duration"),
        ("pools: [{name: A}]", "pools: A: name: use lower-case letters, digits, dots and dashes"),
        ("pools: [{name: a-}]", "pools: a-: name: use lower-case letters"),
        ("pools: [{name: a, confirm: soon}]", "pools: a: confirm: 'soon' is not a duration"),
        ("pools: [{name: a, drain: {longest_checkpoint: soon}}]", "pools: a: drain.longest_checkpoint: 'soon' is not"),
        ("pools: [{name: a, drain: {gang_labels: ['!a']}}]", "pools: a: drain.gang_labels: '!a' is not the name of"),
        ("pools: [{name: a, drain: {gang_labels: ['a b']}}]", "pools: a: drain.gang_labels: 'a b' is not the name of"),
        ("pools: [{name: a, selector: '!a=b'}]", "pools: a: selector: '!a=b' is not a label selector"),
        ("pools: [{name: a, budget: {nodes: -1}}]", "pools: a: budget: numbers of nodes are 0 or more"),
        ("pools: [{name: a, budget: {per_topology: -1}}]", "pools: a: budget: numbers of nodes are 0 or more"),
        ("pools: [{name: a, budget: {share: -0.5}}]", "pools: a: budget.share: -0.5 is not a share"),
        ("pools: [{name: a}]\nnotify: {url: 'ftp://x'}", "notify.url: 'ftp://x' is not a URL"),
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{error}"):
        parse(f"{MINIMAL}{text}".encode())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("namespace: gpu, port: 65536", "exporters.port: 65536 is not a port; use 1 to 65535"),
        ("namespace: gpu, port: 0", "exporters.port: 0 is not a port; use 1 to 65535"),
        ("namespace: gpu, user: me", "exporters.user and exporters.password_file belong together: set both"),
        ("namespace: gpu, password_file: /p", "exporters.user and exporters.password_file belong together: set both"),
        ("namespace: gpu, scheme: ftp", "exporters.scheme: 'ftp': use http or https"),
        ("namespace: gpu, timeout: long", "exporters.timeout: 'long' is not a duration"),
        ("namespace: a_b", "exporters.namespace: 'a_b' is not a name; use the name of a namespace"),
    ],
)
def test_errors_of_exporters(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{error}"):
        parse(f"namespace: gpu\nexporters: {{{text}}}\npools: [{{name: a}}]".encode())


@pytest.mark.parametrize(
    "text",
    [
        "exporters: {namespace: gpu, port: 1, scheme: https}\npools: [{name: a}]",
        "exporters: {namespace: gpu, port: 65535}\npools: [{name: a.b-c9}]",
        "exporters: {namespace: gpu}\npools: [{name: a, budget: {nodes: 0, share: 0, per_topology: 0}}]",
        "exporters: {namespace: gpu}\npools: [{name: a, budget: {share: 1}}]\nbreaker: {nodes: 2}",
        "exporters: {namespace: gpu}\npools: [{name: a}]\nnotify: {url: 'http://x'}",
        "exporters: {namespace: gpu}\npools: [{name: a}]\nnotify: {url: 'https://x'}",
    ],
)
def test_settings_at_their_limits(text: str) -> None:
    assert parse(f"namespace: gpu\n{text}".encode()).namespace == "gpu"


def test_off_in_one_line() -> None:
    content = f"{MINIMAL}pools: [{{name: a, mode: off}}, {{mode: off, name: b}}, {{name: c, mode: 'off'}}]".encode()
    assert [pool.mode for pool in parse(content).pools] == [Mode.OFF] * 3


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("", {}, True),
        ("pool=a", {"pool": "a"}, True),
        ("pool=a", {"pool": "b"}, False),
        ("pool!=a", {}, True),
        ("pool!=a", {"pool": "a"}, False),
        ("pool", {}, False),
        ("!pool", {}, True),
        (" , pool=a,", {"pool": "a"}, True),
        ("pool=,zone=z1", {"pool": "", "zone": "z1"}, True),
        ("pool,!test", {"pool": "a"}, True),
        ("pool,!test", {"pool": "a", "test": ""}, False),
        ("nvidia.com/gpu.present=true, zone==z1", {"nvidia.com/gpu.present": "true", "zone": "z1"}, True),
    ],
)
def test_selectors(selector: str, labels: dict[str, str], matches: bool) -> None:
    assert NodePool("a", selector).matches(labels) is matches


@pytest.mark.parametrize(("total", "limit"), [(0, 0), (2, 0), (3, 1), (10, 1), (29, 2), (30, 3), (1000, 5)])
def test_a_budget_is_the_smaller_of_number_and_share(total: int, limit: int) -> None:
    """Rounded down; one node of three is the least, and of one or two nodes none."""
    assert Budget(5, 0.1).limit(total) == limit
    assert Budget(5, 0.0).limit(total) == 0
    assert Budget(0, 1.0).limit(total) == 0


@pytest.mark.parametrize(
    ("text", "day", "hour", "inside"),
    [
        ("Mon-Fri 08:00-18:00", 5, 9, True),  # 2026-01-05 is a Monday
        ("Mon-Fri 08:00-18:00", 5, 18, False),
        ("Mon-Fri 08:00-18:00", 10, 9, False),
        ("Sat 22:00-06:00", 10, 23, True),
        ("Sat 22:00-06:00", 11, 5, True),
        ("Sat 22:00-06:00", 11, 6, False),
        ("Sat 22:00-06:00", 10, 5, False),
        ("Fri-Mon 00:00-24:00", 5, 0, True),
        ("Fri-Mon 00:00-24:00", 6, 0, False),
    ],
)
def test_windows(text: str, day: int, hour: int, inside: bool) -> None:
    assert window(text).contains(datetime(2026, 1, day, hour, tzinfo=timezone.utc).timestamp()) is inside
    pool = NodePool("a", windows=("Wed 01:00-02:00", text))
    moment = datetime(2026, 1, day, hour, tzinfo=timezone.utc).timestamp()
    assert pool.is_open(moment) is inside
    assert replace(pool, windows=()).is_open(moment)


@pytest.mark.parametrize(
    ("text", "days", "begin", "end"),
    [
        ("Mon 00:00-24:00", {0}, 0, 1440),
        ("Sat-Mon 22:30-06:15", {5, 6, 0}, 1350, 375),
        ("Sun 23:59-00:00", {6}, 1439, 0),
        ("Tue-Tue 01:00-01:00", {1}, 60, 60),
        ("Tue-Mon 08:59-18:00", set(range(7)), 539, 1080),
    ],
)
def test_windows_in_minutes(text: str, days: set[int], begin: int, end: int) -> None:
    assert window(text) == MaintenanceWindow(frozenset(days), begin, end)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Mon 08:00", "is not a window; use for example Mon-Fri 08:00-18:00"),
        ("Day 08:00-18:00", "is not a window"),
        ("Mon-Day 08:00-18:00", "is not a window"),
        ("Mon 25:00-26:00", "has a time that does not exist; use 00:00 to 24:00"),
        ("Mon 08:00-25:00", "has a time that does not exist"),
        ("Mon 08:00-24:01", "has a time that does not exist"),
        ("Mon 24:00-06:00", "has a time that does not exist"),
        ("Mon 08:60-18:00", "has a time that does not exist"),
        ("Mon 08:00-18:60", "has a time that does not exist"),
    ],
)
def test_times_that_do_not_exist(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"^'{text}' {error}"):
        window(text)


@pytest.mark.parametrize(("minute", "inside"), [(539, False), (540, True), (541, True), (599, True), (600, False)])
def test_a_window_contains_its_first_minute(minute: int, inside: bool) -> None:
    """And not the one at which it ends; a window of 24 hours begins at its time of the day, too."""
    monday = datetime(2026, 1, 5, minute // 60, minute % 60, tzinfo=timezone.utc)
    assert window("Mon 09:00-10:00").contains(monday.timestamp()) is inside
    assert window("Mon 09:00-09:00").contains(monday.timestamp()) is (minute >= 540)
    assert window("Sun 12:00-10:00").contains(monday.timestamp()) is (minute < 600)
    assert not window("Tue 12:00-10:00").contains(monday.timestamp())
