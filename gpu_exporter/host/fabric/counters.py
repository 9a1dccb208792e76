"""What the counters of an RDMA port mean, and totals of them that never fall.

Names are those of the kernel, below `counters` (InfiniBand's counters; RoCE has them, too) and `hw_counters` (of the
driver: mlx5, EFA and others).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

# `port_xmit_data` and `port_rcv_data` count words of four bytes.
WORD_BYTES = 4
TX_WORDS, RX_WORDS = "port_xmit_data", "port_rcv_data"
# EFA has no `counters`.
TX_BYTES, RX_BYTES = "tx_bytes", "rx_bytes"
DOWNED = "link_downed"


class ErrorKind(Enum):
    """What goes wrong on a port; `value` is the label `kind`."""

    LINK = "link"
    RETRANSMIT = "retransmit"
    CONGESTION = "congestion"
    DROP = "drop"


COUNTERS_OF: Mapping[ErrorKind, tuple[str, ...]] = {
    ErrorKind.LINK: (
        "symbol_error",
        "link_error_recovery",
        "port_rcv_errors",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
    ),
    ErrorKind.RETRANSMIT: (
        "out_of_sequence",
        "packet_seq_err",
        "implied_nak_seq_err",
        "local_ack_timeout_err",
        "rnr_nak_retry_err",
        "roce_adp_retrans",
        "retrans_pkts",
    ),
    ErrorKind.CONGESTION: ("np_cnp_sent", "rp_cnp_handled"),
    ErrorKind.DROP: ("port_xmit_discards", "rx_drops"),
}
KIND_OF = {name: kind for kind, names in COUNTERS_OF.items() for name in names}
TRAFFIC = frozenset({TX_WORDS, RX_WORDS, TX_BYTES, RX_BYTES})
# Exposed by name with `--metrics full`, in addition to those above.
DETAILS = frozenset(
    {
        "port_xmit_wait",
        "port_rcv_remote_physical_errors",
        "VL15_dropped",
        "np_ecn_marked_roce_packets",
        "rp_cnp_ignored",
        "roce_adp_retrans_to",
        "roce_slow_restart",
        "duplicate_request",
        "rdma_read_bytes",
        "rdma_read_resp_bytes",
        "rdma_write_bytes",
        "rdma_write_recv_bytes",
        "retrans_bytes",
        "retrans_timeout_events",
        "unresponsive_remote_events",
        "impaired_remote_conn_events",
    }
)


@dataclass(slots=True)
class PortTotals:
    """The counters of one port, which continue where a counter was reset to 0."""

    values: dict[str, int] = field(default_factory=dict)
    _raw: dict[str, int] = field(default_factory=dict)

    def take(self, raw: Mapping[str, int]) -> Mapping[str, int]:
        """Add the present values; return by how much each counter has grown, without those that are new."""
        grown = {}
        for name, value in raw.items():
            before = self._raw.get(name)
            if before is None:
                self.values[name] = self.values.get(name, value)
            else:
                grown[name] = value - before if value >= before else value
                self.values[name] += grown[name]
            self._raw[name] = value
        return grown

    def forget(self) -> None:
        """Forget the present values: the device is gone, and may come back with others."""
        self._raw.clear()

    def kind(self, kind: ErrorKind) -> int | None:
        """Return the sum of the counters of a kind; None if the port has none of them."""
        values = [self.values[name] for name in COUNTERS_OF[kind] if name in self.values]
        return sum(values) if values else None


def traffic(values: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Return bytes sent and received: InfiniBand's counters, or those of the driver where these do not exist."""
    return _bytes(values, TX_WORDS, TX_BYTES), _bytes(values, RX_WORDS, RX_BYTES)


def _bytes(values: Mapping[str, int], words: str, bytes_: str) -> int | None:
    return values[words] * WORD_BYTES if words in values else values.get(bytes_)
