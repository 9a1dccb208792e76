"""What the host does for the processes that use a GPU, read from procfs, cgroups and sysfs."""
