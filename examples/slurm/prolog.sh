#!/bin/sh
# Prolog of slurmd: checks the GPUs of a job before it starts, for about five seconds.
#
#     Prolog=/etc/slurm/gpu-prolog.sh
#     PrologFlags=Alloc
#     BatchStartTimeout=60
#
# If a GPU is unfit (exit code 3), the node is drained with the reason, and Slurm starts the job elsewhere. If another
# program uses a GPU of the job (exit code 4), it is left over from an earlier job: this script ends it and checks again.
# It spares processes of root and of jobs that are still on this node, and never drains the node for them. If the check
# cannot tell (exit code 1), as when the driver is being replaced, the job starts: a check must not stop a cluster.
set -u
PATH="${GPU_EXPORTER_PATH:-/opt/gpu-exporter/bin}:/usr/local/bin:/usr/bin:/bin:$PATH"
STATE="${GPU_EXPORTER_STATE_DIR:-/var/lib/gpu-exporter}"

[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

# Since Slurm 25.11, CUDA_VISIBLE_DEVICES has UUIDs. SLURM_JOB_GPUS has the numbers of device files, which may differ from
# the indices of nvidia-smi. MIG instances are not checked.
case "${CUDA_VISIBLE_DEVICES:-}" in
    GPU-*) gpus=$CUDA_VISIBLE_DEVICES ;;
    MIG-*) exit 0 ;;
    *) gpus=nvidia$(printf '%s' "$SLURM_JOB_GPUS" | sed 's/,/,nvidia/g') ;;
esac
unset CUDA_VISIBLE_DEVICES # the check chooses the GPUs itself

check() {
    report=$(gpu-exporter check --active --gpus "$gpus" --state-dir "$STATE" --timeout 30s 2>&1)
    code=$?
    [ "$code" -eq 0 ] || printf '%s\n' "$report" | logger -t gpu-prolog
}

# Print the PIDs in the report that may be ended.
leftovers() {
    jobs=$(squeue -h -w "$SLURMD_NODENAME" -o %A) || return
    printf '%s\n' "$report" | sed -n 's/^GPU [0-9]*: in use by process \([0-9]*\) (.*/\1/p' | sort -u |
        while read -r pid; do
            uid=$(sed -n 's/^Uid:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/$pid/status") || continue
            job=$(sed -n 's/.*\/job_\([0-9]*\).*/\1/p' "/proc/$pid/cgroup" | head -n 1)
            [ "${uid:-0}" -eq 0 ] && continue
            [ -n "$job" ] && printf '%s\n' "$jobs" | grep -qx "$job" && continue
            echo "$pid"
        done
}

check
if [ "$code" -eq 4 ]; then
    pids=$(leftovers)
    for signal in TERM KILL; do
        for pid in $pids; do kill -s "$signal" "$pid" 2>/dev/null; done
        for _ in 1 2 3 4 5; do
            running=$(for pid in $pids; do kill -0 "$pid" 2>/dev/null && echo "$pid"; done)
            [ -z "$running" ] && break 2
            sleep 1
        done
    done
    [ -z "$pids" ] || check
fi
[ "$code" -eq 3 ] || exit 0
reason=$(printf '%s\n' "$report" | grep -E '^(GPU [0-9]+: (degraded|unhealthy)|missing): ?' | head -n 1 | cut -c 1-200)
scontrol update NodeName="$SLURMD_NODENAME" State=DRAIN Reason="gpu-exporter: $reason"
exit 1
