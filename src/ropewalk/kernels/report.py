"""What this installation can do on this machine: which kernels are there, and which is used for what."""

import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from ropewalk.kernels import native, triton_rotate

__all__ = ["KernelReport", "info"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelReport:
    """One look at the machine; plain values, ready for JSON."""

    versions: dict[str, str]
    """Of ropewalk, python, torch, numpy, triton."""

    processor: str
    """As it names itself."""

    processor_features: tuple[str, ...]
    """Those that decide speed: avx2, fma, f16c, avx512..., amx..., neon."""

    accelerators: tuple[str, ...]
    """The GPUs that torch sees."""

    native_levels: tuple[str, ...]
    """Instruction sets the C kernel has here; empty where it is absent."""

    native_level: str
    """The one in use, or `off` or `absent`."""

    threads: int
    """Threads torch computes with."""

    thread_source: str
    """OpenMP runtime the C kernel borrows its threads from; empty: it runs on one."""

    used_for: dict[str, str]
    """Kind of work -> what does it."""

    advice: tuple[str, ...]
    """What would make it faster, if anything."""


def info() -> KernelReport:
    """Look at the machine and the installation. Loads the kernels, runs nothing."""
    level = native.level()
    absent = not native.library_path().exists()
    return KernelReport(
        versions=_versions(),
        processor=_processor(),
        processor_features=_features(),
        accelerators=tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())),
        native_levels=tuple(level.name.lower() for level in native.levels()),
        native_level=level.name.lower() if level is not None else "absent" if absent else "off",
        threads=torch.get_num_threads(),
        thread_source=native.thread_source() or "",
        used_for=_used_for(level),
        advice=tuple(_advice(level, absent)),
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("ropewalk", "torch", "numpy", "triton"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _cpuinfo(*keys: str) -> str:
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return ""


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _features() -> tuple[str, ...]:
    wanted = ("avx2", "fma", "f16c", "avx512", "amx", "asimd", "sve")
    return tuple(flag for flag in _cpuinfo("flags", "Features").split() if flag.startswith(wanted))


def _used_for(level: native.Level | None) -> dict[str, str]:
    plain = "plain torch operations"
    on_cpu = plain if level is None else f"C kernel, {level.name.lower()}"
    on_gpu = "Triton kernel, which makes the phases itself" if triton_rotate.available() else plain
    return {
        "rotation on the CPU": on_cpu,
        "tables on the CPU": on_cpu,
        "rotation on a GPU": on_gpu if torch.cuda.is_available() else f"{on_gpu} (no GPU is here)",
        "rotation under torch.compile and torch.export": f"{plain}, fused by the compiler",
        "transforms (vmap, jvp), tensor subclasses": plain,
    }


def _advice(level: native.Level | None, absent: bool) -> list[str]:
    advice = []
    if absent:
        advice.append(
            "Install a C compiler (gcc or clang) and reinstall ropewalk: rotations on the CPU get 5-20x faster."
        )
    elif level is None:
        advice.append(f"The C kernel is switched off by the environment variable {native.LEVEL_VARIABLE}.")
    elif native.thread_source() is None:
        advice.append("No OpenMP runtime of torch was found: the C kernel runs on one thread.")
    if torch.cuda.is_available() and not triton_rotate.available():
        advice.append("Install triton: rotations on the GPU run in plain torch operations.")
    return advice
