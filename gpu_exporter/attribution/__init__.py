"""Who has the GPUs, as kubelet, the API server, Slurm and cgroups tell it: each asked on a thread of its own.

The only package that imports `grpc` and `google.protobuf`, and these only when `--kubernetes` is on.
"""
