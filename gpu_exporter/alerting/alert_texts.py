"""What an alert says besides its summary and its advice: whose job it is, which hardware, and where its links lead.

Templates of Prometheus, which query what the labels of the alert lack.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.alerting.coverage import WITHOUT_PROFILING, Detectability, detectability
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.health import NVLINK_ERRORS
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Scope, Severity
from gpu_exporter.catalogue.failure_modes.network import port_fault
from gpu_exporter.catalogue.faults import NVLINK
from gpu_exporter.catalogue.signals import APPROXIMATE, APPROXIMATED, GR_ACTIVE, PROFILING_STOPPED
from gpu_exporter.conditions.tree import signals_of

# Without the address of Grafana, the links in alerts lead nowhere in a chat or a pager.
LINKS, RELATIVE = "links", "The links are relative to Grafana, whose address was not given."
# How far back the owner and the hardware of a GPU that no longer answers are looked up.
KNOWN = "1h"


def _query(series: str) -> str:
    """Return a template that queries series of the GPU that the alert is about."""
    selector = f"{series}{{cluster=%q, UUID=%q}}"
    return f"printf `last_over_time({selector}[{KNOWN}])` $labels.cluster $labels.UUID | query"


def _part(words: str, label: str) -> str:
    """Return a template for a label of the first queried series, if it has it."""
    return f'{{{{ with . | first | label "{label}" }}}}, {words}{{{{ . }}}}{{{{ end }}}}'


_HARDWARE = (
    "{{ if $labels.gpu }}GPU {{ $labels.gpu }}{{ else }}a GPU{{ end }}"
    "{{ with $labels.GPU_I_ID }} (MIG instance {{ . }}){{ end }} on node {{ $labels.node }}"
    "{{ with $labels.UUID }}, UUID {{ . }}{{ end }}"
    f"{{{{ with {_query(m.INFO.name)} }}}}{_part('serial number ', 'serial')}{_part('PCI address ', 'pci_bus_id')}"
    f"{_part('', 'model')}{{{{ end }}}}"
)
_LABELLED = (
    "{{ if $labels.workload }}workload {{ $labels.workload }}{{ with $labels.namespace }}, namespace {{ . }}{{ end }}"
    "{{ with $labels.pod }}, pod {{ . }}{{ end }}{{ with $labels.rank }}, rank {{ . }}{{ end }}"
    "{{ else }}no workload known{{ end }}"
)
_QUERIED = (
    f"{{{{ with {_query('gpu:device_owner:info')} }}}}"
    "{{ range $n, $_ := . }}{{ if $n }}; {{ end }}"
    'workload {{ label "workload" . }}{{ with label "namespace" . }}, namespace {{ . }}{{ end }}'
    '{{ with label "pod" . }}, pod {{ . }}{{ end }}{{ end }}'
    f"{{{{ with {_query('rank:identity:info')} }}}}{_part('rank ', 'rank')}{{{{ end }}}}"
    "{{ else }}no workload known within the last hour{{ end }}"
)
_QUALITY = (
    f"{{{{ with printf `{APPROXIMATE.record}{{cluster=%q, UUID=%q}} == 1` $labels.cluster $labels.UUID | query }}}}"
    "approximate: from utilisation and power, because the GPU has no profiling metrics{{ end }}"
)


# The NVLinks that alerts are about: that are down although all should be up, and the one with most errors. Only with
# `--metrics full`.
_EXPECTED, _THERE = (f"max by (cluster, UUID) ({metric})" for metric in (m.NVLINK_EXPECTED, m.NVLINK_COUNT))
_LINK_UP, _LINK_ERRORS = m.LINK_UP.name, m.LINK_ERRORS[0].name


def _of_gpu(links: str) -> str:
    """Return series of NVLinks with the label of their GPU that other series have."""
    return f'label_replace({links}, "UUID", "$1", "gpu_uuid", "(.+)")'


NVLINK_FAULTS = {
    NVLINK.mode: f"({_of_gpu(f'{_LINK_UP} == 0')} and on (cluster, UUID) {_EXPECTED} == {_THERE})",
    NVLINK_ERRORS: (
        f"(topk by (cluster, UUID) (1, sum by (cluster, UUID, nvlink) ({_of_gpu(f'rate({_LINK_ERRORS}[1h])')})) > 0)"
    ),
}
_OF_GPU = "cluster=%q, UUID=%q"
STOPPED = (
    f"{{{{ with printf `{PROFILING_STOPPED.record}{{{_OF_GPU}}} == 1` $labels.cluster $labels.UUID | query }}}}. "
    "DCGM's profiling counters of this GPU have stopped{{ end }}"
)


def link(mode: FailureMode) -> str:
    """Return a template for the end of a summary: which links of the GPU, or that its counters have stopped."""
    if any(PROFILING_STOPPED in signals_of(condition) for condition in mode.conditions):
        return STOPPED
    if mode.name in NVLINK_FAULTS:
        found, selector = NVLINK_FAULTS[mode.name], "{cluster=%q, gpu_uuid=%q}"
        for metric in (_LINK_UP, _LINK_ERRORS):
            found = found.replace(metric, f"{metric}{selector}")
        name, words = "nvlink", 'NVLink {{ label "nvlink" . }}'
    elif (fault := port_fault(mode)) is not None:
        found = f'{m.NIC_FAULT}{{{_OF_GPU}, fault="{fault}"}}' if fault else f"{m.NIC_INFO}{{{_OF_GPU}}}"
        name, words = "device", '{{ label "device" . }} port {{ label "port" . }}'
    else:
        return ""
    return (
        f"{{{{ with printf `{found}` $labels.cluster $labels.UUID | query | sortByLabel `{name}` }}}}: "
        f"{{{{ range $n, $_ := . }}}}{{{{ if $n }}}}, {{{{ end }}}}{words}{{{{ end }}}}{{{{ end }}}}"
    )


def annotations_of(mode: FailureMode) -> Mapping[str, str]:
    """Return the further annotations of an alert.

    `quality` says that it is approximate, if it can be; of an alert that somebody is notified of, also `owner`,
    `hardware` and `links`.
    """
    found = {}
    can_be = detectability(mode, WITHOUT_PROFILING) is not Detectability.NO
    if can_be and (not APPROXIMATED.isdisjoint(mode.needs) or GR_ACTIVE.name in mode.fleet):
        found["quality"] = _QUALITY
    if mode.severity is not Severity.INFO:
        of_gpu = mode.scope is not Scope.FLEET and "{gpu}" in mode.summary
        if of_gpu or "{job}" in mode.summary or "$labels.workload" in mode.summary:
            found["owner"] = _QUERIED if lacks_owner(mode) else _LABELLED
        if of_gpu and mode.domain in (Domain.HEALTH, Domain.NETWORK):
            found["hardware"] = _HARDWARE
    return {**found, LINKS: RELATIVE}


def lacks_owner(mode: FailureMode) -> bool:
    """Return whether the signals of a mode do not have the owner of the GPU: those of the hardware."""
    return mode.domain in (Domain.HEALTH, Domain.NETWORK) and not any(signal.has_owner for signal in mode.needs)
