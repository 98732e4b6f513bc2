"""The suite is trusted because it fails when the code is broken: each break of `breaks.py` is caught by some test."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutation.breaks import BREAKS, NINE, Break
from mutation.run import FAILED, PASSED, ROOT, Workshop, apply


def test_the_list_holds_the_nine_mistakes_in_every_body() -> None:
    bodies = {mistake: {b.body for b in BREAKS if b.mistake == mistake} for mistake in NINE}
    assert all(found >= {"plain", "C"} or "both" in found for found in bodies.values()), bodies
    names = [b.name for b in BREAKS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("broken", BREAKS, ids=lambda b: b.name)
def test_the_text_to_be_broken_is_still_in_the_source(broken: Break, tmp_path: Path) -> None:
    for edit in broken.edits:
        (tmp_path / edit.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / edit.file, tmp_path / edit.file)
    before = apply(broken, tmp_path)
    assert all(path.read_text(encoding="utf-8") != text for path, text in before.items())


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    made = Workshop(tmp_path_factory.mktemp("mutation").resolve())
    code, failed = made.run(quick=True)
    assert code == PASSED, failed
    yield made
    shutil.rmtree(made.root)


@pytest.mark.slow
@pytest.mark.parametrize("broken", BREAKS, ids=lambda b: b.name)
def test_a_break_is_caught(broken: Break, workshop: Workshop) -> None:
    if broken.body == "C" and not workshop.can_build:
        pytest.skip(workshop.why_not)
    with workshop.broken(broken):
        code, failed = workshop.run(quick=True)
    assert code == FAILED
    assert len(failed) == 1
