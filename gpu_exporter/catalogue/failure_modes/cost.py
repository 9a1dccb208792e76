"""Cost: GPUs that are paid for and not used."""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import IDLE_ENGINE, MOVING, QUIET_PCIE
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Inject, Place, Scope, Severity
from gpu_exporter.conditions.tree import And, Calc, Compare, Fn, Limit, Or, Over, Unless
from gpu_exporter.model.verdict import Action

MINUTE, HOUR = 60.0, 3600.0

# fmt: off
HELD_MEMORY    = Limit("heldMemory", 2.0**30, "bytes", "device memory in use from which a GPU counts as occupied; a CUDA context alone needs less", a.MEMORY, any_model="more than a CUDA context needs, less than the smallest slice has")
HOARDED_MEMORY = Limit("hoardedMemory", 0.8, "ratio", "share of the memory in use from which it counts as nearly full", a.MEMORY)
HOARDER_SM     = Limit("hoarderSm", 0.1, "ratio", "SM activity that a GPU with hoarded memory never reaches", a.SM)
FULL_MEMORY    = Limit("fullMemory", 0.6, "ratio", "share of the memory in use from which growth is dangerous", a.MEMORY)
PEAK_MEMORY    = Limit("peakMemory", 0.95, "ratio", "share of the memory in use at a peak from which a program may run out of memory", a.MEMORY)
HIDDEN_PEAK    = Limit("hiddenPeak", 0.05, "ratio", "how much more memory is in use at a peak than scrapes show, as a share of the memory, for the peak to be reported", a.MEMORY)
STEADY_GROWTH  = Limit("steadyGrowth", 0.6, "ratio", "growth by the trend of 15 minutes, as a share of that by the trend of an hour, from which memory counts as growing steadily: a cache that fills grows ever more slowly", a.MEMORY)
# fmt: on

PRICES = (
    Limit("usdPerKwh", 0.12, "USD", "price of a kilowatt-hour"),
    Limit("usdPerGpuHour", 2.50, "USD", "price of a GPU for an hour, electricity included"),
)

IDLE_FOR, HOARDED_FOR = 2 * HOUR, HOUR
# A step counts as growth until it leaves the shorter window, which ends before the hold does. The hold is part of the
# horizon, so that a full hour is left when the alert fires.
GROWS_FOR, GROWTH_HOLD = 15 * MINUTE, 15 * MINUTE
_SOON, _STEADILY = (
    Over(s.FB_PEAK_FREE, Fn.PREDICT, window, ahead=HOUR + GROWTH_HOLD, whole=True) for window in (GROWS_FOR, HOUR)
)
_GROWTH_SOON, _GROWTH_STEADILY = (Calc(Over(s.FB_PEAK_FREE), "-", predicted) for predicted in (_SOON, _STEADILY))
# What scrapes showed counts for longer than a peak, which outlasts it by a minute: a program that ends is no peak.
PEAK_WINDOW, SCRAPED_WINDOW = 5 * MINUTE, 10 * MINUTE
_PEAK = Over(s.FB_PEAK_USE, Fn.MAX, PEAK_WINDOW)

# Two nodes of four have two free GPUs each, and a pod waits for three.
_NODES = ("frag-1", "frag-2")
FRAGMENTED = {
    **{f'kube_node_status_allocatable{{node="{node}",resource="nvidia_com_gpu"}}': 4.0 for node in _NODES},
    **{f'kube_node_labels{{node="{node}",label_cloud_google_com_gke_nodepool="h200"}}': 1.0 for node in _NODES},
    **{f'kube_node_spec_unschedulable{{node="{node}"}}': 0.0 for node in _NODES},
    **{f'kube_node_status_condition{{node="{node}",condition="Ready",status="true"}}': 1.0 for node in _NODES},
    **{
        f'kube_pod_container_resource_requests{{namespace="serving",pod="small-{node}",container="main",node="{node}",resource="nvidia_com_gpu"}}': 2.0
        for node in _NODES
    },
    **{f'kube_pod_status_phase{{namespace="serving",pod="small-{node}",phase="Running"}}': 1.0 for node in _NODES},
    'kube_pod_container_resource_requests{namespace="research",pod="large-0",container="main",node="",resource="nvidia_com_gpu"}': 3.0,
    'kube_pod_status_phase{namespace="research",pod="large-0",phase="Pending"}': 1.0,
    'kube_pod_status_unschedulable{namespace="research",pod="large-0"}': 1.0,
    'kube_pod_created{namespace="research",pod="large-0"}': 1.0,
}

