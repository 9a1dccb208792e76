"""The network cards (NICs) for RDMA of the machine: InfiniBand, RoCE and EFA, as sysfs shows them."""
