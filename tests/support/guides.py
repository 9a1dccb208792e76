"""The guides of docs/guides as programs: each is one shell script, and says what its commands print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import ROOT

FOLDER = ROOT / "docs" / "guides"
BLOCK = re.compile(r"^(?:<!-- (?P<remark>[a-zA-Z ]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
ON_A_GPU, NUMBERS_VARY = "with a GPU", "numbers vary"
NUMBER = re.compile(r"\d+(?:\.\d+)?")
DURATION = re.compile(r"\b0 (?:us|ms|s)\b")
# After the commands of a block: its output ends here.
END = "-- end of block --"


@dataclass(slots=True)
class Block:
    """Commands, and the lines that they print according to the page, of which `varied` are compared without numbers."""

    commands: str
    on_a_gpu: bool
    prints: list[str] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)


def blocks(page: Path) -> list[Block]:
    """Return the commands of a page in their order, each with the output that follows them."""
    made: list[Block] = []
    for match in BLOCK.finditer(page.read_text("utf-8")):
        if match["language"] == "sh":
            made.append(Block(match["text"], match["remark"] == ON_A_GPU))
        elif match["language"] == "text":
            lines = made[-1].varied if match["remark"] == NUMBERS_VARY else made[-1].prints
            lines += match["text"].splitlines()
    return made


def of_language(page: Path, language: str) -> Iterator[str]:
    """Yield the text of each block of a page in another language."""
    return (match["text"] for match in BLOCK.finditer(page.read_text("utf-8")) if match["language"] == language)


def script(of_page: Sequence[Block], port: int, gpu: Mapping[str, str]) -> str:
    """Return a program for bash that runs all blocks, on another port; `gpu` is the environment for a GPU."""
    parts = ["set -euo pipefail", "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"]
    for block in of_page:
        commands = block.commands.replace("9400", str(port)).rstrip()
        if block.on_a_gpu:
            exports = "\n".join(f"export {name}='{value}'" for name, value in gpu.items())
            commands = f"(\n{exports}\n{commands}\n)"
        parts += [commands, f"echo '{END}'"]
    return "\n".join(parts) + "\n"


def not_printed(block: Block, output: str) -> list[str]:
    """Return the lines of the page that the commands did not print; `…` stands for any text."""
    lines = output.splitlines()
    without = [*map(_without_numbers, lines)]
    return [line for line in block.prints if not _among(line, lines)] + [
        line for line in block.varied if not _among(_without_numbers(line), without)
    ]


def _without_numbers(line: str) -> str:
    return " ".join(DURATION.sub("0 s", NUMBER.sub("0", line)).split())


def _among(line: str, lines: Sequence[str]) -> bool:
    pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
    return any(pattern.fullmatch(printed) for printed in lines)
