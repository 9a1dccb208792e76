"""Short runs of `make soak`."""

import re
import subprocess
import sys
from pathlib import Path

from tests.soak.faults import soak
from tests.soak.trouble import INTERVAL, SCRAPERS, trouble


def test_faults_at_random_leave_a_working_exporter(tmp_path: Path) -> None:
    """During twenty seconds of random faults, every scrape succeeds; threads are bounded, descriptors do not grow."""
    used = soak(tmp_path, seconds=20, seed=7)

    middle = len(used) // 2
    assert max(fds for *_, fds in used[middle:]) <= max(fds for *_, fds in used[:middle]) + 2


def test_2000_ticks() -> None:
    """With faults and hand-overs, memory, threads and descriptors do not grow."""
    soak = subprocess.run([sys.executable, "-m", "tests.soak.ticks", "--ticks", "2000"], capture_output=True, text=True)

    assert soak.returncode == 0, soak.stdout + soak.stderr
    assert {"up", "lost", "source_lost", "released"} <= set(re.findall(r"(\w+) \d+", soak.stdout))


def test_everything_that_blocks_at_once(tmp_path: Path) -> None:
    """Two GPUs and the state directory hang, the log is not read, and idle connections pile up: no scrape fails."""
    outcome = trouble(tmp_path, seconds=12, gpus=2)

    assert outcome.failures == []
    assert len(outcome.scrapes) >= SCRAPERS
    assert max(outcome.detection) < 15 * INTERVAL  # three on an idle machine
    assert outcome.exit_code == 0
