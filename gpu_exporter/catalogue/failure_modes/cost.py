"""Who wastes? GPUs that are paid for and not used."""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import IDLE_ENGINE, MOVING, QUIET_PCIE
from gpu_exporter.catalogue.conditions import And, Compare, Fn, Limit, Or, Over, Unless
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Inject, Ramp, Scope, Severity
from gpu_exporter.model.verdict import Action

MINUTE, HOUR = 60.0, 3600.0

# fmt: off
HELD_MEMORY    = Limit("heldMemory", 1e9, "bytes", "device memory that a program holds, more than a context needs")
HOARDED_MEMORY = Limit("hoardedMemory", 0.8, "ratio", "share of the memory that is taken")
HOARDER_SM     = Limit("hoarderSm", 0.1, "ratio", "SM activity that such a program never reaches")
FULL_MEMORY    = Limit("fullMemory", 0.85, "ratio", "share of the memory in use at which growth is dangerous")
# fmt: on

PRICES = (
    Limit("usdPerKwh", 0.12, "USD", "price of a kilowatt-hour"),
    Limit("usdPerGpuHour", 2.50, "USD", "price of a GPU for an hour, electricity included"),
)

IDLE_FOR, HOARDED_FOR = 2 * HOUR, HOUR
# Programs take memory at once or load for minutes: what is still growing after a longer hold than window is no start.
GROWS_FOR, GROWTH_HOLD = 15 * MINUTE, 20 * MINUTE

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
        "The memory of {gpu} will be full within the hour",
        "Find the leak or the growing cache before it ends the job: compare allocated and reserved memory over steps.",
        Inject(
            {
                m.FB_USED: Ramp(110 * profiles.GIB, 10.0),
                m.FB_FREE: Ramp(143771.0 - 110 * profiles.GIB - 615, -10.0),
            }
        ),
        And(
            Compare(Over(s.FB_FREE, Fn.PREDICT, GROWS_FOR, ahead=HOUR, whole=True), "<", 0.0),
            Compare(Over(s.FB_USE), ">=", FULL_MEMORY),
        ),
        meaning="Free memory of this GPU shrinks along a straight line that ends within the hour, and most of it is "
        "used already.",
        impact="The program will end with an out-of-memory error; so may others that share the GPU.",
        diagnosis=(
            f'`{s.FB_USED.record}{{UUID="…"}}` over a few hours: steady growth is a leak, or a cache without '
            "a bound; steps are longer sequences or larger batches.",
            "In the program: `torch.cuda.memory_allocated()` against `torch.cuda.memory_reserved()` over "
            "steps: allocated grows: something keeps tensors (a list of losses, graphs that are not "
            "detached). Only reserved grows: fragmentation.",
            "`nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`: or is it somebody else's process?",
            "`torch.cuda.memory._record_memory_history()` and a snapshot say which line allocated it.",
        ),
        mitigation=(
            "Save a checkpoint now.",
            "Leak: `loss.item()` or `.detach()` instead of keeping the loss; free what is kept over steps.",
            "Fragmentation: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. Cache of a server: give it a limit.",
        ),
        wrong="A program that fills memory on purpose (vLLM and JAX take theirs at the start) is silent once it "
        "is full: only growth into the wall counts. A server that warms up its caches grows, and then "
        "stops.",
    ),
    FailureMode(
        "GpuAllocatedIdle",
        Domain.COST,
        Severity.WARNING,
        15 * MINUTE,
        Action.NONE,
        "{gpu} is held and did nothing for two hours",
        "Ask its owner to give it back: notebooks, finished jobs and forgotten servers; set an idle timeout.",
        Inject({**profiles.IDLE, m.FB_USED: 20 * profiles.GIB}),
        Unless(
            And(
                Compare(Over(s.GR_ACTIVE, Fn.MAX, IDLE_FOR, whole=True), "<", IDLE_ENGINE),
                Compare(Over(s.FB_USED), ">=", HELD_MEMORY),
            ),
            Or(
                Compare(Over(s.PCIE_RX_USE, Fn.MAX, IDLE_FOR), ">=", QUIET_PCIE),
                Compare(Over(s.PCIE_RX, Fn.MAX, IDLE_FOR), ">=", MOVING),
            ),
        ),
        implies=("GpuMemoryHoarded",),
        meaning="Some program holds memory of this GPU, and its engine did nothing for two hours: not once, and "
        "nothing was copied.",
        impact="The GPU costs its whole price, and nobody else can have it. Electricity is the smaller part by far.",
        diagnosis=(
            "`nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`, then `ps -o "
            "pid,user,lstart,args -p PID`: whose, and since when?",
            "The alert's labels `namespace`, `pod` and `workload`, where they are known.",
            "Is it a notebook, a debugger, a finished job whose process stays, a server without traffic?",
            "`workload:wasted_cost:usd_per_hour` is what it costs.",
        ),
        mitigation=(
            "Ask the owner to give it back; end it where your rules say so.",
            "Notebooks: an idle timeout (culling). Servers: scale to zero. Jobs: a time limit.",
            "Debugging: a MIG instance instead of a whole GPU.",
        ),
        wrong="A warm standby, or a service for rare requests, is idle on purpose: say so with a silence. A "
        "context without memory to speak of (under `heldMemory`) does not count as holding. With "
        "dcgm-exporter's own list of fields, copies are not seen.",
    ),
    FailureMode(
        "GpuMemoryHoarded",
        Domain.COST,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "{gpu} is full of memory that is hardly used",
        "Share it (MIG, MPS) or give the program a memory limit; JAX and vLLM take all they can get by default.",
        Inject({**profiles.IDLE, m.GR_ENGINE_ACTIVE: 0.05, m.GPU_UTIL: 5.0, m.FB_USED: 130_000.0, m.FB_FREE: 13_156.0}),
        And(
            Compare(Over(s.FB_USE, Fn.MIN, HOARDED_FOR, whole=True), ">=", HOARDED_MEMORY),
            Compare(Over(s.SM_ACTIVE, Fn.MAX, HOARDED_FOR, whole=True), "<", HOARDER_SM),
        ),
        implies=("GpuHostBound", "GpuAllocatedIdle"),
        meaning="Memory of this GPU was nearly full for an hour, and its SMs hardly worked: the program takes all "
        "it can get.",
        impact="Others can't share the GPU, though its arithmetic is free.",
        diagnosis=(
            "`nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`: one program, or several?",
            f'`{s.FB_USE.record}{{UUID="…"}}` and `{s.SM_ACTIVE.record}{{UUID="…"}}` over a day: does it ever work?',
            "Does the program take memory in advance? JAX takes 75 %, vLLM 90 % by default, TensorFlow all.",
        ),
        mitigation=(
            "Give it a limit: `XLA_PYTHON_CLIENT_MEM_FRACTION`, `--gpu-memory-utilization`, "
            "`torch.cuda.set_per_process_memory_fraction`.",
            "Then share the GPU: MIG for hard walls, MPS or time-slicing for trust.",
            "Low traffic: fewer replicas.",
        ),
        wrong="A server of a large model needs its memory however rarely it is asked: there it is the price of "
        "being ready.",
    ),
    FailureMode(
        "GpuAllocationFragmented",
        Domain.COST,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "Pods of {{ $labels.namespace }} wait for {{ $value }} GPUs ({{ $labels.resource }}) that are free, but not on one node",
        "Move small pods together, so that a node becomes free, or let the job ask for fewer GPUs a pod.",
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
        meaning="Pods have waited for a node for half an hour. Enough GPUs are free in one pool of nodes, and some node "
        "could hold such a pod, but no node has enough free: small pods are spread over all of them.",
        impact="The job does not start, and the free GPUs are paid for nothing: nobody who needs many at once gets them.",
        diagnosis=(
            "`node:free:count > 0` says where the free ones are; `pod:starved:count` who waits, and for how many.",
            "`kubectl get pods -A -o wide --field-selector spec.nodeName=NODE` on the node with the most free: which pods would have to move?",
            "`kubectl describe pod -n NAMESPACE POD`: the events of the scheduler say what each node lacks. CPU, memory, "
            "taints or a selector? Then it is not this.",
        ),
        mitigation=(
            "Now: move or end small pods of one node (`kubectl drain` for stateless ones, or wait for a short job and "
            "cordon the node until it is free).",
            "Then: let the scheduler fill nodes up: `NodeResourcesFit` with `MostAllocated` for GPUs, or a scheduler for "
            "batch (Kueue with topology, Volcano, KAI).",
            "Keep pods of one GPU in a pool of their own, or on MIG instances.",
        ),
        wrong="GPUs that pods have by resource claims (DRA) or in init containers are not in kube-state-metrics: more seem "
        "free than are. A pod that a scheduling gate holds back counts as waiting. A pod that may use some nodes only "
        "(selector, affinity, taints) may wait for those although others are free; without labels of pools all nodes "
        "count as one.",
    ),
)
