"""The bodies that a rotation on the CPU can have; a test that asks for `body` runs once with each."""

import pytest

from ropewalk.kernels import native


@pytest.fixture(params=["C kernel", "plain"])
def body(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "plain":
        monkeypatch.setattr(native, "available", lambda: False)
    elif not native.available():
        pytest.skip("the C kernel is not there: it was not built, or ROPEWALK_CPU switches it off")
    return name
