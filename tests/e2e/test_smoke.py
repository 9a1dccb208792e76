"""The fixtures work."""

import ctypes
import os
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

from tests.conftest import Serve, command, run
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import LIMIT, free_port, until


def test_sigterm_to_any_thread_ends_it(serve: Serve, driver: FakeDriver) -> None:
    """The kernel may deliver a signal to any thread, and after SIGCONT often does not choose the main thread."""
    exporter = serve("--interval", "100ms", env=driver.environment)
    exporter.until(lambda page: page.values("gpu_sm_active_seconds_total") > [1.0])  # long after it has started
    pid = exporter.process.pid
    other = max(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    assert other != pid
    if ctypes.CDLL(None, use_errno=True).tgkill(pid, other, signal.SIGTERM):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    assert exporter.process.wait(LIMIT) == 0


def test_the_main_thread_sleeps(serve: Serve, driver: FakeDriver) -> None:
    """It waits for the stop event, and nothing wakes it meanwhile."""
    exporter = serve("--interval", "100ms", env=driver.environment)
    exporter.until(lambda page: page.values("gpu_sm_active_seconds_total") > [1.0])  # long after it has started
    status = Path(f"/proc/{exporter.process.pid}/task/{exporter.process.pid}/status")
    before, pages = status.read_text(), exporter.page().values("gpu_sm_active_seconds_total")
    exporter.until(lambda page: page.values("gpu_sm_active_seconds_total") > [pages[0] + 1.5])
    assert switches(status.read_text()) == switches(before)


def switches(status: str) -> list[str]:
    """Return how often a thread has given up the CPU."""
    return [line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches")]


def test_the_first_page_is_never_empty(serve: Serve, driver: FakeDriver) -> None:
    """A scrape waits for the first page, because an empty response would look valid."""
    assert serve(env=driver.environment).page().values("gpu_up") in ([0], [1])
    driver.block(0)
    assert serve(env=driver.environment).page().values("gpu_up") == [0]


def test_variables_of_other_options_are_no_settings() -> None:
    """A variable named like `--version` neither ends a command nor changes it."""
    ran = run("metrics", "power", env={"GPU_EXPORTER_VERSION": "0.1.0", "GPU_EXPORTER_DEBUG": "x"})
    assert ran.returncode == 0
    assert "DCGM_FI_DEV_POWER_USAGE" in ran.stdout


def test_serves_with_a_closed_stderr() -> None:
    """Nothing can be logged then, but every scrape is answered."""
    port = free_port()
    arguments = command("serve", "--address", f"127.0.0.1:{port}", "--source", "simulated")
    with subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", *arguments]) as process:
        until(lambda: _answers(port), 20, "an answer")
        process.terminate()
    assert process.returncode == 0


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
