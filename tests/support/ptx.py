"""Executes the PTX of active checks, one thread after another: as much of the language as they use.

Registers of 32 and 64 bits are integers, those of type f32 are floats. Memory is a mapping from addresses to words of
32 bits. Matrix instructions are noted, and add the products of ones: their operands are checked by who calls this.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

ONES = 0x3F803F80
_ENTRY = r"\.visible \.entry {name}\((?P<parameters>.*?)\)\s*\.maxntid (?P<threads>\d+), 1, 1\s*{{(?P<body>.*?)\n}}"
_MASK = {"32": 0xFFFFFFFF, "64": 0xFFFFFFFFFFFFFFFF}
_SHAPE = re.compile(r"\.m(\d+)n(\d+)k(\d+)\.")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_COMPARE = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "ge": int.__ge__}


def f32(value: float) -> float:
    """Return a number rounded to 32 bits."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def bits(value: float) -> int:
    """Return the bits of a number of 32 bits."""
    (found,) = struct.unpack("<I", struct.pack("<f", value))
    return int(found)


@dataclass(slots=True)
class Ran:
    """What the threads of a launch did: instructions by name, the registers and the matrix operands of the last one.

    `stored` are the words that were written to shared memory, and `loaded` the addresses of the words that were read.
    """

    counts: Counter[str] = field(default_factory=Counter)
    registers: dict[str, float] = field(default_factory=dict)
    operands: list[tuple[float, ...]] = field(default_factory=list)
    stored: dict[int, int] = field(default_factory=dict)
    loaded: list[int] = field(default_factory=list)


