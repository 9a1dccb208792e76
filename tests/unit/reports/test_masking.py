"""Command lines lose their secrets, and names become placeholders."""

from __future__ import annotations

import pytest

from gpu_exporter.reports.masking import Names, without_secrets


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python train.py --lr 0.1 --batch-size 32", "python train.py --lr 0.1 --batch-size 32"),
        ("serve --api-key abc123 --port 1", "serve --api-key *** --port 1"),
        ("serve --api-key=abc123", "serve --api-key=***"),
        ("env HF_TOKEN=hf_abcdefghij python x.py", "env HF_TOKEN=*** python x.py"),
        ("run --db postgres://user:hunter2@db/x", "run --db postgres://user:***@db/x"),
        ("run --password hunter2", "run --password ***"),
        ("curl -H Authorization:eyJhbGciOiJIUzI1NiJ9.e30.x", "curl -H Authorization:***"),
        ("x hf_abcdefghijklmno", "x ***"),
        ("vllm serve --tokenizer mistral --max-tokens 4096", "vllm serve --tokenizer mistral --max-tokens 4096"),
    ],
)
def test_secrets_in_command_lines(command: str, shown: str) -> None:
    assert without_secrets(command) == shown


def test_pseudonyms() -> None:
    """They depend on nothing but the name, so all nodes and reports have the same ones."""
    names = Names(mask=True)
    assert [names.name("pod", text) for text in ("a", "b", "a", "")] == [
        "pod-433911c6",
        "pod-a120d0ad",
        "pod-433911c6",
        "",
    ]
    assert names.name("uuid", "a", "GPU-{}") == "GPU-433911c6eb0d"
    assert Names(mask=False).name("pod", "a") == "a"


def test_labels() -> None:
    """A job has the same pseudonym whatever the label is called, and labels that nobody knows are masked, too."""
    labels = {
        "namespace": "ml",
        "job_id": "4711",
        "label_team": "red",
        "rank": "3",
        "pid": "7",
        "memory": 1.0,
        "uid": "",
    }
    masked = Names(mask=True).labels(labels)
    assert masked["job_id"] == Names(mask=True).name("workload", "4711")
    assert {name for name, text in masked.items() if text == labels[name]} == {"rank", "pid", "memory", "uid"}
    assert Names(mask=False).labels(labels) == labels
