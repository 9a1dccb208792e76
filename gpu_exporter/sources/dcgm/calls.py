"""Health checks and NVLink states between GPUs. DCGM has calls for these instead of fields: one call for all GPUs."""

from __future__ import annotations

import time

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.sources.dcgm.connection import Connection
from gpu_exporter.sources.dcgm.errors import (
    FUNCTION_NOT_FOUND,
    MODULE_NOT_LOADED,
    NOT_SUPPORTED,
    DcgmError,
    outcome,
)
from gpu_exporter.sources.dcgm.groups import Groups
from gpu_exporter.sources.dcgm.health_and_peers import NO_ANSWERS, CallAnswers, Incident
from gpu_exporter.sources.dcgm.inventory import RETRY_SECONDS, Inventory
from gpu_exporter.sources.dcgm.values import Entity

NO_MODULE = "no_module"


class Calls:
    """The calls of one connection, made while any device subscribes to them."""

    def __init__(self, connection: Connection, groups: Groups, inventory: Inventory) -> None:
        self.answers: CallAnswers = NO_ANSWERS
        self._connection, self._groups, self._inventory = connection, groups, inventory
        self._bindings = connection.bindings
        self._subscriptions: dict[object, tuple[Entity, frozenset[Metric]]] = {}
        self._boards: tuple[Entity, ...] = ()
        self._retry_at: dict[Metric, float] = {}

    def subscribe(self, subscriber: object, board: Entity, rows: frozenset[Metric]) -> None:
        """Read these rows of a GPU, each at its pace, until `unsubscribe`."""
        if rows:
            self._subscriptions[subscriber] = board, rows

    def unsubscribe(self, subscriber: object) -> None:
        """Stop reading for a subscriber."""
        self._subscriptions.pop(subscriber, None)

    def read(self, pace: Pace) -> None:
        """Make the calls of this pace that are due. Raises SourceLost."""
        for row in {row for _, rows in self._subscriptions.values() for row in rows if row.pace is pace}:
            if time.monotonic() < self._retry_at.get(row, 0.0):
                continue
            try:
                if row is m.EXP_HEALTH:
                    self.answers = self.answers._replace(health=self._health())
                else:
                    self.answers = self.answers._replace(peers=self._peers())
            except DcgmError as error:
                reason = NO_MODULE if error.code == MODULE_NOT_LOADED else outcome(error.code)
                if error.code in (MODULE_NOT_LOADED, FUNCTION_NOT_FOUND, NOT_SUPPORTED):
                    self._retry_at[row] = time.monotonic() + RETRY_SECONDS
                failed = {"health": reason} if row is m.EXP_HEALTH else {"peers": reason}
                self.answers = self.answers._replace(**failed)

    def _health(self) -> tuple[Incident, ...]:
        """One call for all GPUs: its answer takes a megabyte."""
        boards = tuple(sorted({board for board, rows in self._subscriptions.values() if m.EXP_HEALTH in rows}))
        if boards != self._boards:
            before, self._boards = self._boards, ()
            if before:
                self._groups.drop(before)
            group = self._groups.acquire(boards)
            try:
                self._connection.call(self._bindings.watch_health, group)
            except DcgmError:
                self._groups.drop(boards)
                raise
            self._boards = boards
        return self._connection.call(self._bindings.health, self._groups.handle(boards))

    def _peers(self) -> dict[int, dict[int, int]]:
        """Return the link states by index instead of DCGM's number."""
        index_of = {number: index for index, number in enumerate(self._inventory.gpus())}
        states = self._connection.call(self._bindings.peers)
        return {
            index_of[number]: {index_of[peer]: status for peer, status in peers.items() if peer in index_of}
            for number, peers in states.items()
            if number in index_of
        }
