"""The network between nodes: the ports nearest to a GPU that are down, slow, faulty or far away."""

from __future__ import annotations

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.catalogue import nic_signals as n
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.distributed import SAME_ENGINE
from gpu_exporter.catalogue.failure_modes.mode import (
    Domain,
    FailureMode,
    Inject,
    Ramp,
    Scope,
    Severity,
    Values,
    slows_down,
)
from gpu_exporter.conditions.tree import And, Calc, Compare, Fn, Limit, Mark, Or, Over, PeerMedian, PeerShare
from gpu_exporter.model.verdict import Action

MINUTE, HOUR = 60.0, 3600.0

# fmt: off
FLAPS        = Limit("nicFlaps", 3.0, "times", "how often a network link may go down within an hour before it counts as flapping", a.NETWORK)
FULL_RATE    = Limit("nicFullRate", 0.95, "ratio", "rate of a network link, as a share of what it should be, below which it is degraded", a.NETWORK)
LINK_ERRORS  = Limit("nicLinkErrors", 100.0, "errors", "link errors of the network ports of a GPU within an hour, above which a link is faulty", a.NETWORK)
RETRANSMITS  = Limit("nicRetransmits", 100.0, "per second", "retransmitted packets per second above which the network loses packets", a.NETWORK)
SLOW_RAIL    = Limit("nicSlowRail", 0.5, "ratio", "network traffic of a rank, as a share of the median of its job, below which its rail is slow", a.NETWORK)
FAR          = Limit("nicFar", 5.0, "level", "distance of the nearest network port at or above which it is far: 4 another host bridge, 5 another NUMA node", a.NETWORK)
# fmt: on

SENDS = Mark("exchanges", And(c.SENDS, c.BUSY))

# A rank of a job on several nodes: it communicates over NVLink within the node, and over its network port.
_OVER_NETWORK: Values = {**profiles.BALANCED, m.NIC_TX: Ramp(0, 2e10), m.NIC_RX: Ramp(0, 2e10)}

_ABSENT = (
    "The alert needs network cards for RDMA (InfiniBand, RoCE or EFA) that the exporter can see in `/sys`, and a machine "
    "that shows which of them are nearest to each GPU; otherwise it is silent. See [network cards](../fabric.md)."
)
# The modes of a faulty port, by the kind of fault.
OF_FAULTS = {"down": "GpuNicDown", "slow": "GpuNicSlowLink"}
_PORTS = (
    'Find the ports: `gpu_nic_info{UUID="…"}` has the device and the port. `gpu-exporter doctor` on the node lists their '
    "state."
)

