import pytest
from torch import Tensor

from ropewalk.rotation import Table, rotate
from ropewalk.workbench import laws


def test_every_law_comes_out_as_it_should() -> None:
    found = laws.check_laws(seed=3)
    assert [law.statement for law in found if not law.passed] == []
    assert sum(not law.must_hold for law in found) == 1


def test_a_wrong_rotation_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(x: Tensor, table: Table, *, inverse: bool = False) -> Tensor:
        return rotate(x, table, inverse=not inverse)

    monkeypatch.setattr(laws, "rotate", backwards)
    failed = [law.statement for law in laws.check_laws() if not law.passed]
    assert failed == ["⟨R_m q, R_n k⟩ = Re Σ h_j e^(i(m−n)θ_j)"]  # all others are blind to the direction
