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


def test_placeholders() -> None:
    """Each name of a kind has its own, always the same; a form has the number in its place."""
    names = Names(mask=True)
    assert [names.name("pod", text) for text in ("a", "b", "a", "")] == ["pod-1", "pod-2", "pod-1", ""]
    assert [names.name("uuid", text, "GPU-{:04d}") for text in ("a", "b", "a")] == ["GPU-0001", "GPU-0002", "GPU-0001"]
    assert Names(mask=False).name("pod", "a") == "a"
