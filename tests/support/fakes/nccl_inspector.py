"""Lines of NCCL Inspector's files. Names and labels are those of NCCL's source code; the numbers are made up."""

from __future__ import annotations

from pathlib import Path

OF_2_30 = {
    "version": "v5.1",
    "slurm_job_id": "4711",
    "node": "node-1",
    "gpu": "GPU0",
    "comm_name": "DP Group 0",
    "n_nodes": "1",
    "nranks": "8",
}
OF_2_29 = {
    "comm_id": "0x7f8c496ae9f661",
    "hostname": "node-1",
    "rank": "2",
    "slurm_job": "train",
    "slurm_job_id": "4711",
    "nranks": "8",
    "n_nodes": "1",
    "gpu_device_id": "GPU2",
    "collective": "AllReduce",
}


def _lines(labels: dict[str, str], values: dict[str, float]) -> str:
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return "".join(f"{name}{{{text}}} {value:.6g}\n" for name, value in values.items())


def coll(bandwidth: float, **labels: str) -> str:
    """Return the lines of NCCL 2.30 for collectives with this bus bandwidth in GB/s."""
    own = {**OF_2_30, "collective": "AllReduce", "message_size": "4-5GB", "algo_proto": "Ring_simple"}
    values = {"nccl_bus_bandwidth_gbs": bandwidth, "nccl_collective_exec_time_microseconds": 9498.47}
    return _lines({**own, **labels}, values)


def p2p(bandwidth: float, operation: str) -> str:
    """Return the lines of NCCL 2.30 for operations between two ranks."""
    own = {**OF_2_30, "p2p_operation": operation, "message_size": "512-513MB"}
    return _lines(own, {"nccl_p2p_bus_bandwidth_gbs": bandwidth, "nccl_p2p_exec_time_microseconds": 1154.87})


def old_coll(bus: float, algorithm: float, sn: int) -> str:
    """Return the lines of NCCL 2.29 for one collective."""
    own = {"coll_sn": str(sn), "timestamp": f"2026-03-01T12:00:{sn:02d}Z", "message_size": "16.00MB"}
    values = {
        "nccl_algorithm_bandwidth_gbs": algorithm,
        "nccl_bus_bandwidth_gbs": bus,
        "nccl_collective_exec_time_microseconds": 500.0,
    }
    return _lines({**OF_2_29, **own}, values)


def path(directory: Path, uuid: str) -> Path:
    """Return the file of a GPU."""
    return directory / f"nccl_inspector_metrics_{uuid.removeprefix('GPU-')}.prom"
