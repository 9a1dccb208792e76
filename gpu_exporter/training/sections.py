"""What `with` and `for` use: steps, phases, activities and the loader. They are made for little cost, not for looks."""

from __future__ import annotations

from time import perf_counter

from gpu_exporter.model.job_message import AMOUNTS, TRAINING

# These cost less than `typing.Generic` at run time, which type checkers need.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Generic, Protocol, TypeVar

    from gpu_exporter.training.recorder import Recorder

    Item = TypeVar("Item")

    class Timer(Protocol):
        """What sections tell the timer."""

        recorder: Recorder

        def begin_step(self) -> None:
            """Begin a step."""

        def end_step(self, step: Step) -> None:
            """Count a step that is over."""

        def fail_step(self) -> None:
            """End a step that does not count."""

        def add_data(self, seconds: float) -> None:
            """Count time in the loader."""

        def switch(self, activity: str) -> str:
            """Change the activity. Returns the one before."""

else:

    class Generic:
        """Stands for `typing.Generic`."""

        __class_getitem__ = classmethod(lambda cls, item: cls)

    Item = object


class Step:
    """A step. One that ends with an exception does not count."""

    __slots__ = ("_timer", *AMOUNTS)

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self.tokens: float = 0
        self.samples: float = 0
        self.flops: float = 0

    def __enter__(self) -> Step:
        self._timer.begin_step()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._timer.end_step(self)
        else:
            self._timer.fail_step()


class Phase:
    """A phase. The same object serves all phases of its name, nested ones too."""

    __slots__ = ("_name", "_recorder")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name

    def __enter__(self) -> None:
        self._recorder.enter(self._name)

    def __exit__(self, *_: object) -> None:
        self._recorder.leave()


class Activity:
    """An activity other than training. Within another one, that one is interrupted."""

    __slots__ = ("_before", "_name", "_timer")

    def __init__(self, timer: Timer, name: str) -> None:
        self._timer, self._name, self._before = timer, name, TRAINING

    def __enter__(self) -> None:
        self._before = self._timer.switch(self._name)

    def __exit__(self, *_: object) -> None:
        self._timer.switch(self._before)


class Loader(Generic[Item]):
    """A loader whose batches are timed. Everything else of the loader can be used through it: `len`, `sampler`, …"""

    def __init__(self, timer: Timer, loader: Iterable[Item]) -> None:
        self._timer, self._loader = timer, loader

    def __iter__(self) -> Iterator[Item]:
        timer, begin = self._timer, perf_counter()
        timer.recorder.start()
        iterator = iter(self._loader)  # starts workers: part of the first batch
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                timer.add_data(perf_counter() - begin)
            yield batch
            begin = perf_counter()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # in a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._loader, name)
