"""`gpu-exporter rewrite`: what it prints, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_exporter.cli.rewrite import rewrite_command


@pytest.mark.parametrize(
    ("rule", "code", "after", "messages"),
    [
        ("nvidia_smi_pstate > 2", 0, '"DCGM_FI_DEV_PSTATE > 2"', ["1 queries rewritten, 0 not"]),
        ("up == 0", 0, "up == 0", ["0 queries rewritten, 0 not"]),
        (
            "nvidia_smi_gom_current",
            3,
            "|-\n      # not rewritten: nvidia_smi_gom_current has no counterpart\n      nvidia_smi_gom_current",
            [
                "0 queries rewritten, 1 not",
                "nvidia_smi_gom_current: nvidia_smi_gom_current has no counterpart",
            ],
        ),
    ],
)
def test_a_file_of_rules(tmp_path: Path, rule: str, code: int, after: str, messages: list[str]) -> None:
    """The file goes to stdout, what was done to stderr; the file itself stays."""
    path = tmp_path / "rules.yaml"
    path.write_text(f"groups:\n- rules:\n  - expr: {rule}\n")
    done = CliRunner().invoke(rewrite_command, [str(path)])

    assert (done.exit_code, done.stdout) == (code, f"groups:\n- rules:\n  - expr: {after}\n")
    assert done.stderr.splitlines() == [f"{path}: {messages[0]}", *messages[1:]]
    assert rule in path.read_text()


@pytest.mark.parametrize("content", [b"text", b"{", b"\xff"])
def test_another_file_is_an_error_in_one_line(tmp_path: Path, content: bytes) -> None:
    """Nothing is printed."""
    path = tmp_path / "x"
    path.write_bytes(content)
    done = CliRunner().invoke(rewrite_command, [str(path)])

    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f": {path}: " in line
