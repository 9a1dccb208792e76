"""The owners of GPUs, from kubelet, the API server, Slurm and cgroups: each is queried on a thread of its own.

The only package that imports `grpc`, and only when `--kubernetes` is on.
"""
