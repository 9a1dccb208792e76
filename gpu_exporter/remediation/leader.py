"""Leader election by a Lease: one of several controllers acts, and another one takes over when it stops renewing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from gpu_exporter.kubernetes.writer import Operation
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import ledger as lease
from gpu_exporter.remediation.cluster import Cluster
from gpu_exporter.remediation.ledger import Ledger

# The leader renews the Lease when its last renewal is older than this (seconds).
RENEW_SECONDS = lease.LEASE_SECONDS / 3


class Leader:
    """Holds or follows the Lease. `wall` is unix time, written for people; `clock` are monotonic seconds, which decide.

    Clocks of controllers are never compared: a Lease has expired if it has not changed for its duration.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.ledger: Ledger | None = None
        self._cluster, self._namespace, self._name = cluster, namespace, name
        self._wall, self._clock = wall, clock
        self._seen, self._seen_at, self._renewed_at = "", 0.0, float("-inf")

    @property
    def leads(self) -> bool:
        """Whether this controller holds the Lease, as far as it knows."""
        valid = self._clock() - self._renewed_at < lease.LEASE_SECONDS
        return self.ledger is not None and self.ledger.holder == self.identity and valid

    def take(self) -> Ledger | None:
        """Read the Lease, and take or renew it. Return it, or None if another controller leads. Raises LookupFailed."""
        item = self._cluster.lease()
        if item is None:
            new = lease.new_lease(self._namespace, self._name, self.identity, self._wall())
            return self._held(lease.read(self._cluster.create_lease(new)))
        self.ledger = ledger = lease.read(item)
        if ledger.version != self._seen:
            self._seen, self._seen_at = ledger.version, self._clock()
        if ledger.holder not in ("", self.identity) and self._clock() - self._seen_at < ledger.seconds:
            return None
        return self._write(lease.held_by(ledger, self.identity, self._wall()))

    def renew(self) -> None:
        """Renew the Lease if it is held and that is due. Raises LookupFailed if it has changed since it was read."""
        if self.leads and self._clock() - self._renewed_at >= RENEW_SECONDS and self.ledger is not None:
            self._write(lease.held_by(self.ledger, self.identity, self._wall()))

    def keep(self) -> None:
        """Renew the Lease if that is due. Raises LookupFailed if this controller does not hold it any more."""
        self.renew()
        if not self.leads:
            raise LookupFailed("lost_lease", "the Lease has expired during a cycle")

    def claim(self, node: str, pool: str) -> None:
        """Claim a node. Raises LookupFailed, also if anything in the Lease has changed since it was read.

        It is written even if the claim exists: another leader may have given it back since.
        """
        assert self.ledger is not None
        self._write(lease.claimed(self.ledger, {**self.ledger.claims, node: pool}, self._wall()))

    def unclaim(self, node: str) -> None:
        """Give the claim of a node back. Raises LookupFailed."""
        assert self.ledger is not None
        if node in self.ledger.claims:
            claims = {name: pool for name, pool in self.ledger.claims.items() if name != node}
            self._write(lease.claimed(self.ledger, claims, self._wall()))

    def set_breaker(self, breaker: Mapping[str, float]) -> None:
        """Store the state of the breaker. Raises LookupFailed."""
        assert self.ledger is not None
        if breaker != self.ledger.breaker:
            self._write(lease.tripped(self.ledger, breaker, self._wall()))

    def stop(self) -> None:
        """Give the Lease up if this controller holds it. Raises LookupFailed."""
        if self.leads and self.ledger is not None:
            self._write(lease.released(self.ledger))
        self.lose()

    def lose(self) -> None:
        """Forget the Lease after a failure: nothing is written before it has been read again."""
        self._renewed_at = float("-inf")

    def _write(self, operations: Sequence[Operation]) -> Ledger:
        try:
            return self._held(lease.read(self._cluster.patch_lease(operations)))
        except LookupFailed:
            self.lose()
            raise

    def _held(self, ledger: Ledger) -> Ledger:
        self.ledger, self._renewed_at = ledger, self._clock()
        self._seen, self._seen_at = ledger.version, self._renewed_at
        return ledger
