"""Decoding of untrusted content."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from typing import TypedDict

import pytest

from gpu_exporter.io.decoding import gunzip, json_as, printable
from gpu_exporter.io.yaml_decoding import yaml_document


class Answer(TypedDict):
    """The content that the tests decode."""

    value: float
    names: list[str]


def test_json_of_the_right_type_is_decoded() -> None:
    assert json_as(Answer, b'{"value": 1, "names": ["a"], "other": null}') == {"value": 1.0, "names": ["a"]}


# Types that no thread has prepared yet, and threads that prepare them at the same time.
AT_ONCE = """
import sys, threading
from dataclasses import make_dataclass
from gpu_exporter.io.decoding import json_as
sys.setswitchinterval(1e-6)
for turn in range(60):
    kind = None
    for depth in range(12):
        inner = [("inner", kind, None)] if kind else []
        kind = make_dataclass(f"D{turn}_{depth}", [(f"f{n}", int, 0) for n in range(8)] + inner)
    gate = threading.Barrier(8)
    threads = [threading.Thread(target=lambda: (gate.wait(), json_as(kind, b"{}"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_the_same_type_at_once() -> None:
    """In a process of its own: msgspec crashes if two threads prepare a type for the first time."""
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"value": "1", "names": []}', "Expected `float`, got `str` - at `$.value`"),
        ('{"value": 1}', "missing required field `names`"),
        ('{"value": Infinity, "names": []}', "not JSON"),
        ('{"value": 1e999, "names": []}', "out of range"),
        ('{"value": 1, "names": [], "x": ' + "[" * 100_000, "not JSON"),
        ("[1]", "Expected `object`, got `array`"),
        ('{"value": 1', "not JSON"),
        (b'{"value": 1, "names": ["\xff"]}', "not JSON"),
        ("", "not JSON"),
    ],
)
def test_other_json_is_one_line(content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        json_as(Answer, content)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250


def test_yaml_keeps_its_booleans_and_anchors() -> None:
    content = "a: yes\nb: on\nc: &c {x: 1}\nd: *c\ne: {<<: *c, y: 0x10}\nf: 0\ng: 0.5\nh: '1:30'\ni: 09:00x\n"
    assert yaml_document(content) == {
        "a": True,
        "b": True,
        "c": {"x": 1},
        "d": {"x": 1},
        "e": {"x": 1, "y": 16},
        "f": 0,
        "g": 0.5,
        "h": "1:30",
        "i": "09:00x",
    }
    assert yaml_document("") is None


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BOMB, "its aliases expand to more than 10000 values"),
        ("a: &a [*a]\n", "an alias contains itself"),
        ("[" * 5000, "nested too deeply"),
        ("a: 1\nb: 2\na: 3\n", "line 3: a is a duplicate key; keep one"),
        ("x: {a: 1, a: 3}\n", "line 1: a is a duplicate key"),
        ("a: 1:30\n", "line 1: 1:30 is a base 60 number in YAML; put it in quotes"),
        ("a: 010\n", "line 1: 010 is an octal number in YAML"),
        ("a: [\n", "not YAML in line 2"),
        ("a: *b\n", "not YAML in line 1"),
        ("a: !!python/object:os.system x\n", "not YAML in line 1"),
        ("a: \x00\n", "not YAML: special characters are not allowed"),
        (b"a: \xff\n", "not YAML"),
        ("a: 1\n---\nb: 2\n", "not YAML in line 2"),
        ("? [a]\n: 1\n", "not YAML in line 1"),
        ("a: !!int x\n", "not YAML"),
        ("a: !!timestamp 2020-99-99\n", "not YAML"),
        ("a: !!timestamp x\n", "not YAML"),
        ("a: !!bool x\n", "not YAML"),
        ("a: !!int ''\n", "not YAML"),
        ("a: " + "1" * 5000, "not YAML"),
        ("x" * (1 << 18) + "x", "larger than 256 KiB"),
        ("a: 1\n" * 50_000, "more than 10000 values"),
        ("[" + "[]," * 80_000 + "]", "more than 10000 values"),
        ("{" * 200_000, "nested too deeply"),
    ],
)
def test_other_yaml_is_one_line(content: str | bytes, message: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r".") as error:
        yaml_document(content)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert time.process_time() - started < 2


def test_gzip_is_unpacked_up_to_a_limit() -> None:
    packed = gzip.compress(b"x" * 1000)
    assert gunzip(packed, 1000) == b"x" * 1000
    for content, message in (
        (gzip.compress(bytes(1 << 24)), "larger than 1 MiB when unpacked"),
        (packed[:-9], "it ends too early"),
        (b"plain text", "not gzip"),
    ):
        with pytest.raises(ValueError, match=message):
            gunzip(content, 1 << 20)


def test_printable_text_has_no_terminal_controls() -> None:
    assert printable("a\x1b[31mb\nc\u202ed", 20) == "a\ufffd[31mb c\ufffdd"
    assert printable("x" * 50, 10) == "x" * 9 + "…"
