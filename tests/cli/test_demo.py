import builtins
from pathlib import Path
from types import ModuleType

import pytest

from ropewalk.cli import main


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("demo") / "new" / "folder" / "demo.html"
    assert main(["demo", "--quick", "--output", str(path)]) == 0
    assert [file.name for file in path.parent.iterdir()] == ["demo.html"]  # no temporary file is left
    return path.read_text(encoding="utf-8")


def test_the_page_needs_no_network(page: str) -> None:
    own = page.partition("</script>")[2]  # what follows plotly itself
    assert "src=" not in own
    assert "href=" not in own
    assert "Plotly.newPlot" in own


def test_the_page_says_what_was_measured(page: str) -> None:
    for words in ("The laws hold", "The error does not grow", "x.mul_(1.0)", "float32", "bfloat16", "2,147,483,639"):
        assert words in page
    assert "✗" not in page


def test_a_path_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["demo", "--quick", "--output", str(tmp_path / "file" / "demo.html")]) == 2
    assert capsys.readouterr().err.startswith("ropewalk: ")


def test_without_the_report_extra_the_cure_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: object) -> ModuleType:
        if name.startswith("ropewalk.workbench"):
            raise ModuleNotFoundError("No module named 'plotly'", name="plotly")
        return real(name, *arguments)  # type: ignore[arg-type]  # handed on as it came

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == "ropewalk: `ropewalk demo` needs plotly: pip install 'ropewalk[report]'.\n"
