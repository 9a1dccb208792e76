"""The words for signals and operators: data for prose.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The titles of signals that neither begin nor end the sentence with their value.
TITLES: Mapping[str, str] = {
    "gr_active": "engine activity",
    "tensor_active": "tensor core activity",
    "dram_active": "DRAM activity",
    "fp64_active": "FP64 activity",
    "fp32_active": "FP32 activity",
    "fp16_active": "FP16 activity",
    "int_active": "integer activity",
    "pcie_replay_limit": "PCIe replay limit",
    "power_swing": "power swing",
    "sm_active": "SM activity",
    "pcie_width": "PCIe width",
    "sm_idle": "SM idle time",
    "util": "GPU utilisation",
    "pcie_rx_use": "PCIe link use to the GPU",
    "pcie_tx_use": "PCIe link use from the GPU",
    "pcie_max_width": "maximum PCIe width",
    "nvlink_links": "number of NVLinks",
    "nvlink_links_up": "number of NVLinks that are up",
    "nvlink_links_expected": "expected number of NVLinks",
    "pcie_expected": "expected capacity of the PCIe link",
    "power_use": "power as a share of its limit",
    "power_now_use": "power as a share of its limit, of a moment",
    "power_instant_use": "instantaneous power as a share of its limit",
    "fb_use": "device memory use",
    "fb_peak_use": "highest device memory use in a minute",
    "hw_thermal_slowdown": "time in hardware thermal slowdown",
    "sw_thermal_slowdown": "time in driver thermal slowdown",
    "hw_power_brake": "time under power brake",
    "sw_power_cap": "time at the power cap",
    "remapped_uncorrectable": "remapped memory rows",
    "host_launch_cpu": "CPU time of the launching thread",
    "host_launch_run_queue": "run queue delay of the launching thread",
    "host_launch_blocked": "blocked time of the main thread",
    "host_workers_active": "number of active worker processes",
    "host_workers_cpu": "CPUs used by workers",
    "host_workers_run_queue": "workers in the run queue",
    "host_workers_blocked": "blocked workers",
    "host_worker_cpu": "CPU time of an active worker",
    "host_worker_run_queue": "run queue delay of an active worker",
    "host_worker_blocked": "blocked time of an active worker",
    "host_cpu_limit_periods": "periods of the CPU limit",
    "host_cpu_limit_throttled_periods": "throttled periods of the CPU limit",
    "host_throttled": "throttled share of the periods of the CPU limit",
    "host_cpus": "number of allowed CPUs",
    "host_cpus_busy": "busy allowed CPUs",
    "host_cpu_use": "use of the allowed CPUs",
    "host_major_faults": "rate of major page faults",
    "host_read": "storage reads",
    "host_swap": "memory in swap",
    "host_remote_node": "time on another NUMA node",
    "host_shm_used": "used shared memory",
    "host_shm_limit": "size of /dev/shm",
    "host_shm_use": "use of /dev/shm",
    "nic_up": "state of the nearest network ports",
    "nic_rate_share": "share of the full network link rate",
    "nic_link_downed": "network link failures",
    "nic_link_errors": "network link errors",
    "nic_retransmits": "rate of retransmitted packets",
    "job_pause": "time in an evaluation, a checkpoint or a compilation",
    "job_data": "time in the data loader",
    "job_waiting": "time waiting for other ranks",
    "job_self_excess": "self time above that of the other ranks",
    "job_self_margin": "difference that is usual between ranks",
    "job_pause_wait": "wait for pauses of other ranks",
    "job_standstill": "time without a completed step",
    "job_stall_limit": "time without a step that is a stall",
    "job_speed_15m": "speed over 15 minutes",
    "job_speed_5m": "speed over 5 minutes",
    "job_lost_pauses": "time in evaluations, checkpoints and compilations",
    "job_lost_other": "time without a step that ended",
    "job_rank_ended_age": "time since the last message of a rank",
    "job_rank": "rank of the training job",
    "job_restarts": "restarts of the rank",
    "read_age": "time since the last successful collection",
    "xid_application_age": "time since the last application XID",
    "xid_unknown_age": "time since the last undocumented XID",
}
# What a signal of 0 or 1 says: at 1, and at 0.
STATES: Mapping[str, tuple[str, str]] = {
    "approximate": ("there are no profiling counters", "there are profiling counters"),
    "up": ("the GPU answers", "the GPU does not answer"),
    "healthy": ("the GPU is healthy", "the GPU is not known to be healthy"),
    "degraded": ("the GPU is degraded", "the GPU is not degraded"),
    "unhealthy": ("the GPU is unhealthy", "the GPU is not unhealthy"),
    "nic_up": ("the nearest network ports are active", "a network port that should be active is not"),
    "unobserved": ("the exporter cannot tell, or has released the driver", "the exporter can tell"),
    "sram_exceeded": ("the SRAM threshold is exceeded", "the SRAM threshold is not exceeded"),
    "row_remap_pending": ("a row remap is pending", "no row remap is pending"),
    "row_remap_failed": ("a row remap has failed", "no row remap has failed"),
    "retired_pages_pending": ("retired pages are pending", "no retired pages are pending"),
    "xid_fatal": ("a fatal XID is not repaired yet", "every fatal XID is repaired"),
    "inforom_valid": ("the InfoROM is valid", "the InfoROM is not valid"),
}
# Shared conditions by their name: the clause that stands for them in other conditions.
CLAUSES: Mapping[str, str] = {
    "communicates": "the whole job *communicates*",
    "across_cliques": "the rank is in *another clique* than most",
    "fills_up": "the memory *fills up*",
    "power_swings": "the power *swings*",
    "slow_straggler": "the other ranks wait for this *slow* one",
    "starved_straggler": "the other ranks wait for this *starved* one",
    "hangs": "the job *hangs*",
    "stalls": "the job *stalls*",
    "loop_pauses": "the training loop is in a *pause*, as it says itself",
    "loop_knows": "the training loop *knows better*: it is in a pause, or all ranks measure whom the others wait for",
    "idles": "the GPU *idles*",
    "spinning": "the GPU *spins* in a collective",
    "may_spin": "the GPU *may spin*",
    "waiting": "the GPU *waits* for other ranks, and no data moves",
    "computes_at_limit": "the GPU *computes at its power limit*",
    "draws_little": "the GPU is busy but *draws little power*",
    "traffic": "the GPU *exchanges data*",
    "moves": "*data moves* to or from the GPU",
    "other_traffic": "its *traffic differs* from that of the ranks that communicate",
    "launches": "the CPU *launches small kernels*",
    "launch_bound": "the GPU *waits for launches*",
    "launches_late": "its kernels are always *launched last*",
    "has_stopped": "its NVLink traffic *has stopped* within the last minutes",
    "all_launch": "all ranks of the job *wait for launches*",
    "host_stopped": "the process is *stopped* by its CPU limit or by swapping",
    "host_not_running": "the process is *kept from running*",
    "host_kept_waiting": "the process is *kept waiting*",
}
# Units of signals that count things: their titles are plural.
PLURAL = ("errors", "banks", "rows", "total")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator in words, before a value and before an amount, and as a sign."""

    value: str
    amount: str
    sign: str


OPERATORS: Mapping[str, Operator] = {
    ">": Operator("above", "more than", ">"),
    ">=": Operator("at least", "at least", "≥"),
    "<": Operator("below", "less than", "<"),
    "<=": Operator("at most", "at most", "≤"),
    "==": Operator("exactly", "exactly", "="),
    "!=": Operator("not", "not", "≠"),
}
