"""No text from outside controls a terminal, a log, a page or JSON, whichever label contains it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.outputs import MARKUP, outputs, wrong

HOSTILE = {
    "escape sequences": "\x1b]0;OWNED\x07\x1b[2J",
    "C1 controls": "\x9b2J\x9d0;OWNED\x9c\x85",
    "text from right to left": "\u202e\u2066abc\u200f\u061c",
    "lines": "a\nb\rc\u2028d\x0b\x0c\x00",
    "markup": MARKUP,
    "templates": "%s {0} ${x} `|*[a](javascript:b)\\",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_every_output_of_every_input(text: str, tmp_path: Path) -> None:
    """Whatever shows a hostile text shows it as plain text."""
    shown = list(outputs(text, tmp_path))
    assert {output.form for output in shown} == {"lines", "log", "html", "json"}
    assert {output.name: why for output in shown if (why := wrong(output))} == {}
