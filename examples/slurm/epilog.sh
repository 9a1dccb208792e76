#!/bin/sh
# Epilog of slurmd: checks the GPUs of a job after it has ended, so that the next job does not have to find out.
#
#     Epilog=/etc/slurm/gpu-epilog.sh
#
# A GPU on which a process of the job still runs is not tested. Slurm drains the node if an epilog fails, so this one
# drains it itself, with the reason, and ends well.
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
if [ $? -eq 3 ]; then
    reason=$(printf '%s\n' "$report" | grep -E '^(GPU [0-9]+: (degraded|unhealthy)|missing): ?' | head -n 1 | cut -c 1-200)
    printf '%s\n' "$report" | logger -t gpu-epilog
    scontrol update NodeName="$SLURMD_NODENAME" State=DRAIN Reason="gpu-exporter: $reason"
fi
exit 0
