"""Catalogues -> docs/failure-modes.md and docs/signals.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from gpu_exporter.catalogue import bottlenecks
from gpu_exporter.catalogue import failure_modes as catalogued_modes
from gpu_exporter.catalogue import signals as catalogued_signals
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS, WINDOW, Bottleneck
from gpu_exporter.catalogue.conditions import Limit, Limits, limits_of
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.catalogue.signal import DEVICE, IDENTITY, OWNER, RATE_WINDOW, Read
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.render import banner, prose
from gpu_exporter.render.docs import runbooks
from gpu_exporter.render.docs.markdown import code, table, ticked
from gpu_exporter.render.rules import allocation, rules

INTRO = """# Failure modes

What can go wrong with a GPU or a job, how to recognise it, and what to do: each mode is one entry of
`gpu_exporter/catalogue/failure_modes/`, from which its alert, its [runbook](runbooks/README.md) and what
`gpu-exporter diagnose` says are made. Conditions read [signals](signals.md), which are the same whichever exporter is
scraped.

A condition is true, false or unknown. What an exporter does not expose makes it unknown, and then it says nothing.
"""

CLASSES_INTRO = """
## What limits a GPU

One class at a time, the first that matches, from means over {window}. It is recorded as `gpu:bottleneck:class`, whose
value is the number of the class and whose label `class` is its name.

- Memory-bound does not mean that the SMs are idle: warps that wait for memory are resident, so a copy kernel reads SM
  active 0.99 and DRAM active 0.89, which is about the most there is. Which pipes work distinguishes
  memory from arithmetic.
