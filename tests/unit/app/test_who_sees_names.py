"""Who sees lines of code and the names of owners: users that may see profiles, others with and without masked names."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from gpu_exporter.app.endpoint import Endpoint, NodeHealth
from gpu_exporter.app.lifecycle import Lifecycle
from gpu_exporter.app.server import exporter_server
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.diagnosis.masking import DiagnosisNames
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.token_file import Token
from gpu_exporter.io.user_text import Address
from gpu_exporter.live_page.monitor import LiveMonitor
from gpu_exporter.live_page.stream import StreamListener
from gpu_exporter.live_page.thread import LiveNode
from gpu_exporter.model.gpu import Sample, Series
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.verdict import Verdict
from gpu_exporter.pipeline.pages import Page, Pages
from gpu_exporter.reports.masking import Names
from tests import ROOT
from tests.support.table import table_test
from tests.unit.diagnosis.test_current import GPUS, snapshots, watched

SCHEMA = json.loads((ROOT / "gpu_exporter" / "live_page" / "schema.json").read_text())
JOB, PROCESS = "secret-job", "secret-program"
CODE = "Profile of GPU 0, 1 min ago: process 7 (secret-program) spent 90 % of the time waiting at /secret.py(3): load"
MASKED = DiagnosisNames(mask=True)


def snapshot() -> Snapshot:
    """Return a snapshot of a job whose first rank is starved, and of a process."""
    last = snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3], JOB)[-1]
    labels = (("pid", "7"), ("process", PROCESS), ("uid", "4242"))
    process = Sample(Series(m.PROCESS_SM, GPUS[0], labels), 0.5)
    return replace(last, samples=(*last.samples, process), verdicts=tuple(Verdict(gpu) for gpu in GPUS))


class Events:
    """A log with an XID of a process."""

    def recent(self) -> list[dict[str, Any]]:
        """Return it."""
        texts = {"name": "", "kind": "fatal", "action": "drain", "meaning": ""}
        return [{"uuid": "GPU-0", "at": 1.0, "xid": 79, "process": PROCESS, "message": f"name={PROCESS}", **texts}]


def live_node(taken: Snapshot, *, mask: bool) -> LiveNode:
    """Return the live view of a node, with a profile of GPU 0."""
    monitor = LiveMonitor("node-1", 1.0, mask_names=mask)
    monitor.code_of = lambda gpus: {uuid: [CODE] for index, uuid in gpus if index == "0"}
    monitor._watch = watched(snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3], JOB))
    return LiveNode(monitor, lambda: taken, str)


@contextmanager
def served(folder: Path, *, mask: bool, live: bool = True) -> Iterator[tuple[int, str]]:
    """Serve a node whose profiles only mia may see; return the port and the token."""
    web, taken, pages, token = folder / "web.yml", snapshot(), Pages(), Token(folder / "token")
    users = dict.fromkeys(("mia", "eve"), bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode())
    web.write_text(json.dumps({"basic_auth_users": users}))
    pages.publish(Page([]))
    health = NodeHealth(1e6, pages)
    health.snapshot = taken
    endpoint = Endpoint(
        "node-1",
        health,
        Events(),  # type: ignore[arg-type]
        live=live_node(taken, mask=mask) if live else None,
        trusted_users=frozenset({"mia"}),
        names=Names(mask=mask),
    )
    server = exporter_server(Address("127.0.0.1", 0), [endpoint], Guard(web), Lifecycle(token=token))
    server.start()
    try:
        with token:
            yield server.port, (folder / "token").read_text().strip()
    finally:
        server.stop()


def basic(user: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:right'.encode()).decode()}"


def asked(port: int, path: str, authorization: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Authorization": authorization})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body


@dataclass(frozen=True, slots=True)
class Row:
    """What a client sees: names, pseudonyms, lines of code; nothing with another status."""

    who: str
    path: str
    mask: bool = False
    live: bool = True
    names: bool = False
    code: bool = False
    status: int = 200


GPUS_PATH, INCIDENTS, XIDS, PAGE = "/api/v1/gpus", "/api/v1/incidents", "/api/v1/events", "/"
ROWS = (
    *(Row("eve", path, names=True) for path in (GPUS_PATH, INCIDENTS, XIDS, PAGE)),
    *(Row("eve", path, mask=True) for path in (GPUS_PATH, INCIDENTS, XIDS, PAGE)),
    *(
        Row("mia", path, mask=mask, names=True, code=True)
        for path in (GPUS_PATH, INCIDENTS, PAGE)
        for mask in (False, True)
    ),
    Row("mia", XIDS, mask=True, names=True),
    Row("eve", GPUS_PATH, mask=True, live=False),
    Row("mia", GPUS_PATH, mask=True, live=False, names=True),
    Row("token", INCIDENTS, mask=True, names=True, code=True),
    Row("token", GPUS_PATH, status=401),
    Row("nobody", PAGE, status=401),
    Row("nobody", INCIDENTS, status=401),
)


@table_test("row", ROWS)
def test_who_sees_what(row: Row, tmp_path: Path) -> None:
    with served(tmp_path, mask=row.mask, live=row.live) as (port, token):
        login = {"token": f"Bearer {token}", "nobody": ""}.get(row.who) or basic(row.who)
        status, body = asked(port, row.path, "" if row.who == "nobody" else login)
    assert status == row.status
    assert ("secret" in body) == row.names
    assert ((CODE if row.path == PAGE else json.dumps(CODE)) in body) == row.code
    if status == 200 and row.mask and not row.names:
        pseudonym = MASKED.name("program", PROCESS) if row.path == XIDS else MASKED.name("workload", JOB)
        assert pseudonym in body


def test_both_lists_of_incidents_agree_with_the_schema(tmp_path: Path) -> None:
    import jsonschema  # takes a second, which each run of fast tests would pay

    with served(tmp_path, mask=True) as (port, _):
        for user in ("mia", "eve"):
            gpus, incidents = (json.loads(asked(port, path, basic(user))[1]) for path in (GPUS_PATH, INCIDENTS))
            jsonschema.validate(gpus, {**SCHEMA, "$ref": "#/$defs/gpus"})
            jsonschema.validate(incidents, {**SCHEMA, "$ref": "#/$defs/incidents"})
            assert gpus["incidents"] == incidents["incidents"]
            (job,) = gpus["jobs"]
            assert incidents["incidents"][0]["jobs"] == [job["name"]]


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("since=24h", 200, '"kept": false'),
        ("since=2026-01-01T00:00Z&until=2026-01-02", 200, '"incidents": []'),
        ("since=yesterday", 400, "'yesterday' is not a time"),
        ("since=1h&until=2h", 400, "'1h' is not before '2h'"),
    ],
)
def test_incidents_of_a_time(query: str, status: int, words: str, tmp_path: Path) -> None:
    import jsonschema  # takes a second, which each run of fast tests would pay

    with served(tmp_path, mask=True) as (port, _):
        found, body = asked(port, f"{INCIDENTS}?{query}", basic("eve"))
    assert found == status
    assert words in body
    if status == 200:
        jsonschema.validate(json.loads(body), {**SCHEMA, "$ref": "#/$defs/past"})
    else:
        assert body.count("\n") == 1


def test_open_pages_of_both_kinds(tmp_path: Path) -> None:
    """Each gets its own events, also one that opens while another is open."""

    async def received() -> list[tuple[bool, bool]]:
        node = live_node(replace(snapshot(), at=1022.0), mask=True)
        pages = [node.stream.add("a", trusted=trusted) for trusted in (False, True)]
        await asyncio.get_running_loop().run_in_executor(None, node.follow)
        events = [await page.next(30) for page in pages if isinstance(page, StreamListener)]
        late = [node.stream.add("a", trusted=trusted) for trusted in (False, True)]
        events += [await page.next(30) for page in late if isinstance(page, StreamListener)]
        return [(CODE in event.decode(), f"ml/{JOB}" in event.decode()) for event in events]

    assert asyncio.run(received()) == [(False, False), (True, True)] * 2
