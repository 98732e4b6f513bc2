"""Kernels: bare tensors in, bare tensors out. Each is tested against `ropewalk.rotation.definition`."""

from ropewalk.kernels.report import KernelReport, info

__all__ = ["KernelReport", "info"]