- Low occupancy alone means nothing: the best matrix products run at 0.14.
- A rank that waits in a collective looks busy: engine 0.98, SM active about 0.2 to 0.5. Look at the
  [stragglers](#stragglers) before its class.
- Where a signal is missing, the classes that need it never match, and one further down takes their place.
"""

STRAGGLERS = """
## Stragglers

In a synchronous job all ranks end each step together, so a slow rank shows not in its own speed but in the others'
waiting. A rank is compared with the other ranks of its job at the same time, never with its own past.

- There must be *victims*: at least the share `victims` of the other ranks have a busy engine, partly filled SMs and
  traffic. That is what waiting in a collective looks like.
- The straggler is the rank that does not wait and still has traffic like theirs. Its engine is less active than its
  victims': its host starves it ([GpuStragglerStarved](runbooks/gpustragglerstarved.md)). Its SMs are more active: it
  computes longer ([GpuStragglerSlow](runbooks/gpustragglerslow.md)), for more work or for a sick chip.
- Two ranks can be named at once: each is measured against the median of those that wait.
- Nothing moves anywhere: a [stall](runbooks/gpucollectivestall.md). All wait and bytes move: the job is
  [bound by communication](runbooks/gpucommunicationbound.md).

Ranks of one job share `cluster`, `namespace`, `workload` and GPU model. The workload comes from labels of the job
(Kubernetes, Slurm), else from the pod's name without role, ordinal and random suffix.

No straggler is found, and nothing false is said, when

- no workload is known, as with processes outside of Kubernetes and Slurm, or GPUs that several pods share;
- the ranks are of different GPU models: each model is compared with itself;
- a job has a single rank, or more than half of its ranks are slow;
- all ranks wait alike, each for its own data: that is [data loading](runbooks/gpudataloadingbound.md) or
  [the host](runbooks/gpuhostbound.md);
- traffic differs by more than the factor `alike`, in direction or against the victims: pipeline stages and replicas of
  a service are no ranks of one collective;
- the victims wait so little that their SMs stay filled, or the traffic of the job stays under `movingBytes`;
- the exporter does not expose what it takes: dcgm-exporter's own list lacks SM activity and the NVLink counters.
"""

TREE_INTRO = """
### Decision tree

Drawn from the conditions. Every number is a mean over {window}; "unless" holds against what is known only.

"""

MODES_INTRO = """
## Modes

In the order in which to look. *hold* is how long a condition must last before the alert fires; `gpu-exporter diagnose`
does not wait. *in part*: a part of the condition can't be judged, so the mode may be missed, or reported in place of a
class that can't be determined.
"""

LIMITS_INTRO = """
## Limits

Each number that a condition compares with has a name. The [chart](../helm/gpu-exporter/README.md#rules) sets them by
these names (`prometheusRule.limits`); without it, change the default in the catalogue and run `gpu-exporter generate`.
"""

COST_INTRO = """
## Cost

Two prices, and arithmetic on signals. They are in `alerts/recording.yaml`; set them to yours, in the chart by these
names in `prometheusRule.limits`.

"""

COST_WORDS = """
- **Electricity**: watts / 1000 is kilowatts, times the price of a kilowatt-hour is dollars per hour *already*: nothing
  is divided by 3600. Over a day, `avg_over_time(workload:electricity:usd_per_hour[1d]) * 24`.
- **GPU-hours**: a GPU costs its price whether it works or not, electricity included: don't add the two.
- **Waste** is the share of the time in which the engine stands still, and all the time of a fake load. A GPU that is
  held and idle costs its price and next to no electricity: look at the price.
- What no workload holds is in the series without one: idle capacity.
- A job that waits in a collective counts as working; how much of that is lost, its runbook says.

"""

SIGNALS_INTRO = f"""# Signals

A signal has one name, one unit and one set of labels, whichever exporter is scraped; conditions, dashboards and
`gpu-exporter diagnose` read nothing else. Each is a recording rule in `alerts/recording.yaml`, made from the first of
its sources that a GPU has: our time integrals, classic names (ours, or of dcgm-exporter up to 4.8), names of
dcgm-exporter from 4.9 on. Who scrapes two exporters gets each GPU once, by its UUID.

- Counters are read as `rate(…[{RATE_WINDOW}])`, which is an exact mean; gauges as they are.
- Labels: {ticked(DEVICE)} (the GPU instance, in MIG mode) identify a device. {ticked(IDENTITY)} come with them, and
  {ticked(OWNER)} where it is known who has the GPU; not with the health of the board, which is nobody's.
- `Hostname` and `hostname` become `node`; `exported_pod` and `exported_namespace` become `pod` and `namespace`.
- A GPU that several pods share has no owner, and so no peers.
- Windows of a signal are recorded as, for example, `gpu:sm_active:mean5m`.
- A signal that is made of others has no value without all of them.
- Signals and the state of boards are evaluated at Prometheus' evaluation interval; signals from histograms, and rules
  on means over five minutes, once a minute.

"""

SHARED_INTRO = """
## Shared conditions

What several classes and alerts ask for is recorded of the GPUs for which it is true, and of no others.

"""


ALLOCATION_INTRO = """
## Allocation

What Kubernetes has given away comes from [kube-state-metrics](https://github.com/kubernetes/kube-state-metrics), which
has to be scraped, with `honorLabels` or without; where it is not, these have no series, and
[GpuAllocationFragmented](runbooks/gpuallocationfragmented.md) is silent.

- `resource` keeps GPUs (`nvidia_com_gpu`), shares of one (`nvidia_com_gpu_shared`) and kinds of MIG instances apart.
- *free* is what a pod could have now: nothing on nodes that are cordoned or not ready. *pending* has no node yet, so it
  has a namespace and a cluster only; *starved* is pending for half an hour or longer.
- A pool is the value of the first of these labels of nodes that kube-state-metrics exposes
  (`--metric-labels-allowlist=nodes=[…]`): {pools}.
  Without, all nodes are one pool without a name.
- GPUs that pods have by resource claims (DRA) are not in it.

"""


def failure_modes(modes: Sequence[FailureMode] = MODES, limits: Limits | None = None) -> str:
    """docs/failure-modes.md."""
    window, changed = prose.span(WINDOW), limits or {}
    return (
        banner.markdown(catalogued_modes, bottlenecks)
        + INTRO
        + CLASSES_INTRO.format(window=window)
        + "".join(_class(number, each, changed) for number, each in enumerate(BOTTLENECKS))
        + TREE_INTRO.format(window=window)
        + code("mermaid", "\n".join(flowchart(changed)))
        + MODES_INTRO
        + "\n"
        + _modes(modes)
        + STRAGGLERS.format(window=window)
        + LIMITS_INTRO
        + "\n"
        + runbooks.limits_table(all_limits(modes))
        + COST_INTRO
        + runbooks.limits_table(PRICES)
        + COST_WORDS
        + table(("recorded", "as"), _cost())
    )


def _class(number: int, each: Bottleneck, limits: Limits) -> str:
    head = f"\n### {number}. {each.name}\n\n{each.means[0].upper()}{each.means[1:]}.\n\n"
    return head + runbooks.condition(each.condition, limits)


def flowchart(limits: Limits) -> Iterator[str]:
    """The classes as a decision tree in Mermaid: a question each, yes to its class, no to the next question."""
    yield "flowchart TD"
    for number, each in enumerate(BOTTLENECKS):
        yield f'  c{number}(["{each.name}"])'
        yield f"  style c{number} fill:{each.colour}"
        if number == len(BOTTLENECKS) - 1:
            break
        yield f'  q{number}{{{{"{_escaped(prose.sentence(each.condition, limits))}"}}}}'
        yield f"  q{number} -- yes --> c{number}"
        yield f"  q{number} -- no --> {_next(number + 1)}"


def _next(number: int) -> str:
    return f"q{number}" if number < len(BOTTLENECKS) - 1 else f"c{number}"


def _escaped(text: str) -> str:
    """As Mermaid reads it: no sign that ends a label or begins a tag; a line for each part of a long condition."""
    safe = text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    for word in (" and ", " or ", ", unless "):
        safe = safe.replace(word, f"<br/>{word.strip(', ')} ")
    return safe


def _modes(modes: Sequence[FailureMode]) -> str:
    head = ("mode", "severity", "hold", "domain", "needs", *(each.title for each in runbooks.EXPORTERS))
    return table(head, (_mode(mode) for mode in modes))


def _mode(mode: FailureMode) -> tuple[str, ...]:
    return (
        f"[{mode.name}](runbooks/{mode.name.lower()}.md)",
        mode.severity.value,
        prose.span(mode.hold) if mode.hold else "-",
        mode.domain.value,
        ", ".join(prose.title(signal) for signal in mode.needs) or mode.requires or "-",
        *runbooks.works(mode),
    )


def all_limits(modes: Sequence[FailureMode] = MODES) -> tuple[Limit, ...]:
    """Every limit of the classes and of the modes, in their order."""
    conditions = [each.condition for each in BOTTLENECKS] + [mode.condition for mode in modes if mode.condition]
    return tuple(dict.fromkeys(limit for condition in conditions for limit in limits_of(condition)))


def _cost() -> Iterator[tuple[str, str]]:
    groups = yaml.safe_load(rules.recording())["groups"]
    (found,) = (group["rules"] for group in groups if group["name"] == "gpu-accounting")
    for rule in found:
        yield f"`{rule['record']}`", f"`{' '.join(rule['expr'].split())}`"


def signals() -> str:
    """docs/signals.md: one row a signal, in the order of the catalogue."""
    rows = [(signal, runbooks.signal_row(signal, _made)) for signal in SIGNALS]
    head = ("signal", "unit", *runbooks.SIGNAL_HEAD[1:])
    lines = ((name, signal.unit.replace("_", " "), *cells) for signal, (name, *cells) in rows)
    text = banner.markdown(catalogued_signals) + SIGNALS_INTRO + table(head, lines)
    named = ((f"`{name}`", prose.sentence(each, {})) for name, each in rules.shared_conditions().items())
    text += SHARED_INTRO + table(("recorded", "where"), named)
    recorded = ((f"`{each.record}`", each.help, ticked(("cluster", *each.by))) for each in allocation.ALLOCATION)
    pools = ticked(reversed(allocation.POOL_LABELS))
    return text + ALLOCATION_INTRO.format(pools=pools) + table(("recorded", "what", "labels"), recorded)


def _made(way: Read) -> str:
    return f"{way.name} == {' or '.join(map(str, way.codes))}" if way.codes else way.promql()
