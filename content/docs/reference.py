"""Catalogues -> reference pages: metrics, health, configuration, dcgm-exporter's flags, and XIDs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import groupby

from gpu_exporter import config
from gpu_exporter.alerting import banner, runbooks
from gpu_exporter.catalogue import faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter import flags
from gpu_exporter.catalogue.dcgm_exporter.flags import FLAGS, SETTINGS, DcgmExporterFlag
from gpu_exporter.catalogue.dcgm_exporter.names import modern
from gpu_exporter.catalogue.faults import FAULTS, SLOT, STATES, Fault, FaultState
from gpu_exporter.catalogue.hardware import SEEN_ON, seen_on
from gpu_exporter.catalogue.metrics import METRICS, NON_GPU_ENTITIES, SWITCH_LINKS, read_from
from gpu_exporter.catalogue.xids import PACKAGED, load
from gpu_exporter.config import ENV_PREFIX, Config, SettingGroup, flag, variable
from gpu_exporter.model.metric import (
    EntityKind,
    Kind,
    Metric,
    MetricSet,
    PerProcess,
)
from gpu_exporter.reports.markdown import table
from gpu_exporter.reports.markdown import table as _table

METRICS_INTRO = """# Metrics

Classic metrics (`DCGM_*`) have the names, types, units and device labels of dcgm-exporter up to 4.8.2: `gpu`, `UUID`,
`pci_bus_id`, `device`, `modelName`, `Hostname`, `DCGM_FI_DRIVER_VERSION`. gpu-exporter's own metrics (`gpu_*`) have the
labels `gpu` and `UUID`; join other labels from `gpu_info`. Series that do not come from live GPUs have the label
`source`, for example `source="replay"`.