MODES = (
    FailureMode(
        "GpuMemoryExhaustionPredicted",
        Domain.COST,
        Severity.WARNING,
        GROWTH_HOLD,
        Action.NONE,
        "The memory of {gpu} will be full within an hour if it keeps growing",
        "Tell the owner of the job to save a checkpoint now, then to look for a leak or a growing cache: compare "
        "allocated with reserved memory over several steps.",
        Inject(profiles.memory(110 * profiles.GIB, growth=6.0)),
        And(
            Compare(Over(s.FB_PEAK_USE), ">=", FULL_MEMORY),
            # Programs load for minutes at their start.
            Compare(Over(s.FB_USED, Fn.MIN, HOUR, whole=True), ">=", HELD_MEMORY),
            Compare(Calc(_GROWTH_SOON, "/", _GROWTH_STEADILY), ">=", STEADY_GROWTH),
            And(Compare(_STEADILY, "<", 0.0), Compare(_SOON, "<", 0.0)),
            name="fills_up",
        ),
        cause=Cause.CAPACITY,
        meaning="The free memory of this GPU, at the peak of each minute, shrinks steadily and will be used up within the hour if this continues, by the "
        "trend of the last 15 minutes and by that of the last hour. A leak that takes more than two hours to fill the "
        "memory is reported an hour before it is full; one that fills it in an hour, about a quarter of an hour before.",
        impact="The program will end with an out-of-memory error; so may other programs that share the GPU.",
        diagnosis=(
            f'Look at `{s.FB_PEAK.record}{{UUID="…"}}` over a few hours, or at `{s.FB_USED.record}` where it is missing. Steady growth is a leak or a cache '
            "without a limit; steps are longer sequences or larger batches.",
            "In the program, compare `torch.cuda.memory_allocated()` with `torch.cuda.memory_reserved()` over "
            "several steps. If allocated memory grows, something keeps tensors (a list of losses, graphs that "
            "are not detached). If only reserved memory grows, it is fragmentation.",
            "Run `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`: is it another process?",
            "`torch.cuda.memory._record_memory_history()` and a snapshot show which line allocated the memory.",
        ),
        mitigation=(
            "Tell the owner of the job to save a checkpoint now.",
            "For a leak: use `loss.item()` or `.detach()` instead of keeping the loss; free what is kept between "
            "steps.",
            "For fragmentation: set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. For the cache of a "
            "server: give it a limit.",
        ),
        wrong="A program that fills the memory on purpose (vLLM and JAX allocate theirs at the start) does not trigger "
        "the alert once the memory is full: only growth does. A cache that fills at a constant speed for more than an "
        "hour can trigger it; one that fills ever more slowly does not. A program that runs out of memory within its "
        "first hour, or a leak that fills the memory in less than 40 minutes, does not.",
    ),
    FailureMode(
        "GpuMemoryBrieflyFull",
        Domain.COST,
        Severity.INFO,
        # The next scrape shows the memory of a program that has just filled it, and goes on.
        2 * MINUTE,
        Action.NONE,
        "{gpu} almost ran out of memory for a moment: {{ $value | humanizePercentage }} was in use",
        "If the program ended with an out-of-memory error, this was the cause, although its memory looks low in graphs of "
        "memory in use: use a smaller batch or shorter sequences. If it is still running, it has this little to spare.",
        Inject(
            {
                **profiles.memory(60 * profiles.GIB),
                m.FB_USED_PEAK: (profiles.TOTAL - profiles.RESERVED - 512) * m.MIB,
            }
        ),
        And(
            Compare(_PEAK, ">=", PEAK_MEMORY),
            # Without peaks, the signal is what scrapes show.
            Compare(Over(s.FB_PEAK, Fn.MAX, PEAK_WINDOW), ">=", HELD_MEMORY),
            Compare(Calc(_PEAK, "-", Over(s.FB_USE, Fn.MAX, SCRAPED_WINDOW)), ">=", HIDDEN_PEAK),
        ),
        keep=10 * MINUTE,
        cause=Cause.CAPACITY,
        meaning="Within the last five minutes, the memory of this GPU was almost full for a moment that no scrape shows. "
        "gpu-exporter reads the memory at each collection, once a second, and exposes the highest value of the last minute "
        f"as `{m.FB_USED_PEAK}`.",
        impact="A program whose allocation fails ends, unless it handles the error. A program that still runs fails at the "
        "next input that needs a little more.",
        diagnosis=(
            f'Compare `{s.FB_PEAK.record}{{UUID="…"}}` with `{s.FB_USED.record}{{UUID="…"}}`: how high was the peak, and '
            "did the program end after it?",
            "Read the log of the program at that time: `CUDA out of memory`, `cudaErrorMemoryAllocation`, "
            "`RESOURCE_EXHAUSTED`.",
            "In PyTorch, `torch.cuda.max_memory_allocated()` after each step shows which step has the peak, and a snapshot "
            "of `torch.cuda.memory._record_memory_history()` which line.",
        ),
        mitigation=(
            "Lower the peak: a smaller batch, a limit on the length of sequences, activation checkpointing, a fused loss.",
            "For a peak at the start, such as the choice of convolution algorithms, limit the workspace "
            "(`torch.backends.cudnn.benchmark = False`).",
            "For fragmentation: set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.",
        ),
        wrong="A program that tries how much memory it can get, such as a search for the largest batch, causes such peaks "
        "on purpose. Peaks of less than a second may be missed. A program that always uses nearly all memory is not reported: "
        "its graphs show it.",
    ),
    FailureMode(
        "GpuAllocatedIdle",
        Domain.COST,
        Severity.WARNING,
        15 * MINUTE,
        Action.NONE,
        "{gpu} has been allocated but idle for two hours",
        "Ask the owner (labels namespace, pod, workload) to release the GPU. Typical causes are notebooks, finished "
        "jobs, forgotten servers, and programs that see fewer GPUs than were allocated. Set an idle timeout to prevent it.",
        Inject({**profiles.IDLE, **profiles.memory(20 * profiles.GIB)}),
        Unless(
            And(
                Compare(Over(s.GR_ACTIVE, Fn.MAX, IDLE_FOR, whole=True), "<", IDLE_ENGINE),
                # By the same pod or job all the time: a pod that has just got the GPU may still be starting.
                Or(
                    Compare(Over(s.FB_USED), ">=", HELD_MEMORY),
                    Compare(Over(s.ALLOCATED, Fn.MIN, IDLE_FOR, whole=True), ">=", 1.0),
                ),
            ),
            Or(
                Compare(Over(s.PCIE_RX_USE, Fn.MAX, IDLE_FOR), ">=", QUIET_PCIE),
                Compare(Over(s.PCIE_RX, Fn.MAX, IDLE_FOR), ">=", MOVING),
            ),
        ),
        # Longer than the hold: a gap in the metrics two hours ago makes the condition unknown for a moment.
        keep=30 * MINUTE,
        cause=Cause.HOST,
        explains={
            Place.GPU: (
                "GpuMemoryHoarded",
                "GpuHostBound",
            )
        },
        meaning="A pod or job has this GPU, or a program holds memory of it, but for two hours nothing ran on it and "
        "nothing was copied.",
        impact="The GPU costs its full price, and nobody else can use it. Electricity is by far the smaller part.",
        diagnosis=(
            "Run `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`, then `ps -o "
            "pid,user,lstart,args -p PID`, to see whose process it is and since when.",
            "The labels `namespace`, `pod` and `workload` of the alert name the owner if gpu-exporter knows it.",
            "Is it a notebook, a debugger, a finished job whose process remains, or a server without traffic? If no "
            "process uses the GPU, the program may never have used it: compare the GPUs that were requested with "
            "`CUDA_VISIBLE_DEVICES` and the number of ranks.",
            "Look at `workload:wasted_cost:usd_per_hour`, which is what it costs.",
        ),
        mitigation=(
            "Ask the owner to release the GPU; end the process where your rules allow it.",
            "For notebooks: an idle timeout (culling). For servers: scale to zero. For jobs: a time limit.",
            "For a GPU that was never used: request as many GPUs as the program uses.",
            "For debugging: a MIG instance instead of a whole GPU.",
        ),
        wrong="A warm standby, or a service with rare requests, is idle on purpose: silence the alert for it. A "
        "pod that starts for longer than two hours counts as idle. Where no exporter knows pods and jobs, a GPU counts "
        "as occupied only by its memory (`heldMemory`), so one that was never used is not seen. If several pods share a "
        "GPU, the alert fires if none of them uses it, and names none. With the default fields of dcgm-exporter, copies "
        "are not seen.",
    ),
    FailureMode(
        "GpuMemoryHoarded",
        Domain.COST,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "{gpu} has its memory nearly full but is hardly used",
        "Check whether the program only reserves memory: JAX and vLLM take most of it by default. Give it a "
        "memory limit, then share the GPU (MIG, MPS).",
        Inject({**profiles.IDLE, m.GR_ENGINE_ACTIVE: 0.05, m.GPU_UTIL: 5.0, **profiles.memory(130_000.0)}),
        And(
            Compare(Over(s.FB_USE, Fn.MIN, HOARDED_FOR, whole=True), ">=", HOARDED_MEMORY),
            Compare(Over(s.SM_ACTIVE, Fn.MAX, HOARDED_FOR, whole=True), "<", HOARDER_SM),
        ),
        cause=Cause.CAPACITY,
        explains={Place.GPU: ("GpuHostBound",)},
        meaning="The memory of this GPU was nearly full for an hour while its SMs hardly worked: the program probably "
        "reserves more memory than it needs.",
        impact="Other programs cannot share the GPU, although its SMs are free.",
        diagnosis=(
            "Run `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`: is it one program, or several?",
            f'Look at `{s.FB_USE.record}{{UUID="…"}}` and `{s.SM_ACTIVE.record}{{UUID="…"}}` over a day: does it '
            "ever work?",
            "Does the program reserve memory in advance? JAX takes 75 % by default, vLLM 90 %, TensorFlow all of it.",
        ),
        mitigation=(
            "Give the program a limit: `XLA_PYTHON_CLIENT_MEM_FRACTION`, `--gpu-memory-utilization`, "
            "`torch.cuda.set_per_process_memory_fraction`.",
            "Then share the GPU: MIG isolates programs from each other, MPS and time-slicing require that they "
            "trust each other.",
            "With little traffic, run fewer replicas.",
        ),
        wrong="A server of a large model needs its memory no matter how rarely it is used: that is the price of being "
        "ready.",
    ),
    FailureMode(
        "GpuAllocationFragmented",
        Domain.COST,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "Pods in namespace {{ $labels.namespace }} wait for {{ $value }} GPU{{ if ne $value 1.0 }}s{{ end }} ({{ $labels.resource }}): "
        "enough are free, but not on one node",
        "Move small pods together, so that one node has enough free GPUs, or let the job request fewer GPUs per pod.",
        Inject(series=FRAGMENTED),
        fleet="""sum by (cluster, namespace, resource) (
  pod:starved:count
  <= on (cluster, resource) group_left () max by (cluster, resource) (pool:free:count)
  and
  pod:starved:count
  > on (cluster, resource) group_left () max by (cluster, resource) (node:free:count)
  and
  pod:starved:count
  <= on (cluster, resource) group_left () max by (cluster, resource) (node:usable:count)
)""",
        scope=Scope.FLEET,
        requires="kube-state-metrics",
        cause=Cause.CAPACITY,
        meaning="Pods have waited for a node for half an hour. Enough GPUs are free in one pool of nodes, and some node "
        "could hold such a pod, but no node has enough free: small pods are spread over all of them.",
        impact="The job does not start, and the free GPUs cost money without any use: nobody who needs many GPUs at "
        "once can get them.",
        diagnosis=(
            "Query `node:free:count > 0` to see where the free GPUs are, and `pod:starved:count` to see which "
            "pods wait and for how many.",
            "Run `kubectl get pods -A -o wide --field-selector spec.nodeName=NODE` for the node with the most "
            "free GPUs: which pods would have to move?",
            "Run `kubectl describe pod -n NAMESPACE POD`. The events of the scheduler say what each node lacks. "
            "If it is CPU, memory, a taint or a selector, fragmentation is not the cause.",
        ),
        mitigation=(
            "Now: move or end the small pods of one node (`kubectl drain` for stateless ones, or cordon the node "
            "until a short job has ended).",
            "Later: let the scheduler fill nodes up, with `NodeResourcesFit` and `MostAllocated` for GPUs, or "
            "with a batch scheduler (Kueue with topology, Volcano, KAI).",
            "Keep pods with one GPU in a separate pool, or on MIG instances.",
        ),
        wrong="GPUs that pods have through resource claims (DRA) or in init containers are not in kube-state-metrics, "
        "so more seem free than are. A pod that a scheduling gate holds back counts as waiting. A pod that may "
        "use only some nodes (selector, affinity, taints) may wait for those although others are free. Without "
        "labels of pools, all nodes count as one pool.",
    ),
)
