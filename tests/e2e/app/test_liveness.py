"""Hangs outside of the driver: a log that is not read, files that hang, a collection loop that stops."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fcntl import F_SETPIPE_SZ, fcntl
from pathlib import Path

import pytest

from gpu_exporter.app.endpoint import EXPIRY_SECONDS
from tests import ROOT
from tests.conftest import Exporter, Serve, command
from tests.e2e.app.test_web import TLS, Pki
from tests.e2e.cli.test_bad_input import fails
from tests.e2e.pipeline.test_faults import states, up
from tests.e2e.pipeline.test_hand_over import bearer
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import LIMIT, until

REPLAY = ("--source", "replay", "--recording", "h200_workloads", "--interval", "200ms")
DROPPED, MADE = "gpu_exporter_log_dropped_total", "gpu_exporter_snapshot_timestamp_seconds"
ROW = "DCGM_FI_DEV_GPU_TEMP, gauge, x\n"
# Each reload of this fields file logs more than twenty lines.
BAD_ROWS = ROW + "DCGM_FI_DEV_GPU_TEMP, none, x\n" * 30


@dataclass
class Hanging:
    """Files whose open hangs while the file `switch` exists."""

    switch: Path
    beginning: str

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process whose files hang."""
        folder = ROOT / "tests" / "support" / "fakes" / "hanging_files"
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, "HANGING_FILES": self.beginning, "HANGING_WHILE": str(self.switch)}

    def begin(self) -> None:
        """Make every open of these files hang from now on."""
        self.switch.touch()

    def end(self) -> None:
        """Let the hanging calls continue."""
        self.switch.unlink()

    def hangs(self) -> bool:
        """Return whether the process hangs, or has hung, when it opens one."""
        return self.switch.with_name(f"{self.switch.name}.opened").exists()


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe of 4 KiB that is not read: the end for stderr, and one to fill it with."""
    reader, writer = os.pipe()
    fcntl(writer, F_SETPIPE_SZ, 4096)
    filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
    yield writer, filler
    for descriptor in (reader, writer, filler):
        os.close(descriptor)


def fill(filler: int) -> None:
    """Fill a pipe to the last byte."""
    for size in (4096, 1):
        try:
            while True:
                os.write(filler, b"x" * size)
        except BlockingIOError:
            continue


def drops(exporter: Exporter, token: Path) -> bool:
    """Reload a few times; return whether log lines have been dropped."""
    assert {exporter.ask("POST", "/-/reload", bearer(token)) for _ in range(10)} == {(200, "ok\n")}
    return exporter.page().value(DROPPED) > 0


def status(exporter: Exporter, path: str) -> int:
    """Return the status code of a response."""
    return exporter.get(path)[0].status


# --- a log that is not read ------------------------------------------------------------------------------------------


def test_unread_log(serve: Serve, full_pipe: tuple[int, int], tmp_path: Path) -> None:
    """A lost GPU is reported as lost, a malformed request has no effect, and lines are dropped and counted."""
    driver, fields = FakeDriver(tmp_path / "driver", gpus=2), tmp_path / "fields.csv"
    fields.write_text(ROW)
    stderr, filler = full_pipe
    arguments = ("--interval", "200ms", "--web.enable-lifecycle", "--token-file", str(tmp_path / "token"))
    exporter = serve(*arguments, "--collectors", str(fields), env=driver.environment, stderr=stderr)
    page = exporter.until(lambda page: states(page) == up(2))
    assert page.value(DROPPED) == 0

    fill(filler)
    driver.lose(1)
    exporter.until(lambda page: states(page) == up(2, gpu1="lost"))
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", exporter.port), timeout=LIMIT) as malformed:
            malformed.sendall(b"garbage\r\n\r\n")
            malformed.shutdown(socket.SHUT_WR)
            assert malformed.recv(65536)[:12] in (b"", b"HTTP/1.1 400")
    before = exporter.page().value(MADE)
    exporter.until(lambda page: page.value(MADE) > before)

    fields.write_text(BAD_ROWS)
    until(lambda: drops(exporter, tmp_path / "token"), 60, "a drop")
    assert exporter.stop() == 0


def test_a_log_that_is_read_again(serve: Serve, full_pipe: tuple[int, int], tmp_path: Path) -> None:
    """The next line says how many lines are missing."""
    fields = tmp_path / "fields.csv"
    fields.write_text(ROW)
    stderr, filler = full_pipe
    lifecycle = ("--web.enable-lifecycle", "--token-file", str(tmp_path / "token"))
    exporter = serve(*REPLAY, *lifecycle, "--collectors", str(fields), stderr=stderr)
    fill(filler)
    fields.write_text(BAD_ROWS)
    until(lambda: drops(exporter, tmp_path / "token"), 60, "a drop")

    with open(f"/proc/self/fd/{stderr}", "rb", buffering=0) as reader:
        os.set_blocking(reader.fileno(), False)
        said = b""

        def read() -> bool:
            nonlocal said
            said += reader.read(65536) or b""
            return b"log lines were dropped" in said

        until(read, what="the line that says how many")


def test_failing_start_with_an_unread_log(full_pipe: tuple[int, int], tmp_path: Path) -> None:
    """It exits with the code of an error, although it cannot say why."""
    stderr, filler = full_pipe
    fill(filler)
    ended = subprocess.run(
        command("serve", *REPLAY, "--collectors", str(tmp_path / "gone")), stderr=stderr, timeout=LIMIT
    )
    assert ended.returncode == 1


# --- files that hang, or are none -----------------------------------------------------------------------------------


def test_a_web_config_that_hangs(serve: Serve, tmp_path: Path) -> None:
    """Scrapes succeed, the previous configuration stays in use, and the new one is used once the file can be read."""
    path = tmp_path / "web.yml"
    path.write_text("{}")
    hanging = Hanging(tmp_path / "hang", str(path))
    exporter = serve(*REPLAY, "--web.config.file", str(path), env=hanging.environment)
    hanging.begin()
    until(hanging.hangs, what="an open of the file")
    first = exporter.page().value(MADE)
    exporter.until(lambda page: page.value(MADE) > first + 1)
    assert (status(exporter, "/healthz"), status(exporter, "/readyz")) == (200, 200)
    until(lambda: "no answer within 5 s; the previous one stays in use" in exporter.log.read_text(), what="a line")

    path.write_text("http_server_config: {headers: {X-Frame-Options: sameorigin}}")
    hanging.end()
    until(lambda: exporter.get()[0].headers["X-Frame-Options"] == "sameorigin", what="the new file")
    assert exporter.log.read_text().count("no answer within") == 1


def test_ends_while_a_web_config_hangs(serve: Serve, tmp_path: Path) -> None:
    """POST /-/reload answers that the file cannot be read, and SIGTERM ends the exporter."""
    path = tmp_path / "web.yml"
    path.write_text("{}")
    hanging = Hanging(tmp_path / "hang", str(path))
    lifecycle = ("--web.enable-lifecycle", "--token-file", str(tmp_path / "token"))
    exporter = serve(*REPLAY, *lifecycle, "--web.config.file", str(path), env=hanging.environment)
    hanging.begin()
    until(hanging.hangs, what="an open of the file")
    answer = exporter.ask("POST", "/-/reload", bearer(tmp_path / "token"))
    assert answer == (500, f"web config {path}: no answer within 5 s\n")
    assert exporter.stop() == 0


@pytest.mark.parametrize("option", ["--web.config.file", "--collectors"])
def test_a_file_that_hangs_at_the_start(tmp_path: Path, option: str) -> None:
    """The start fails with one line."""
    path = tmp_path / "file"
    path.write_text("{}")
    hanging = Hanging(tmp_path / "hang", str(path))
    hanging.begin()
    said = fails("serve", *REPLAY, "--address", "127.0.0.1:0", option, str(path), env=hanging.environment)
    assert f"{path}: no answer within 5 s" in said


def test_a_certificate_that_hangs(serve: Serve, tmp_path: Path) -> None:
    """While the exporter runs, scrapes continue with the previous one; at the start, it is an error."""
    pki = Pki(tmp_path)
    hanging = Hanging(tmp_path / "hang", str(tmp_path / "server.pem"))
    config = ("--web.config.file", pki.config(TLS))
    exporter = serve(*REPLAY, *config, tls=pki.context(), env=hanging.environment)
    hanging.begin()
    until(hanging.hangs, what="a read of the certificate")
    first = exporter.page().value(MADE)
    exporter.until(lambda page: page.value(MADE) > first + 1)
    until(lambda: "no answer within 5 s; the previous one stays in use" in exporter.log.read_text(), what="a line")
    assert exporter.stop() == 0

    said = fails("serve", *REPLAY, "--address", "127.0.0.1:0", *config, env=hanging.environment)
    assert "web.yml: no answer within 5 s" in said


def test_ends_while_the_start_hangs(tmp_path: Path) -> None:
    """SIGTERM ends the exporter, whatever the start waits for."""
    path = tmp_path / "web.yml"
    path.write_text("{}")
    hanging = Hanging(tmp_path / "hang", str(path))
    hanging.begin()
    arguments = command("serve", *REPLAY, "--address", "127.0.0.1:0", "--web.config.file", str(path))
    with subprocess.Popen(arguments, env={**os.environ, **hanging.environment}, text=True) as process:
        try:
            until(hanging.hangs, what="an open of the file")
            assert Exporter(process, 0, tmp_path / "log").stop() == 0
        finally:
            process.kill()


def test_a_state_directory_that_hangs(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """From the start on: the exporter serves without the earlier counts, logs that, and ends in time."""
    hanging = Hanging(tmp_path / "hang", str(tmp_path / "state"))
    hanging.begin()
    exporter = serve(
        "--interval", "200ms", "--state-dir", str(tmp_path / "state"), env={**driver.environment, **hanging.environment}
    )
    exporter.until(lambda page: states(page) == up(1))
    lost = r"events\.json: no answer within 5 s; XIDs are counted"
    until(lambda: re.search(lost, exporter.log.read_text()), what="the line in the log")
    driver.xid(0, 48)
    exporter.until(lambda page: page.values("gpu_xid_events_total", xid="48") == [1])
    assert exporter.stop() == 0


def test_a_state_directory_that_hangs_at_the_end(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """The exporter does not wait for events that cannot be saved in time."""
    hanging = Hanging(tmp_path / "hang", str(tmp_path / "state"))
    exporter = serve(
        "--interval", "200ms", "--state-dir", str(tmp_path / "state"), env={**driver.environment, **hanging.environment}
    )
    exporter.until(lambda page: states(page) == up(1))
    hanging.begin()
    assert exporter.stop() == 0


def test_ends_while_everything_hangs(serve: Serve, full_pipe: tuple[int, int], tmp_path: Path) -> None:
    """The log, the state directory and a driver call hang at the same time, while pages are made."""
    driver, hanging = FakeDriver(tmp_path / "driver", gpus=2), Hanging(tmp_path / "hang", str(tmp_path / "state"))
    driver.lock("gpu")
    stderr, filler = full_pipe
    arguments = ("--interval", "200ms", "--state-dir", str(tmp_path / "state"))
    exporter = serve(*arguments, env={**driver.environment, **hanging.environment}, stderr=stderr)
    exporter.until(lambda page: states(page) == up(2))
    fill(filler)
    hanging.begin()
    driver.xid(0, 48)
    driver.block(1)
    page = exporter.until(lambda page: states(page) == up(2, gpu1="stalled"))
    until(hanging.hangs, what="an event to be saved")
    exporter.until(lambda later: later.value(MADE) > page.value(MADE))
    assert exporter.stop() == 0


@pytest.mark.parametrize("name", ["events.json", "events.jsonl", "events.draft"])
def test_a_fifo_in_place_of_a_state_file(serve: Serve, driver: FakeDriver, tmp_path: Path, name: str) -> None:
    """The log has one line about it, and everything else works."""
    os.mkfifo(tmp_path / name)
    exporter = serve("--interval", "200ms", "--state-dir", str(tmp_path), env=driver.environment)
    exporter.until(lambda page: states(page) == up(1))
    driver.xid(0, 48)
    exporter.until(lambda page: page.values("gpu_xid_events_total", xid="48") == [1])
    assert exporter.stop() == 0
    assert exporter.log.read_text().count("not a regular file") == 1


def test_a_fifo_in_place_of_a_file_of_fields(tmp_path: Path) -> None:
    """The start fails with one line."""
    os.mkfifo(tmp_path / "fifo")
    for option in ("--web.config.file", "--collectors"):
        said = fails("serve", *REPLAY, "--address", "127.0.0.1:0", option, str(tmp_path / "fifo"))
        assert "fifo: not a regular file" in said


def test_a_token_file_that_hangs(serve: Serve, tmp_path: Path) -> None:
    """The exporter does not wait for its removal."""
    hanging = Hanging(tmp_path / "hang", str(tmp_path / "token"))
    exporter = serve(*REPLAY, "--token-file", str(tmp_path / "token"), env=hanging.environment)
    hanging.begin()
    assert exporter.stop() == 0


# --- pages that are too old -----------------------------------------------------------------------------------------


def test_a_page_that_is_too_old_is_not_served(serve: Serve, tmp_path: Path) -> None:
    """When the loop makes no pages, every path with data answers with one line that says so.

    The live page shows this line. When the loop makes pages again, they are served.
    """
    # The metrics of the process itself are read where pages are made.
    hanging = Hanging(tmp_path / "hang", "/proc/self/stat")
    exporter = serve(*REPLAY, env=hanging.environment)
    exporter.until(lambda page: page.values("gpu_up") == [1])
    hanging.begin()
    until(lambda: status(exporter, "/metrics") == 503, EXPIRY_SECONDS + 15, "the end of the page")
    for path in ("/metrics", "/healthz", "/readyz", "/api/v1/gpus"):
        answer, body = exporter.get(path)
        assert answer.status == 503
        line = rb"no new metrics since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, \d+ s ago: the collection loop hangs\n"
        assert re.fullmatch(line, body)
    assert status(exporter, "/") == 200
    hanging.end()
    until(lambda: status(exporter, "/metrics") == 200, what="a new page")
    assert status(exporter, "/healthz") == 200
    until(lambda: status(exporter, "/readyz") == 200, what="a new snapshot")


def test_gpus_that_do_not_answer_make_no_page_too_old(serve: Serve, tmp_path: Path) -> None:
    """They may be stuck or lost for any time."""
    driver = FakeDriver(tmp_path / "driver", gpus=3)
    driver.lock("gpu")
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: states(page) == up(3))
    driver.block(0)
    driver.block(1)
    driver.lose(2)
    stalled = "gpu_read_stalled_seconds"
    page = exporter.until(lambda page: min(page.values(stalled, gpu="0")) > EXPIRY_SECONDS + 1, 30)
    assert states(page) == {0: "stalled", 1: "stalled", 2: "lost"}
    assert (status(exporter, "/metrics"), status(exporter, "/healthz")) == (200, 200)
