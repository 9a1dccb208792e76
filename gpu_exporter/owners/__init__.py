"""The owners of GPUs, from kubelet, the API server, Slurm and cgroups: each is queried on a thread of its own.

The only package that imports `grpc` and `google.protobuf`, and these only when `--kubernetes` is on.
"""
