"""What `info` says of the machine is what is there, and every word of it fits into JSON."""

import dataclasses
import json
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ropewalk.kernels import KernelReport, info, native, triton_rotate

PLAIN = "plain torch operations"
ABSENT = "Install a C compiler (gcc or clang) and reinstall ropewalk: rotations on the CPU get 5-20x faster."
OFF = "The C kernel is switched off by the environment variable ROPEWALK_CPU."
ONE_THREAD = "No OpenMP runtime of torch was found: the C kernel runs on one thread."
NO_TRITON = "Install triton: rotations on the GPU run in plain torch operations."

needs_the_kernel = pytest.mark.skipif(not native.levels(), reason="the C kernel has not been built")


@pytest.fixture
def forgetful() -> Iterator[Callable[[], None]]:
    """Makes the package look for its library again, in the test and after it."""

    def forget() -> None:
        native._library.cache_clear()
        native.level.cache_clear()

    yield forget
    forget()


def test_a_report_is_plain_values_that_json_keeps() -> None:
    report = dataclasses.asdict(info())
    kept = json.loads(json.dumps(report))
    assert kept == {name: list(value) if isinstance(value, tuple) else value for name, value in report.items()}
    assert set(kept) == {field.name for field in dataclasses.fields(KernelReport)}


def test_two_looks_see_the_same_and_neither_can_be_changed() -> None:
    report = info()
    assert report == info()
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.threads = 1  # type: ignore[misc]


def test_versions_are_those_that_run() -> None:
    versions = info().versions
    assert list(versions) == ["python", "ropewalk", "torch", "numpy", "triton"]
    assert versions["python"] == platform.python_version()
    assert versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert versions["numpy"] == np.__version__


def test_a_missing_part_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def version(name: str) -> str:
        if name == "triton":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr("importlib.metadata.version", version)
    assert info().versions["triton"] == "not installed"
    assert info().versions["torch"] == "1.2.3"


def test_threads_are_those_of_torch() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert info().threads == threads
    finally:
        torch.set_num_threads(before)


def test_the_accelerators_are_those_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(info().accelerators) == torch.cuda.device_count()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", "GPU {}".format)
    assert info().accelerators == ("GPU 0", "GPU 1")


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux says what its processor can do")
def test_the_processor_is_named_with_the_features_that_decide_speed() -> None:
    report, cpuinfo = info(), Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert report.processor
    assert all(feature in cpuinfo.split() for feature in report.processor_features)
    assert ("avx2" in report.processor_features) == (" avx2 " in cpuinfo)
    assert "sse2" not in report.processor_features


@needs_the_kernel
def test_the_level_in_use_is_named_wherever_it_works() -> None:
    report, level = info(), native.level()
    assert report.native_levels == tuple(level.name.lower() for level in native.levels())
    assert report.thread_source == (native.thread_source() or "")
    if level is None:
        pytest.skip("switched off by the environment variable; the test below looks at that")
    assert report.native_level == level.name.lower()
    assert report.used_for["rotation on the CPU"] == f"C kernel, {level.name.lower()}"
    assert report.used_for["tables on the CPU"] == f"C kernel, {level.name.lower()}"
    assert not {ABSENT, OFF}.intersection(report.advice)


@needs_the_kernel
@pytest.mark.parametrize("value", ["baseline", "off"])
def test_the_variable_is_told(monkeypatch: pytest.MonkeyPatch, forgetful: Callable[[], None], value: str) -> None:
    monkeypatch.setenv("ROPEWALK_CPU", value)
    forgetful()
    report = info()
    assert report.native_level == value
    assert report.native_levels[0] == "baseline"
    assert report.used_for["rotation on the CPU"] == (PLAIN if value == "off" else "C kernel, baseline")
    assert (OFF in report.advice) == (value == "off")
    assert ABSENT not in report.advice


def test_an_absent_kernel_is_told_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, forgetful: Callable[[], None], tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "library_path", lambda: tmp_path / "libropewalk.so")
    forgetful()
    report = info()
    assert (report.native_level, report.native_levels, report.thread_source) == ("absent", (), "")
    assert report.used_for["rotation on the CPU"] == report.used_for["tables on the CPU"] == PLAIN
    assert ABSENT in report.advice
    assert not {OFF, ONE_THREAD}.intersection(report.advice)


@needs_the_kernel
def test_a_kernel_without_threads_is_told(monkeypatch: pytest.MonkeyPatch, forgetful: Callable[[], None]) -> None:
    monkeypatch.delenv("ROPEWALK_CPU", raising=False)
    monkeypatch.setattr(native, "_openmp_of_torch", lambda: None)
    forgetful()
    report = info()
    assert report.thread_source == ""
    assert ONE_THREAD in report.advice


@pytest.mark.parametrize("there", [False, True])
def test_a_gpu_runs_triton_where_it_is_there(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(triton_rotate, "available", lambda: there)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    report = info()
    work = "Triton kernel, which makes the phases itself" if there else PLAIN
    assert report.used_for["rotation on a GPU"] == work
    assert (NO_TRITON in report.advice) == (not there)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = info()
    assert report.used_for["rotation on a GPU"] == f"{work} (no GPU is here)"
    assert NO_TRITON not in report.advice


def test_compilers_and_transforms_run_torch_operations() -> None:
    used_for = info().used_for
    assert used_for["rotation under torch.compile and torch.export"] == f"{PLAIN}, fused by the compiler"
    assert used_for["transforms (vmap, jvp), tensor subclasses"] == PLAIN
