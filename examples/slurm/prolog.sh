#!/bin/sh
# Prolog of slurmd: checks the GPUs of a job before it starts, for about five seconds.
#
#     Prolog=/etc/slurm/gpu-prolog.sh
#     PrologFlags=Alloc
#     BatchStartTimeout=60
#
# If a GPU is unfit (exit code 3), the node is drained with the reason, and Slurm starts the job elsewhere. If the check
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

report=$(gpu-exporter check --active --gpus "$gpus" --state-dir "$STATE" --timeout 30s 2>&1)
code=$?
if [ "$code" -ne 3 ]; then
    [ "$code" -eq 0 ] || printf '%s\n' "$report" | logger -t gpu-prolog
    exit 0
fi
reason=$(printf '%s\n' "$report" | grep -E '^(GPU [0-9]+: (degraded|unhealthy)|missing): ?' | head -n 1 | cut -c 1-200)
printf '%s\n' "$report" | logger -t gpu-prolog
scontrol update NodeName="$SLURMD_NODENAME" State=DRAIN Reason="gpu-exporter: $reason"
exit 1
