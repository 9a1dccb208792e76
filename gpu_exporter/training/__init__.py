"""Measures a training loop from inside: step times, waiting, throughput; for the exporter of this node.

Training jobs import this, so it needs only the standard library, and loads nothing else of this package but
`gpu_exporter.model.job_message`. PyTorch is used where the job has imported it.
"""

from gpu_exporter.training.timer import StepTimer

__all__ = ["StepTimer"]
