"""The controller's configuration: defaults, selectors, windows, budgets, and errors that name the item and the fix."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from gpu_exporter.remediation.settings import Budget, Mode, Pool, Scope, parse
from gpu_exporter.remediation.windows import window

MINIMAL = "namespace: gpu\nexporters: {namespace: gpu}\n"


def test_defaults() -> None:
    settings = parse(f"{MINIMAL}pools: [{{name: all}}]".encode())
    assert settings.pools[0].mode is Mode.OBSERVE
    assert settings.pools[0].budget == Budget(1, 0.1)
    assert settings.pools[0].drain.pods is Scope.GPU


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
        ("pools: [{name: a, mode: delete}]", "Invalid enum value 'delete'"),
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
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{error}"):
        parse(f"{MINIMAL}{text}".encode())


def test_a_port_of_exporters() -> None:
    with pytest.raises(ValueError, match=r"^exporters\.port: 94000 is not a port; use 1 to 65535"):
        parse(b"namespace: gpu\nexporters: {namespace: gpu, port: 94000}\npools: [{name: a}]")


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("", {}, True),
        ("pool=a", {"pool": "a"}, True),
        ("pool=a", {"pool": "b"}, False),
        ("pool!=a", {}, True),
        ("pool,!test", {"pool": "a"}, True),
        ("pool,!test", {"pool": "a", "test": ""}, False),
        ("nvidia.com/gpu.present=true, zone==z1", {"nvidia.com/gpu.present": "true", "zone": "z1"}, True),
    ],
)
def test_selectors(selector: str, labels: dict[str, str], matches: bool) -> None:
    assert Pool("a", selector).matches(labels) is matches


@pytest.mark.parametrize(("total", "limit"), [(0, 0), (2, 0), (3, 1), (10, 1), (29, 2), (1000, 5)])
def test_a_budget_is_the_smaller_of_number_and_share(total: int, limit: int) -> None:
    """Rounded down; one node of three is the least, and of one or two nodes none."""
    assert Budget(5, 0.1).limit(total) == limit


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
