"""Whether release/smoke.sh notices that an image does not work, with a program in the place of Docker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

DOCKER = """#!/bin/sh
echo "$@" >>calls
case $1 in
  run) echo id ;;
  logs) echo 'a log' ;;
  exec) [ "$(grep -c ^exec calls)" -ge %d ] || { echo 'no exporter listens'; exit 1; } ;;
esac
"""


@pytest.mark.parametrize(("attempts", "healthy"), [(2, True), (99, False)])
def test_smoke(tmp_path: Path, attempts: int, healthy: bool) -> None:
    """It waits, says why an image is not healthy, and always removes the container."""
    for name, text in {"docker": DOCKER % attempts, "sleep": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    ran = subprocess.run(
        ["sh", ROOT / "release" / "smoke.sh", "image:1", "serve", "--source", "simulated"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode == 0) is healthy
    assert (ran.stdout == "image:1 is healthy\n") is healthy
    assert ("image:1 is not healthy: no exporter listens" in ran.stderr) is not healthy
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "run --detach image:1 serve --source simulated"
    assert calls[-1] == "rm --force id"