- **set**: `default` is always exposed, `full` with `--metrics full`, `host` with
  `--host-evidence`, `job` with `--job-socket` ([training loops](jobs.md)), `nccl` with `--nccl-inspector-dir`
  ([NCCL Inspector](fabric.md#nccl-inspector)), `named` only if a dcgm-exporter's CSV [file of
  fields](dcgm-exporter.md) names it.
- **si**: the name with `--schema si`, if it differs. This is the schema of dcgm-exporter since 4.9: base units, and
  the labels `hostname` and `DCGM_FI_SYSTEM_DRIVER_VERSION`. gpu-exporter's own metrics keep their names.
- **read**: how often the value is read from the driver: `fast` at every collection, `steady` every 5 s, `buffered`
  every 10 s, with all samples that the driver took in between; the counter advances 10 s later, so that its rate is
  right at any scrape interval; `slow` every 15 s, `rare` every minute, `static` every hour.
- **from**: the NVML function, field or GPM metric (GPU Performance Monitoring of NVML, from Hopper on) that the value
  is read from.
- **seen on**: hardware on which the metric had a value. *not yet*: written from NVIDIA's documentation and tested only
  with a fake driver. See [platforms](platforms.md).
- Labels in parentheses exist on a GPU in MIG mode: each GPU instance has such a series, the GPU itself has none.
- Profiling gauges are means over `--gauge-window`. `rate()` of the matching `_seconds_total` or `_bytes_total` counter
  is the mean over any window, without gaps. SM and pipe activity are shares of clock cycles, so they can differ from
  shares of time if the clock changes ([example](performance.md#what-it-sees-between-two-scrapes)).
- With `--kubernetes`, classic metrics also have the labels `namespace`, `pod` and `container`, see
  [attribution](attribution.md).
- A metric that is not available on a GPU has no sample; `gpu_metric_supported{metric,reason} 0` says why.
- A classic counter has the type `counter` in the text format 0.0.4 and `unknown` in OpenMetrics, where the name of a
  counter must end in `_total`.
"""

HEALTH_INTRO = """# Health

At every collection, each GPU gets a verdict from its latest values, some of which are read only once a minute or once
an hour. The verdict is on `/metrics`, in `/api/v1/gpus` (JSON), in `gpu-exporter doctor`, and in `gpu-exporter check`,
which reads all values anew. A GPU that is slow without reporting an error is healthy here:
[`gpu-exporter check --active`](active-checks.md) measures it.

- `gpu_health_state{state="healthy|degraded|unhealthy"}`: exactly one of the three is 1. All three are 0 while the
  health is unknown.
- **unhealthy**: act now. **degraded**: running jobs can finish; do not schedule new ones. `gpu-exporter check` exits
  with 3 if any GPU is degraded or unhealthy, otherwise with 1 if the health of one is unknown or there
  is no GPU, with 0 if all are healthy, and with 2 after wrong usage or an unexpected error.
- **unknown**: no fault was found, but one of these values is supported and could not be read: uncorrectable ECC errors,
  row remapping or page retirement, the recovery action. The health is also unknown while the GPU is being attached, the
  DCGM host engine does not answer, the driver's library cannot be used, the driver is released, or all GPUs of the node
  stop to answer at the same moment without a reason (or while all driver calls hang): that is a fault of telemetry, of
  the container, which may have lost its devices, or of the driver, and says nothing about any GPU. `gpu-exporter
  remediate` does not drain the node then. `gpu_down_reason` has the reason `source_lost` or `unread` (`stalled` while
  all driver calls hang), and [GpuSourceDown](runbooks/gpusourcedown.md) fires if that lasts.
- `gpu_health_reason{reason,action} 1` while a reason holds. `action` is what to do. From the least to the most drastic:
  none, restart_app, gpu_reset, node_reboot, drain, replace. With several reasons, follow the most drastic action.
  - `none`: the cause is outside the GPU (cooling, power, fabric manager).
  - `gpu_reset`, `node_reboot`: first cordon the node. If the GPU is degraded, let the jobs end: those on the GPU for a
    reset, all for a reboot. If it is unhealthy, the runbook says what to end.
  - `drain`: cordon the node and follow the runbook, which says what must end: the jobs on this GPU, or everything on
    the node. It ranks above `node_reboot` because the repair depends on the case, and may include a reboot.
- After an XID that requires a drain, the GPU is unhealthy with the reason `xid_<code>` and the code's
  [action](xids.md), until nothing else is wrong with it and all that the verdict needs could be read, but for ten
  minutes at least. A reboot of the node ends it, too. An XID that leaves no other trace therefore ends after ten
  minutes without a repair: keep the node cordoned until the repair is done. A wrong node clock does not change this
  ([time of an XID](events.md#time)). `gpu-exporter check` and `doctor` do not see XIDs from before they
  started.
- A value that a GPU does not support never makes it unhealthy. Rates and history, such as corrected errors in an hour,
  are evaluated by Prometheus.
- Limits of the alerts and silences do not change the verdict: a GPU that runs without an NVSwitch fabric on purpose,
  for example, stays degraded. In the prolog of a job, read the reasons from `gpu-exporter check --json` and ignore the
  expected ones.

Columns of the table: *XID* lists the codes that the driver usually reports when the fault begins; *alert* links the
runbook.
"""

STATES_INTRO = """
## States

Each state is one expression on gpu-exporter's metrics. The column *obtained* says how the values are read through NVML:
`X(…)` stands for NVML's `nvmlDeviceGetX` (`ValidateInforom` for `nvmlDeviceValidateInforom`), `field N` for its field
value N. [Metrics](metrics.md) says how often, and on which hardware each was seen. Metrics that are only exposed with
`--metrics full` are marked.
"""

CONFIG_INTRO = """# Configuration

Every setting is a flag of `gpu-exporter serve`, an environment variable and a key of the YAML file that `--config`
(`{0}CONFIG`) names. A flag overrides the environment, which overrides the file.

- **Booleans.** A flag such as `--processes` needs no value, and `--no-processes` is its opposite; the opposite of
  `--no-hostname` is `--hostname`. `--processes=true` works, too. In the environment and in the file, write `true` or
  `false`.
- **The file.** Keys may contain dashes or underscores. Quote text that YAML reads as something else, such as `"010"`,
  `"1:30"` or `"off"`; if quotes are needed, an error names the key or the line. All unknown keys are reported at once.
- **The environment.** `serve` logs a warning for each variable that begins with `{0}` and is not a setting.
  Variables that Kubernetes injects for a Service named `gpu-exporter` are ignored without a warning.
"""

EXIT_CODES = (
    ("0", "Success. For a command that checks something: everything is fine."),
    (
        "1",
        "The command could not do its work, for example because a file is missing or faulty, or no GPU can be read; one"
        " line on stderr says why. For some commands it is a result: `diagnose` found something, `doctor` found no GPU"
        " that can be read, for `check` the health is unknown, and for `trace analyze` a condition of `--fail-on` or"
        " `--baseline` does not hold.",
    ),
    (
        "2",
        "Wrong usage, such as an unknown option or value, or options that contradict each other; a faulty setting on"
        " the command line, in the environment or in the file of `--config`, or an unexpected error. Also if"
        " `diagnose`, `doctor` or `trace` could not do their work.",
    ),
    (
        "3",
        "`check`: a GPU is degraded or unhealthy. `compare`: the sources differ. `rewrite`: a query was not rewritten.",
    ),
    (
        "4",
        "`check --active`: another program uses a GPU, so there is no comparable result; no GPU is unfit.",
    ),
    ("130", "Interrupted by Ctrl-C; `diagnose` then reports what it has seen by then, or exits with 2."),
    ("141", "The reader of stdout closed the pipe."),
)
CONFIG_END = """
An unexpected error is one line, too. To see its traceback, run `gpu-exporter --debug COMMAND`.
"""

XIDS_INTRO = """# XID codes

NVIDIA's driver reports each error of a GPU with an XID code, and writes it to the kernel log:
`NVRM: Xid (PCI:0000:03:00): 79, …`.

- **kind**: whose fault it usually is. `application`: inform the owner of the job; the GPU is healthy.
- **action**: the repair, in NVML's words. The driver's own recovery action (XID 154, `nvidia-smi -q`) outranks it.
- **drain**: drain the node: no new work, and the running work ends. Marked are only the codes on which NVIDIA's catalog
  and the clouds that drain automatically agree. NVIDIA recommends a reset after some others too (46, 62, 74, 109, 110,
  …); these do not drain unless you override them with `drain: true`.
- A code that is not in the table is `unknown`: it alerts and never drains.
- The sources disagree on some codes. Some clouds drain after 63 (remapping recorded), which NVIDIA ignores. 74 may be
  the fault of the peer. 94 affects one application only. 109 needs a reset by NVIDIA's catalog, and is the
  application's fault by its device plugin.
- An SXid (NVSwitch) is `fatal` or `non-fatal`, as its line says.

`--xid-overrides` names a file with changes: YAML such as `63: {action: gpu_reset, drain: true}`, or CSV with the column
`code` and the columns to change.
"""


OF_INSTANCE = "(GPU_I_ID, GPU_I_PROFILE)"
LABELS = {
    EntityKind.NVLINK: "nvlink",
    EntityKind.INSTANCE: "GPU_I_ID, GPU_I_PROFILE",
    EntityKind.PROCESS: f"pid, process, {OF_INSTANCE}",
    EntityKind.NVSWITCH: "nvswitch",
    EntityKind.CPU: "cpu",
    EntityKind.CPU_CORE: "cpucore, cpu",
}
OWN_LABELS = {
    m.XID_ERRORS: "err_code, err_msg",
    m.EXP_XID_COUNT: "window_size_in_ms, (xid)",
    m.EXP_XID_TOTAL: "xid",
    m.EXP_CLOCK_COUNT: "(clock_event), window_size_in_ms",
    m.EXP_CLOCK_TOTAL: "clock_event",
    m.EXP_HEALTH: "health_error_code, health_watch",
    m.EXP_P2P: "link_status, peer_gpu",
}


def metrics() -> str:
    """Return docs/metrics.md: one row per family, in catalogue order."""
    rows = [_family(list(rows)) for _, rows in groupby(_by_family(METRICS), key=lambda metric: metric.name)]
    head = ("metric", "type", "unit", "si", "labels", "set", "read", "from", "DCGM field", "seen on", "meaning")
    return banner.markdown(m) + METRICS_INTRO + "\n" + _table(head, rows)


def health() -> str:
    """docs/health.md: the reasons of a verdict, and one row a state."""
    reasons = [_reason(fault) for fault in sorted(FAULTS, key=lambda fault: fault.health, reverse=True)]
    states = [(state.name, state.meaning, f"`{state.promql}`", _obtained(state), state.hardware) for state in STATES]
    return (
        banner.markdown(faults)
        + HEALTH_INTRO
        + "\n"
        + _table(("reason", "state", "action", "meaning", "XID", "alert"), reasons)
        + STATES_INTRO
        + "\n"
        + _table(("state", "meaning", "PromQL", "obtained", "where"), states)
    )


def _reason(fault: Fault) -> tuple[str, ...]:
    words = SLOT.sub("*n*", "; or ".join(filter(None, (fault.words, fault.below_zero))))
    alert = runbooks.link(fault.mode, "runbooks/")
    xids = ", ".join(map(str, fault.xids))
    return f"`{fault.reason}`", fault.health.value, fault.action.value, words, xids, alert


def _obtained(state: FaultState) -> str:
    rows = state.metrics
    full = " (`--metrics full`)" if any(row.set is MetricSet.FULL for row in rows) else ""
    return "; ".join(dict.fromkeys(_read_from(row) for row in rows)) + full


def _read_from(row: Metric) -> str:
    return read_from(row) + (" …" if row.labels and row.nvml else "")


def configuration() -> str:
    """Return docs/configuration.md: one table per group, one row per setting."""
    head = ("flag", "environment", "key", "default", "meaning")
    tables = []
    for group in SettingGroup:
        rows = []
        for setting in fields(Config):
            if setting.metadata["group"] is group:
                default = setting.metadata["default"] or ""
                row = (f"--{flag(setting)}", variable(setting.name), setting.name)
                rows.append((*(f"`{cell}`" for cell in row), default, setting.metadata["help"]))
        tables.append(f"## {group.value}\n\n{_table(head, rows)}")
    tables.append(f"## Exit codes\n\n{_table(('code', 'meaning'), EXIT_CODES)}")
    return banner.markdown(config) + CONFIG_INTRO.format(ENV_PREFIX) + "\n" + "\n".join(tables) + CONFIG_END


def xids() -> str:
    """docs/xids.md: one row a code."""
    rows = []
    for xid in load():
        drain = "yes" if xid.drain else ""
        about = (f"`{xid.mnemonic}`", xid.meaning, xid.kind.value, xid.action.value, drain, f"{xid.source}, {xid.date}")
        rows.append((str(xid.code), *about))
    head = ("code", "NVIDIA's name", "meaning", "kind", "action", "drain", "source")
    return banner.markdown(PACKAGED) + XIDS_INTRO + "\n" + _table(head, rows)


def _by_family(rows: Iterable[Metric]) -> list[Metric]:
    first: dict[str, int] = {}
    for place, metric in enumerate(rows):
        first.setdefault(metric.name, place)
    return sorted(rows, key=lambda metric: first[metric.name])


def _family(rows: Sequence[Metric]) -> tuple[str, ...]:
    metric = rows[0]
    labels = [LABELS[metric.entity]] if metric.entity in LABELS else []
    if metric in SWITCH_LINKS:
        labels.insert(0, "nvlink")
    if metric.per_instance:
        labels.append(OF_INSTANCE)
    if metric in OWN_LABELS:
        labels.append(OWN_LABELS[metric])
    if metric.kind is Kind.HISTOGRAM:
        labels.append("le")
    for name in dict(metric.labels):
        labels.append(f"{name}: " + ", ".join(dict(row.labels)[name] for row in rows))
    sources = [read_from(row) for row in rows]
    return (
        f"`{metric.name}`",
        metric.kind.value,
        metric.unit,
        f"`{renamed[0]}`" if (renamed := modern(metric)) else "",
        "; ".join(labels),
        "`--processes`"
        if isinstance(metric.nvml, PerProcess)
        else " / ".join(dict.fromkeys(row.set.value for row in rows)),
        metric.nvml_pace.name.lower() if metric.nvml or metric.entity in NON_GPU_ENTITIES else "",
        sources[0] if len(sources) == 1 else f"{sources[0]} …",
        "" if metric.dcgm is None else str(metric.dcgm) + (" …" if len(rows) > 1 else ""),
        _seen_on(rows),
        metric.help,
    )


def _seen_on(rows: Sequence[Metric]) -> str:
    """Return the hardware on which every row of a family had a value; empty for the exporter's own metrics."""
    computed = (row.integral_of or row.histogram_of or row.sum_of or row.peak_of for row in rows)
    if not any(computed) and not any(row.nvml or row.entity in NON_GPU_ENTITIES for row in rows):
        return ""
    return ", ".join(name for name in SEEN_ON if all(name in seen_on(row) for row in rows)) or "*not yet*"


HEAD = f"""# dcgm-exporter's flags

`gpu-exporter serve` accepts the flags and environment variables of dcgm-exporter (4.5.3-4.8.2, and those of the
later source in its repository), so that existing command lines and manifests keep working. `gpu-exporter -f FILE -a
:9400`, without `serve`, works too. The syntax is the same: `-c 5000`, `-c=5000`, `-collect-interval 5000`,
`--collect-interval=5000`.

gpu-exporter's own flags override dcgm-exporter's flags, and `{ENV_PREFIX}*` overrides dcgm-exporter's variables; the
config file has the lowest priority. For a flag that is ignored, one line in the log says what to use instead, and
another names each variable `DCGM_EXPORTER_*` that gpu-exporter does not know. A wrong value prevents the start, with
one line that names the flag or the variable.

"""


def page() -> str:
    """Return docs/dcgm-exporter-flags.md: one row per flag."""
    return banner.markdown(flags) + HEAD + table(("flag", "environment", "becomes", "remarks"), map(_row, FLAGS))


def _row(theirs: DcgmExporterFlag) -> tuple[str, ...]:
    long, *short = theirs.flags
    names = ", ".join(f"`{name}`" for name in (f"--{long}", *(f"-{each}" for each in short)))
    becomes = f"`--{flag(SETTINGS[theirs.setting])}`" if theirs.honoured else "ignored"
    return names, f"`{theirs.env}`", becomes, theirs.hint
