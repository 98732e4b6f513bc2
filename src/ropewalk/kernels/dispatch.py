"""Which body turns a tensor: the C kernel, the Triton kernel, or none (then plain torch operations do)."""

import functools
import warnings
from types import ModuleType

from torch import Tensor

from ropewalk.kernels import native, triton_rotate

__all__ = ["choose"]


def choose(x: Tensor) -> ModuleType | None:
    """The kernel for tensors where `x` is: a module with `rotate` and `rotate_at`, if there is one."""
    if x.is_cpu:
        if native.available():
            return native
        if not native.library_path().exists():
            _say_that_it_is_slow()
    elif x.is_cuda and triton_rotate.available():
        return triton_rotate
    return None


@functools.cache
def _say_that_it_is_slow() -> None:
    """Once in a process."""
    warnings.warn(
        "Ropewalk was installed without its C kernel: rotations on the CPU run in plain torch operations, 5 to 20 "
        "times slower. Install a C compiler and reinstall; `ropewalk doctor` says what is there.",
        RuntimeWarning,
        stacklevel=2,
    )
