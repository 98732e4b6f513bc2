"""`import ropewalk` costs little more than `import torch`, loads no optional part and opens no native library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ropewalk

OPTIONAL = {"matplotlib", "mkdocs", "onnx", "onnxruntime", "plotly", "rich", "transformers", "triton"}

PROBE = """
import json, sys, time, torch

before, opened = set(sys.modules), []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in ("open", "ctypes.dlopen") else None)
start = time.perf_counter()
import ropewalk
seconds = time.perf_counter() - start
modules = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
libraries = [name for name in opened if "libropewalk" in name]
ropewalk.kernels.info()
loaded = [name for name in opened if "libropewalk" in name]
print(json.dumps({"seconds": seconds, "modules": modules, "libraries": libraries, "loaded": loaded}))
"""


def probe() -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def runs() -> list[dict[str, object]]:
    """Three imports in three processes: the fastest tells what the import costs, the others what the machine does."""
    return [probe() for _ in range(3)]


def test_importing_loads_no_optional_part(runs: list[dict[str, object]]) -> None:
    modules = runs[0]["modules"]
    assert isinstance(modules, list)
    assert "ropewalk" in modules
    assert OPTIONAL.intersection(modules) == set()


def test_importing_opens_no_native_library_and_the_first_use_does(runs: list[dict[str, object]]) -> None:
    assert runs[0]["libraries"] == []
    (folder,) = ropewalk.kernels.__path__
    built = [str(path) for path in Path(folder, "native").glob("libropewalk.*")]
    assert runs[0]["loaded"] == built


def test_importing_takes_no_more_than_torch_and_a_tenth_of_a_second(runs: list[dict[str, object]]) -> None:
    assert min(float(str(run["seconds"])) for run in runs) <= 0.1
