"""Which exporters --url, --nodes and --slurm-job name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_exporter.cli.nodes import NodesOption, nodes_of_job
from gpu_exporter.model.errors import GpuExporterError


@pytest.mark.parametrize(
    ("urls", "nodes", "expected", "several"),
    [
        (("http://a:1",), "", ["http://a:1"], False),
        (("http://a:1", "http://b:1", "http://a:1"), "", ["http://a:1", "http://b:1"], True),
        ((), "n[1-2]", ["http://n1:9400", "http://n2:9400"], True),
        (("https://{node}.example/x",), "n1", ["https://n1.example/x"], True),
    ],
)
def test_addresses(urls: Sequence[str], nodes: str, expected: Sequence[str], several: bool) -> None:
    option = NodesOption(urls, nodes, "", 9400)
    assert option.addresses() == expected
    assert option.is_several == several


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (NodesOption(("http://{node}",), "", "", 1), "say which nodes with --nodes"),
        (NodesOption(("http://a", "http://{node}"), "n1", "", 1), r"--nodes: give one --url with \{node\} in it"),
        (NodesOption((), "n[", "", 1), "--nodes: .* is not a list of nodes"),
        (NodesOption((), "n1", "4711", 1), "exclude each other"),
        (NodesOption((), "", "--help", 1), "'--help' is not the number of a job"),
    ],
)
def test_bad_addresses(option: NodesOption, words: str) -> None:
    with pytest.raises(GpuExporterError, match=words):
        option.addresses()


def squeue(folder: Path, script: str) -> None:
    """Make a program that answers as squeue does."""
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_the_nodes_of_a_slurm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the job, its environment says them; elsewhere, squeue does, and names the tasks of an array one by one."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    within = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]"}
    squeue(tmp_path, 'echo "n7" >&2; [ "$2" = --jobs=4712 ] && printf "n[3-4]\\nn9\\n\\n"')
    assert nodes_of_job("4711", within) == "n[1-2]"
    assert nodes_of_job("4712", within) == "n[3-4],n9"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("true", "squeue names no node, so the job does not run; give its nodes with --nodes"),
        ("echo slurm_load_jobs error: Invalid job id >&2; exit 1", "Invalid job id; give its nodes with --nodes"),
        ("", "squeue cannot be run here; give its nodes with --nodes"),
    ],
)
def test_without_the_nodes_of_a_slurm_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if script else str(tmp_path))
    if script:
        squeue(tmp_path, script)
    with pytest.raises(GpuExporterError, match=words):
        nodes_of_job("4712", {})