MODES = (
    FailureMode(
        OF_FAULTS["down"],
        Domain.NETWORK,
        Severity.WARNING,
        2 * MINUTE,
        Action.NONE,
        "A network port of {gpu} is down",
        "Cordon the node, and check cable, transceiver and switch port (ibstat, rdma link, ethtool): jobs on several nodes "
        "fail or slow down here.",
        Inject({m.NIC_UP: 0.0}),
        Compare(Over(n.UP), "<", 1.0),
        explains=slows_down(
            "GpuNicFlapping",
            "GpuNicSlowLink",
            "GpuNicErrors",
            "GpuLoaderStorageBound",
            job=(
                "GpuNicSlowRail",
                "GpuJobStalled",
                "GpuCollectiveStall",
            ),
        ),
        meaning="A network port nearest to this GPU was active and no longer is, or its card fell off the PCIe bus; or the "
        "GPU has no active port, although other GPUs of the node have one.",
        impact="NCCL has no path to other nodes, or takes a longer one: through the port of another GPU, or over TCP.",
        diagnosis=(
            _PORTS,
            "Run `ibstat` or `rdma link`. `Polling` or `Disabled`: no signal, so check the cable and the other end. "
            "`INIT`: the link is up, but the subnet manager does not configure it.",
            "Run `journalctl -k -b | grep -iE 'mlx5|efa|bnxt'` for the reason that the driver logged.",
            'Compare `gpu_nic_port_up{instance="…"}`: if several nodes lose a port at the same time, suspect their '
            "switch.",
        ),
        mitigation=(
            "Cordon the node, so that no further multi-node job starts on it.",
            "Reseat or replace the cable or the transceiver; then try another port of the switch.",
            "`INIT` on InfiniBand: restart the subnet manager (`opensm`, or that of the switch).",
        ),
        wrong="A port that was taken down or removed on purpose is reported until the exporter restarts. A port that was never "
        "active is ignored if the GPU has another that is. " + _ABSENT,
    ),
    FailureMode(
        "GpuNicFlapping",
        Domain.NETWORK,
        Severity.WARNING,
        0.0,
        Action.NONE,
        "A network link of {gpu} keeps going down and coming back",
        "Replace cable or transceiver before the link fails. Each time, collectives stop for seconds, and some jobs fail.",
        Inject({m.NIC_DOWNED: Ramp(0, 0.01)}),
        Compare(Over(n.DOWNED, Fn.INCREASE, HOUR), ">=", FLAPS),
        keep=30 * MINUTE,
        explains=slows_down("GpuNicSlowLink", "GpuNicErrors", job=("GpuNicSlowRail",)),
        meaning="The link of a network port nearest to this GPU went down several times within an hour, by the counter "
        "`link_downed` of the card.",
        impact="Each time, traffic stops for seconds. NCCL retries (`NCCL_IB_TIMEOUT`, `NCCL_IB_RETRY_CNT`), then the "
        "job fails.",
        diagnosis=(
            _PORTS,
            f'Look at `{n.DOWNED.record}{{UUID="…"}}`: when did it happen, and on which other GPUs at the same time?',
            f'Look at `{n.ERRORS.record}{{UUID="…"}}`: link errors before it went down point to the cable.',
            "Run `mlxlink -d DEVICE -m` (NVIDIA's firmware tools) for the signal, the temperature and the wear of the "
            "transceiver.",
        ),
        mitigation=(
            "Clean and reseat the cable or the transceiver, then replace it.",
            "If all ports of a switch flap, look at the switch and its power.",
        ),
        wrong="Maintenance of a switch, and reloads of the driver. " + _ABSENT,
    ),
    FailureMode(
        OF_FAULTS["slow"],
        Domain.NETWORK,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "A network link of {gpu} runs at {{ $value | humanizePercentage }} of its rate",
        "Reseat or replace cable and transceiver, then bring the link up again: it has fewer lanes or a lower speed than it "
        "can have. The table of network ports on the dashboard GPU / Node names the port.",
        Inject({m.NIC_RATE_SHARE: 0.5}),
        Compare(Over(n.RATE_SHARE), "<", FULL_RATE),
        explains=slows_down("GpuLoaderStorageBound", job=("GpuNicSlowRail",)),
        meaning="A link of a network port nearest to this GPU is slower than it was, or than that of other ports of the "
        "same kind of card in this node.",
        impact="A collective is as fast as its slowest link, so all nodes of a job wait for this one.",
        diagnosis=(
            _PORTS,
            "`cat /sys/class/infiniband/DEVICE/ports/1/rate` shows speed and lanes, such as `200 Gb/sec (4X HDR)`. Fewer "
            "lanes than 4X: a bad lane. Another generation than NDR or HDR: the other end, or the cable, does not support "
            "more.",
            "Run `mlxlink -d DEVICE` for the speed that both ends support, and why they agreed on less.",
        ),
        mitigation=(
            "Reseat, then replace the cable or the transceiver. Bring the link down and up to negotiate it again.",
            "Keep multi-node jobs off this node until the link is at full rate.",
        ),
        wrong="Ports of the same kind of card that are connected to slower switches on purpose, such as one for storage. "
        + _ABSENT,
    ),
    FailureMode(
        "GpuNicErrors",
        Domain.NETWORK,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "The network ports of {gpu} have errors or retransmit packets",
        "Link errors: replace cable or transceiver. Retransmits without link errors: look for congestion and lossless "
        "settings (PFC, ECN) in the network.",
        Inject({m.NIC_ERRORS: Ramp(0, 1.0)}),
        Or(
            Compare(Over(n.ERRORS, Fn.INCREASE, HOUR), ">", LINK_ERRORS),
            Compare(mean(n.RETRANSMITS), ">", RETRANSMITS),
        ),
        keep=15 * MINUTE,
        explains=slows_down(job=("GpuNicSlowRail",)),
        meaning="The network ports nearest to this GPU see errors of the link (symbol errors, recoveries, buffer overruns, "
        "receive errors), or retransmit packets all the time, because packets are lost, late or out of order.",
        impact="Each lost packet delays its connection until it is retransmitted. All ranks of the collective wait for it.",
        diagnosis=(
            _PORTS,
            f'Look at `{n.ERRORS.record}{{UUID="…"}}` (the link) and `{n.RETRANSMITS.record}{{UUID="…"}}` (the network).',
            'With `--metrics full`, look at `gpu_nic_port_errors_total{device="…"}` by `kind`, and at '
            "`gpu_nic_port_counter_total`, which has each counter by name.",
            "`out_of_sequence` and `packet_seq_err` with RoCE: packets are dropped in the network. `rnr_nak_retry_err`: "
            "the receiving program is late. `np_cnp_sent`: too many nodes send to this one at once (incast).",
        ),
        mitigation=(
            "Link errors on one port: clean, reseat, replace cable and transceiver.",
            "Retransmits on many nodes: check PFC and ECN on cards and switches; adaptive routing reorders packets, so "
            "cards need support for it.",
        ),
        wrong="A new link has some symbol errors at first. EFA retransmits some packets in normal operation: set "
        "`nicRetransmits` higher. " + _ABSENT,
    ),
    FailureMode(
        "GpuNicSlowRail",
        Domain.NETWORK,
        Severity.WARNING,
        15 * MINUTE,
        Action.NONE,
        "The network traffic of {gpu} is only {{ $value | humanizePercentage }} of that of the other ranks of job {job}",
        "Check the link of this rail (GpuNicDown, GpuNicSlowLink, GpuNicErrors), then which ports NCCL uses "
        "(NCCL_DEBUG=INFO, NCCL_IB_HCA).",
        Inject({**_OVER_NETWORK, m.NIC_TX: Ramp(0, 2e9), m.NIC_RX: Ramp(0, 2e9)}, _OVER_NETWORK),
        And(
            Compare(Calc(mean(n.TRAFFIC), "/", PeerMedian(mean(n.TRAFFIC), SENDS)), "<", SLOW_RAIL),
            Compare(PeerShare(SENDS), ">=", c.ALL_RANKS),
            c.BUSY,
            Compare(Calc(c.GR, "-", PeerMedian(c.GR, SENDS)), "<", SAME_ENGINE),
            Compare(Calc(PeerMedian(c.GR, SENDS), "-", c.GR), "<", SAME_ENGINE),
        ),
        scope=Scope.JOB,
        cause=Cause.PEERS,
        explains=slows_down(),
        meaning="A rail is the network port, with its switch, through which the GPUs in the same place of all nodes "
        "communicate. The other ranks of the job send and receive through the network ports nearest to their GPUs. Those of "
        "this rank carry less than half as much, although its GPU is as busy.",
        impact="The rest of its traffic probably takes the port of another GPU, which then carries twice as much. All ranks "
        "wait for that port.",
        diagnosis=(
            f'Compare `{n.TRAFFIC.record}{{workload="…"}}` of all ranks, and `{n.UP.record}` and `{n.RATE_SHARE.record}` '
            "of this one.",
            _PORTS,
            "Run the job with `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=INIT,NET`: which ports does this rank use, and "
            "with GPUDirect (`GDRDMA`)?",
        ),
        mitigation=(
            "Repair the link if it is down, slow or faulty.",
            "List all rails in `NCCL_IB_HCA`, with the same order on all nodes; give pods all network devices.",
        ),
        wrong="Models are split so that only some ranks communicate between nodes. If NCCL keeps using a slow link, this alert "
        "does not fire, because all ranks then have the same traffic: see GpuNicSlowLink and GpuNicErrors. " + _ABSENT,
    ),
    FailureMode(
        "GpuNicFar",
        Domain.NETWORK,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "{gpu} exchanges data over a network port on another NUMA node",
        "Use a GPU that has a network card on its own NUMA node, or move the card to a slot there (nvidia-smi topo -m).",
        Inject({m.NIC_DISTANCE: 5.0, m.NIC_TX: Ramp(0, 2e10), m.NIC_RX: Ramp(0, 2e10)}),
        And(Compare(Over(n.DISTANCE), ">=", FAR), c.SENDS),
        shows=Over(n.DISTANCE),
        meaning="The network port nearest to this GPU is on another NUMA node, and carries traffic.",
        impact="The data crosses the link between the CPUs, which is slower, and NCCL does not use GPUDirect RDMA over that "
        "distance by default (`NCCL_NET_GDR_LEVEL`).",
        diagnosis=(
            _PORTS,
            "Run `nvidia-smi topo -m`: `SYS` between GPU and NIC is a path between NUMA nodes.",
            "`NCCL_DEBUG=INFO` shows whether NCCL uses GPUDirect (`GDRDMA`) for this rank.",
        ),
        mitigation=(
            "Place ranks that communicate between nodes on GPUs with a near network port.",
            "Move the card to a slot of the other CPU, or add one.",
            "In a virtual machine, pass the topology of the host through, or give NCCL a topology file "
            "(`NCCL_TOPO_FILE`).",
        ),
        wrong="The machine has only one network card for several CPUs. Or the traffic is that of another GPU with the same "
        "port. " + _ABSENT,
    ),
)


def port_fault(mode: FailureMode) -> str | None:
    """Return the fault of the network ports that a mode is about, "" for all nearest ports; None if it is about none."""
    if mode.domain is not Domain.NETWORK or "{gpu}" not in mode.summary:
        return None
    return next((fault for fault, name in OF_FAULTS.items() if name == mode.name), "")
