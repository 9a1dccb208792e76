"""One connection to a host engine, and the calls made through it. Used only on the source's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.sources.dcgm.bindings import Bindings
from gpu_exporter.sources.dcgm.errors import SEE_LOG, SOURCE_LOST, DcgmError, source_lost
from gpu_exporter.sources.dcgm.values import Entity, FieldAnswer

P = ParamSpec("P")
T = TypeVar("T")


class EngineConnection:
    """A handle of a host engine. `bindings` has the calls, each of which takes the handle first."""

    def __init__(self, bindings: Bindings, to: Hostengine, timeout: float, heartbeat: Callable[[], None]) -> None:
        """Connect. `heartbeat` is called before each call, so that the deadline applies to a single call.

        Raises DcgmError, SourceLost.
        """
        self.where = str(to)
        self.bindings = bindings
        self._to, self._heartbeat = to, heartbeat
        self.dead = False
        self._handle = self._checked(lambda: bindings.connect(to, timeout))

    def call(self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of the bindings. Raises SourceLost if the connection is broken, DcgmError otherwise."""
        return self._checked(lambda: function(self._handle, *args, **kwargs))

    def _checked(self, call: Callable[[], T]) -> T:
        self._heartbeat()
        try:
            return call()
        except DcgmError as error:
            if error.code in SOURCE_LOST:
                self.dead = True
                raise source_lost(error.code, self.where) from error
            raise

    def release(self, function: Callable[Concatenate[Any, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function that releases something. Does nothing on a dead connection, where each call may hang again.

        Never raises.
        """
        if not self.dead:
            with suppress(DcgmError, SourceLost):
                self.call(function, *args, **kwargs)

    def latest(self, entities: Sequence[Entity], fields: Sequence[int]) -> Mapping[tuple[Entity, int], FieldAnswer]:
        """Return the last samples of some fields. Raises SourceLost."""
        try:
            return self.call(self.bindings.latest, entities, fields)
        except DcgmError as error:
            raise SourceLost(f"DCGM: {self.where}: values cannot be read: {error}", fix=SEE_LOG) from error

    def close(self) -> None:
        """Disconnect. The host engine then drops this connection's groups and watches."""
        with suppress(DcgmError):  # it was gone already
            self.bindings.disconnect(self._handle, self._to)
