"""The fuzzing target of texts from outside: a text in every label of every input, through every output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.harness import Parser, Target
from tests.support.outputs import MARKUP, outputs, wrong

TOKENS = (
    *(
        b"\x1b[2J",
        b"\x1b]0;x\x07",
        b"\x1bP",
        b"\x9b",
        b"\xc2\x9b",
        b"\xc2\x85",
        b"\x7f",
        b"\0",
        b"\r\n",
        b"\t",
        b"\x08",
    ),
    *("\u202e".encode(), "\u2066".encode(), "\u200f".encode(), "\u2028".encode(), "\ufeff".encode(), b"\xed\xa0\x80"),
    *(MARKUP.encode(), b"<!--", b"]]>", b"&lt;", b"</script>", b"%s", b"%n", b"{0}", b"\\x1b", b"\\u001b", b"`"),
)
# In characters: what is longer is cut, which the tests of each output try.
LONGEST = 80


@contextmanager
def _outputs(folder: Path) -> Iterator[Parser]:
    def take(content: bytes) -> Iterable[str]:
        problems = {}
        for shown in outputs(content.decode("utf-8", "replace"), folder):
            if why := wrong(shown):
                problems[shown.name] = why
        assert not problems, problems
        return ()

    yield Parser(take)


def _texts() -> Sequence[bytes]:
    return [
        b"NVIDIA H200",
        "Träning-データ".encode(),
        b"ml/train-0",
        b"python train.py --x=1",
        MARKUP.encode(),
        *TOKENS,
    ]


TARGET = Target("hostile-text", _texts, _outputs, tokens=TOKENS, longest=LONGEST)
