"""The state of a hand-over: its end, and what still holds the driver."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_exporter.pipeline.hand_over import HandOver, HandOverState, device_files
from gpu_exporter.sources.nvml import source
from tests.support.virtual_time import Clock


def test_a_release_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins, is extended and ends; each change wakes the loop."""
    heard: list[None] = []
    clock = Clock()
    monkeypatch.setattr("gpu_exporter.pipeline.hand_over.time", clock)
    hand_over_state = HandOverState(lambda: heard.append(None))
    assert hand_over_state.current() is None
    assert not hand_over_state.end()
    hand_over_state.begin(100)
    release = hand_over_state.current()
    assert release is not None
    hand_over_state.begin(0.05)
    assert hand_over_state.current() is release
    assert release.until == pytest.approx(clock.time() + 0.05)
    clock.pass_by(0.06)
    assert hand_over_state.current() is hand_over_state.hand_over is None
    hand_over_state.begin(100)
    assert hand_over_state.end()
    assert len(heard) == 5


def test_what_holds_the_driver() -> None:
    """A running call, or files that the library left open."""
    release = HandOver(60)
    assert not release.done
    assert release.problem([1, 3]).startswith("GPU 1, 3: a driver call does not return")
    assert release.problem([]).startswith("the library: a driver call")
    release.closed, release.open_files = True, ("/dev/nvidiactl",)
    assert (release.done, release.problem([])) == (False, "still open: /dev/nvidiactl")
    release.open_files = ()
    assert (release.done, release.problem([1])) == (True, "")
    assert str(release).startswith("released until 20")


def test_device_files(tmp_path: Path) -> None:
    """Each file of the driver once, and no others."""
    for number, target in enumerate(("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia0", "/dev/null", "socket:[1]")):
        (tmp_path / str(number)).symlink_to(target)
    (tmp_path / "closed").touch()
    assert device_files(tmp_path) == ("/dev/nvidia0", "/dev/nvidiactl")
    assert device_files(tmp_path / "none") == ()


class Bindings:
    """pynvml's state of the library, after some calls of nvmlInit and with these results of nvmlShutdown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, users: int, *codes: int, **changes: Any) -> None:
        self.closed: list[int] = []
        self._codes = iter(codes)
        self.error = type("NVMLError", (Exception,), {"value": 0})
        self.module = SimpleNamespace(
            libLoadLock=threading.Lock(),
            nvmlLib=SimpleNamespace(_handle=7),
            _nvmlLib_refcount=users,
            _nvmlGetFunctionPointer_cache={"nvmlShutdown": object()},
            NVMLError=self.error,
            NVML_ERROR_UNINITIALIZED=1,
            nvmlShutdown=self._shutdown,
        )
        for name, value in changes.items():
            setattr(self.module, name, value)
        monkeypatch.setattr(source, "pynvml", self.module)
        monkeypatch.setattr(source, "_ctypes", SimpleNamespace(dlclose=self.closed.append))

    def _shutdown(self) -> None:
        code = next(self._codes)
        if code:
            error = self.error()
            error.value = code
            raise error
        self.module._nvmlLib_refcount -= 1


@pytest.mark.parametrize(
    ("users", "codes", "closed"),
    [
        (0, (), True),  # nvmlInit failed, but loaded the library
        (1, (0,), True),
        (2, (0, 0), True),
        (2, (1, 1), True),  # the driver was unloaded meanwhile
        (2, (0,), False),  # other code of this process uses the bindings
        (2, (1,), False),
        (1, (999,), False),  # it may still have state
    ],
)
def test_unload(monkeypatch: pytest.MonkeyPatch, users: int, codes: tuple[int, ...], closed: bool) -> None:
    """The library is unloaded after its last user, and loaded again by the next nvmlInit."""
    bindings = Bindings(monkeypatch, users, *codes)
    source.release(len(codes))
    assert bindings.closed == ([7] if closed else [])
    assert (bindings.module.nvmlLib is None) is closed
    assert (not bindings.module._nvmlGetFunctionPointer_cache) is closed


@pytest.mark.parametrize("change", [{"libLoadLock": None}, {"_nvmlGetFunctionPointer_cache": None}, {"nvmlLib": None}])
def test_unknown_bindings_are_not_changed(monkeypatch: pytest.MonkeyPatch, change: dict[str, None]) -> None:
    """The library then stays loaded."""
    bindings = Bindings(monkeypatch, 1, 0, **change)
    source.release(1)
    assert bindings.closed == []
