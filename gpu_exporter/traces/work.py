"""What operators must do at least, by their names and the shapes of their inputs: arithmetic, and bytes to move.

A product of m x k by k x n has 2mnk operations, attention 4 for each query, key and element of a head (half if it is
causal), its backward pass 2.5 times as many. Inputs are read once, and an output is written once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from math import prod
from typing import Any

from gpu_exporter.traces.collectives import BYTES
from gpu_exporter.traces.kernel_classes import operator_class

# Operators that do little arithmetic: memory is their limit.
_MEMORY_BOUND = ("elementwise", "normalization", "softmax", "reduction")
_COPIES = ("aten::copy_", "aten::clone", "aten::_to_copy", "aten::contiguous")
# Operators whose output is larger than their inputs, by how much these do not say.
_ENLARGING = ("aten::upsample", "aten::_upsample")
BACKWARD_ATTENTION = 2.5
# No tensor has more elements.
MOST_ELEMENTS = 1 << 50


@dataclass(frozen=True)
class Inputs:
    """The tensors that an operator is called with, and the values of its other arguments as text."""

    shapes: tuple[tuple[int, ...], ...]  # () for what is no tensor
    types: tuple[str, ...]
    values: tuple[str, ...]

    def bytes(self, row: int) -> float:
        """Return the size of a tensor; 0 if its type is not known."""
        return float(prod(self.shapes[row]) * BYTES.get(self.types[row].lower(), 0)) if self.shapes[row] else 0.0


@dataclass(frozen=True)
class OperatorWork:
    """What a call of an operator must do at least. `flops` is 0 for operators that memory limits."""

    flops: float
    bytes: float


def _product(first: int) -> Callable[[Inputs], OperatorWork]:
    """Return the work of a product of matrices, or of batches of them, whose operands begin with this argument."""

    def work(inputs: Inputs) -> OperatorWork:
        (*batch, rows, inner), (*_, columns) = inputs.shapes[first : first + 2]
        size = BYTES.get(inputs.types[first].lower(), 0)
        moved = prod(batch) * rows * columns * size + inputs.bytes(first) + inputs.bytes(first + 1)
        return OperatorWork(2.0 * prod(batch) * rows * inner * columns, moved)

    return work


def _convolution(inputs: Inputs) -> OperatorWork:
    image, weight = inputs.shapes[:2]
    stride, padding, dilation = (json.loads(inputs.values[row]) for row in (3, 4, 5))
    if inputs.values[6] == "True":
        return OperatorWork(2.0 * prod(image) * prod(weight[1:]), inputs.bytes(0) + inputs.bytes(1))
    out = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, gap in zip(image[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    made = image[0] * weight[0] * prod(out)
    moved = inputs.bytes(0) + inputs.bytes(1) + made * BYTES.get(inputs.types[0].lower(), 0)
    return OperatorWork(2.0 * made * prod(weight[1:]), moved)


def _convolution_backward(inputs: Inputs) -> OperatorWork:
    """Return the work of both gradients, each as much as the forward pass."""
    moved = inputs.bytes(0) + 2 * inputs.bytes(1) + 2 * inputs.bytes(2)
    return OperatorWork(4.0 * prod(inputs.shapes[0]) * prod(inputs.shapes[2][1:]), moved)


def _attention(causal: int, first: int = 0, factor: float = 1.0) -> Callable[[Inputs], OperatorWork]:
    """Return the work of attention, whether it is causal in the argument `causal`, and the query in `first`."""

    def work(inputs: Inputs) -> OperatorWork:
        (batch, heads, queries, size), (*_, keys, _) = inputs.shapes[first : first + 2]
        flops = 4.0 * batch * heads * queries * keys * size * factor
        moved = 2 * inputs.bytes(first) + inputs.bytes(first + 1) + inputs.bytes(first + 2)
        return OperatorWork(flops / 2 if inputs.values[causal] == "True" else flops, moved * factor)

    return work


_WORK: Mapping[str, Callable[[Inputs], OperatorWork]] = {
    "aten::mm": _product(0),
    "aten::addmm": _product(1),
    "aten::bmm": _product(0),
    "aten::baddbmm": _product(1),
    "aten::_scaled_mm": _product(0),
    "aten::_int_mm": _product(0),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention(4),
    "aten::_scaled_dot_product_efficient_attention": _attention(6),
    "aten::_scaled_dot_product_cudnn_attention": _attention(6),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(10, 1, BACKWARD_ATTENTION),
}


def _moved(name: str, inputs: Inputs) -> OperatorWork:
    """Return the work of an operator that reads its inputs and writes one output."""
    read = sum(inputs.bytes(row) for row in range(len(inputs.shapes)))
    if name.endswith("copy_"):
        return OperatorWork(0.0, read)
    if operator_class(name) == "reduction":
        return OperatorWork(0.0, read)
    largest = prod(max(sizes) for sizes in zip_longest(*(shape[::-1] for shape in inputs.shapes), fillvalue=1))
    # Of two types, the result has the wider one.
    widths = [BYTES.get(kind.lower(), 0) for shape, kind in zip(inputs.shapes, inputs.types, strict=True) if shape]
    return OperatorWork(0.0, read + largest * max(widths, default=0))


@cache
def has_work(name: str) -> bool:
    """Return whether the shapes of an operator say what it has to do."""
    if name in _WORK or name in _COPIES:
        return True
    is_aten = name.startswith("aten::") and not name.startswith(_ENLARGING)
    return is_aten and operator_class(name) in _MEMORY_BOUND


def work_of(name: str, inputs: Inputs) -> OperatorWork | None:
    """Return what a call of an operator must do at least; None if its shapes do not say so."""
    try:
        work = _WORK[name](inputs) if name in _WORK else _moved(name, inputs)
    except (ValueError, IndexError, TypeError, ArithmeticError):  # written by another version of PyTorch
        return None
    return work if work.flops > 0 or work.bytes > 0 else None


def parsed(text: str) -> Inputs | None:
    """Return the inputs in the text of `Shapes.inputs`; None if it is not as PyTorch writes it."""
    try:
        shapes, types, values = json.loads(text)
        found = Inputs(tuple(_shape(shape) for shape in shapes), tuple(map(str, types)), tuple(map(str, values)))
    except (ValueError, TypeError, RecursionError):
        return None
    return found if len(found.shapes) == len(found.types) and found.shapes else None


def _shape(content: Any) -> tuple[int, ...]:
    is_tensor = all(isinstance(size, int) and size >= 0 for size in content) and prod(content) < MOST_ELEMENTS
    return tuple(content) if is_tensor else ()
