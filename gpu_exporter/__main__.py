"""`python -m gpu_exporter` is the command `gpu-exporter`."""

from gpu_exporter.cli.main import main

main()
