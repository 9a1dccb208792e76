"""A real Alertmanager as a child process, a webhook receiver, and the committed alerts with short waits."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpu_exporter.conditions.signal import RATE_WINDOW
from tests import ROOT
from tests.support.tools import LIMIT, free_port, tool, until

ALERTS = ROOT / "alerts"
CONFIG = ALERTS / "examples" / "alertmanager.yaml"
RATE = "6s"
RULES = sorted(path.stem for path in ALERTS.glob("*.yaml"))


class Hook:
    """A webhook receiver with the received messages and their paths."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        messages = self.messages

        class Receive(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                messages.append((self.path, json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Messages are kept, not printed."""

        self._server = HTTPServer(("127.0.0.1", 0), Receive)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Hook:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def received(self, alert: str, status: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the alerts of this name and status, with the paths of their messages."""
        return [
            (path, each)
            for path, message in list(self.messages)
            for each in message["alerts"]
            if each["labels"]["alertname"] == alert and each["status"] == status
        ]


class Alertmanager:
    """A running Alertmanager."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to its API."""
        connection = HTTPConnection(self.address, timeout=LIMIT)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, f"/api/v2/{path}", text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            return json.loads(content) if content else None
        finally:
            connection.close()

    def ready(self) -> bool:
        """Return whether it answers."""
        try:
            return bool(self.ask("GET", "status"))
        except OSError:
            return False

    def send(self, alerts: Sequence[Mapping[str, str]]) -> None:
        """Make alerts with these labels fire."""
        ends = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
        self.ask("POST", "alerts", [{"labels": dict(labels), "endsAt": ends} for labels in alerts])

    def inhibited(self) -> set[tuple[str, str]]:
        """Return alertname and `UUID` or node of each inhibited alert."""
        return {
            (each["labels"]["alertname"], each["labels"].get("UUID") or each["labels"].get("node", ""))
            for each in self.ask("GET", "alerts")
            if each["status"]["inhibitedBy"]
        }


@contextmanager
def alertmanager(folder: Path, hook: Hook) -> Iterator[Alertmanager]:
    """Run the committed configuration with short waits and webhooks that lead to `hook`."""
    config, port = yaml.safe_load(CONFIG.read_text()), free_port()
    for receiver in config["receivers"]:
        for webhook in receiver.get("webhook_configs", ()):
            webhook["url"] = hook.url + urlsplit(webhook["url"]).path
    _hurry(config["route"])
    path = folder / "alertmanager.yml"
    path.write_text(json.dumps(config))
    options = {
        "config.file": path,
        "storage.path": folder / "alertmanager",
        "web.listen-address": f"127.0.0.1:{port}",
        "cluster.listen-address": "",
    }
    program = tool("prometheus-alertmanager")
    arguments = [str(program), *(f"--{name}={value}" for name, value in options.items())]
    # The one of `make tools` finds its templates in usr/share from here.
    root = program.parent.parent.parent
    with (folder / "alertmanager.log").open("wb") as output:
        process = subprocess.Popen(arguments, cwd=root, stdout=output, stderr=output)
    try:
        found = Alertmanager(port)
        until(found.ready, what="Alertmanager's start")
        yield found
    finally:
        process.kill()
        process.wait()


def _hurry(route: dict[str, Any]) -> None:
    for name in ("group_wait", "group_interval"):
        if name in route:
            route[name] = "1s"
    for each in route.get("routes", ()):
        _hurry(each)


def without_count(expression: str) -> str:
    """Return the expression of an alert that counts its hold from samples, with a hold of one sample."""
    return re.sub(r"(count_over_time\(.*\)) >= \d+", r"\1 >= 1", expression)


def rules(folder: Path, hold: str, rate: str = RATE) -> list[Path]:
    """Write the committed rules, with `hold` instead of each `for` and without `keep_firing_for`.

    Rates are over `rate`: over a window longer than the exporter's life, Prometheus underestimates a rate.
    """
    written = []
    for name in RULES:
        content = yaml.load((ALERTS / f"{name}.yaml").read_text(), Loader=yaml.CSafeLoader)
        for group in content["groups"]:
            for rule in group["rules"]:
                rule.pop("keep_firing_for", None)
                for before, after in ((f"[{RATE_WINDOW}]", f"[{rate}]"), (f"offset {RATE_WINDOW}", f"offset {rate}")):
                    rule["expr"] = rule["expr"].replace(before, after)
                if "for" in rule:
                    rule["for"] = hold
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps(content))
        written.append(path)
    return written


def linked_rules(folder: Path, page: str) -> Path:
    """Write the rules of the chart with links to this page (`prometheusRule.pageUrl`), and with short waits."""
    from tests.support import chart

    content = chart.rules({"prometheusRule": {"pageUrl": page}})
    for rule in (rule for group in content["groups"] for rule in group["rules"]):
        rule.pop("keep_firing_for", None)
        rule["expr"] = without_count(rule["expr"].replace(f"[{RATE_WINDOW}]", f"[{RATE}]"))
        if "for" in rule:
            rule["for"] = "1s"
    path = folder / "rules.yaml"
    path.write_text(json.dumps(content))
    return path
