"""Every Python block of the README and of the documentation runs as it stands, page by page."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

import ropewalk

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(
    r"(?P<excuse><!-- not run: (?P<reason>.*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\S*)(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    flags=re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    code: str
    language: str
    options: str
    reason: str | None
    """Why the block is not run, if it says so; `<!-- not run: ... -->` stands on the line before it."""


def blocks(text: str) -> list[Block]:
    return [
        Block(
            line=text.count("\n", 0, found.start("code")) + 1,
            code=textwrap.dedent(found["code"]),
            language=found["language"],
            options=found["options"].strip(),
            reason=found["reason"],
        )
        for found in FENCE.finditer(text)
    ]


def is_python(block: Block) -> bool:
    return block.language.lower().strip("{.}") in {"py", "py3", "pycon", "python", "python3"}


def run_page(path: Path) -> None:
    """All blocks of a page share one namespace; a traceback shows the line of the page."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(path.read_text(encoding="utf-8")):
        if is_python(block) and block.reason is None:
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, str(path), "exec"), namespace)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_examples_of_a_page_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_an_example_escapes_being_run_only_with_a_reason(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(re.findall(r"^\s*(?:```|~~~)", text, flags=re.MULTILINE)) == 2 * len(blocks(text))
    for block in filter(is_python, blocks(text)):
        assert (block.language, block.options) == ("python", ""), f"line {block.line}: write ```python and nothing else"
        assert block.reason is None or len(block.reason.split()) > 2, f"line {block.line}: say why it is not run"


@pytest.mark.parametrize("fence", ["```python\n{}\n```\n", "1. A step:\n\n    ```python\n    {}\n    ```\n"])
def test_a_broken_example_is_found(fence: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```sh\nfalse\n```\n\n```python\nx = 1\n```\n\n" + fence.format("assert x == 2"))
    with pytest.raises(AssertionError) as caught:
        run_page(page)
    line = page.read_text().splitlines()[caught.traceback[-1].lineno]
    assert line.strip() == "assert x == 2"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for page in PAGES[1:] if (name := str(page.relative_to(ROOT / "docs"))) not in navigation] == []


def test_the_reference_page_lists_every_public_name_once() -> None:
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(?:ropewalk\.)?(\w+)", reference, flags=re.MULTILINE)
    assert sorted(listed) == sorted(ropewalk.__all__)