class Kernel:
    """A kernel of a module: its parameters in order, with their types, and the threads of a block that it declares."""

    def __init__(self, module: str, name: str) -> None:
        entry = re.search(_ENTRY.format(name=name), module, re.DOTALL)
        assert entry, name
        self.parameters = [tuple(each.split()[1:]) for each in entry["parameters"].split(", ")]
        self.threads = int(entry["threads"])
        lines = [line.strip().rstrip(";") for line in entry["body"].splitlines() if line.strip()]
        self.shared = sum(int(size) for line in lines for size in re.findall(r"\.shared .*\[(\d+)\]", line))
        declared = re.findall(r"\.reg \.(?:b32|f32) (.*)", "\n".join(lines))
        self.registers = len(", ".join(declared).split(", "))
        code = [line for line in lines if not line.startswith(".")]
        self._labels = {line[:-1]: at for at, line in enumerate(code) if line.endswith(":")}
        self._code = [_parsed(line) for line in code]

    def run(
        self,
        arguments: Iterable[int],
        memory: dict[int, int],
        threads: Iterable[tuple[int, int]],
        *,
        block: int,
        grid: int,
    ) -> Ran:
        """Execute these threads, each a block and a thread of it, of a grid of so many blocks of so many threads."""
        given = dict(zip((name for _, name in self.parameters), arguments, strict=True))
        ran = Ran()
        for cta, thread in threads:
            special = {"%tid.x": thread, "%ctaid.x": cta, "%ntid.x": block, "%nctaid.x": grid, "tiles": 1024}
            ran.registers = dict(special)
            at = 0
            while at < len(self._code):
                at = self._step(at, ran, given, memory)
        return ran

    def _step(self, at: int, ran: Ran, given: Mapping[str, int], memory: dict[int, int]) -> int:
        """Execute an instruction, and return the position of the next one."""
        condition, name, words = self._code[at]
        if not name or (condition and not ran.registers[condition]):
            return at + 1
        ran.counts[name] += 1
        if name == "ret":
            return len(self._code)
        if name == "bra":
            return self._labels[words[0][0]]
        self._execute(name, words, ran, given, memory)
        return at + 1

    def _execute(
        self, name: str, words: Sequence[Sequence[str]], ran: Ran, given: Mapping[str, int], memory: dict[int, int]
    ) -> None:
        registers, kind, target = ran.registers, name.split("."), words[0][0] if words else ""
        mask = _MASK.get(name[-2:], 0)

        def operand(number: int) -> float:
            return _value(registers, words[number][0])

        def integer(number: int) -> int:
            found = operand(number)
            assert isinstance(found, int), (name, words)
            return found

        def address(number: int) -> int:
            base, _, offset = words[number][0].partition("+")
            return int(_value(registers, base)) + int(offset or 0)

        match kind[0]:
            case "ld" if kind[1] == "param":
                registers[target] = given[words[1][0]]
            case "ld":
                for part, register in enumerate(words[0]):
                    registers[register] = memory.get(address(1) + 4 * part, 0)
                    ran.loaded.append(address(1) + 4 * part)
            case "st" if kind[1] == "shared":
                ran.stored[address(0)] = integer(1)
            case "st":
                stored = [int(_value(registers, word)) for word in words[1]]
                if kind[-1] == "u64":
                    stored = [stored[0] & _MASK["32"], stored[0] >> 32]
                memory.update((address(0) + 4 * part, word) for part, word in enumerate(stored))
            case "atom":
                registers[target] = memory.get(address(1), 0)
                memory[address(1)] = memory.get(address(1), 0) + integer(2)
            case "mov" if len(words[0]) == 2:
                registers[target], registers[words[0][1]] = integer(1) & _MASK["32"], integer(1) >> 32
            case "mov":
                found = operand(1)
                registers[target] = bits(found) if kind[1] == "b32" and isinstance(found, float) else found
            case "cvt":
                registers[target] = float(integer(1)) if kind[2] == "f32" else integer(1)
            case "setp":
                registers[target] = _COMPARE[kind[1]](integer(1), integer(2))
            case "selp":
                registers[target] = operand(1 if registers[words[3][0]] else 2)
            case "fma":
                registers[target] = f32(operand(1) * operand(2) + operand(3))
            case "shfl":
                registers[target] = integer(1)
            case "mma" | "wgmma" if "bf16" in kind:
                ran.operands.append(tuple(_value(registers, word) for each in words[1:3] for word in each))
                _, _, depth = shape(name)
                for register in words[0]:
                    registers[register] += depth
            case "add" | "sub" | "mul" | "mad" | "xor" | "and" | "or" | "shl" | "shr":
                if kind[1] == "wide":
                    mask = _MASK["64"]
                registers[target] = _ALU[kind[0]](*(integer(number) for number in range(1, len(words)))) & mask
            case _:
                assert kind[0] in ("fence", "bar", "wgmma"), name


_ALU: Mapping[str, Callable[..., int]] = {
    "add": lambda one, other: one + other,
    "sub": lambda one, other: one - other,
    "mul": lambda one, other: one * other,
    "mad": lambda one, other, third: one * other + third,
    "xor": int.__xor__,
    "and": int.__and__,
    "or": int.__or__,
    "shl": int.__lshift__,
    "shr": int.__rshift__,
}


def shape(instruction: str) -> tuple[int, int, int]:
    """Return the rows, columns and depth of a matrix instruction."""
    found = _SHAPE.search(instruction)
    assert found, instruction
    rows, columns, depth = map(int, found.groups())
    return rows, columns, depth


def _parsed(line: str) -> tuple[str, str, Sequence[Sequence[str]]]:
    """Return an instruction: its condition, its name and its operands, each a list; no name for a label."""
    if line.endswith(":"):
        return "", "", ()
    condition = ""
    if line.startswith("@"):
        condition, _, line = line[1:].partition(" ")
    name, _, text = line.partition(" ")
    return condition, name, [word.strip("{}[]").split(", ") for word in _OPERAND.findall(text)]


def _value(registers: Mapping[str, float], text: str) -> float:
    if text.startswith("0f"):
        (number,) = struct.unpack(">f", bytes.fromhex(text[2:]))
        return float(number)
    return registers[text] if text in registers else int(text, 0)
