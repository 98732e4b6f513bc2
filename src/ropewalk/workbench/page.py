"""One self-contained HTML page: headings, tables and plotly figures, without network, in light and dark."""

import html
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

__all__ = ["Page", "figure"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --faint: #5b6675; --line: #d5dae1; --paper: #fbfbf9; --good: #0a7d43;
        --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --faint: #9aa5b4; --line: #39424f; --paper: #14181e;
        --good: #5fd39a; --bad: #ff8a80; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       padding: 2rem 1rem 4rem; max-width: 60rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; } .faint { color: var(--faint); font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: .7rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .28rem 1.2rem .28rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--faint); font-size: .85rem; } td.number, th.number { text-align: right; }
.good { color: var(--good); } .bad { color: var(--bad); } .plot { margin: .6rem 0; }
"""

_THEME = """
const dark = matchMedia('(prefers-color-scheme: dark)');
function paint() {
  const ink = dark.matches ? '#c9d1db' : '#384252', line = dark.matches ? '#39424f' : '#dfe3e8';
  for (const plot of document.querySelectorAll('.js-plotly-plot')) Plotly.relayout(plot, {
    'font.color': ink, 'xaxis.gridcolor': line, 'yaxis.gridcolor': line,
    'xaxis.linecolor': line, 'yaxis.linecolor': line });
}
dark.addEventListener('change', paint); paint();
"""


def figure(x_title: str, y_title: str, *, log_x: bool = False, log_y: bool = False, height: int = 400) -> go.Figure:
    """An empty figure in the style of the house; colours of the frame follow the reader's theme."""
    empty = go.Figure()
    axis = {"showline": True, "zeroline": False, "ticks": "outside"}
    empty.update_layout(
        height=height,
        margin={"l": 70, "r": 20, "t": 20, "b": 60},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": -0.22, "x": 0},
        xaxis={**axis, "title": {"text": x_title}, "type": "log" if log_x else "linear", "exponentformat": "power"},
        yaxis={**axis, "title": {"text": y_title}, "type": "log" if log_y else "linear", "exponentformat": "power"},
    )
    return empty


class Page:
    """Collects parts in reading order and writes them as one file."""

    def __init__(self, title: str, lead: str) -> None:
        self._title = title
        self._parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(lead)}</p>"]

    def heading(self, text: str, *sentences: str) -> None:
        """A section, and what it shows."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")
        self._parts += [f"<p>{html.escape(sentence)}</p>" for sentence in sentences]

    def note(self, text: str) -> None:
        """Small print."""
        self._parts.append(f'<p class="faint">{html.escape(text)}</p>')

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: frozenset[int]) -> None:
        """A table; the columns in `numbers` are aligned to the right. A cell that opens with ✓ or ✗ is coloured."""
        head = "".join(f"<th{_class(i in numbers, '')}>{html.escape(name)}</th>" for i, name in enumerate(columns))
        body = "".join(
            "<tr>" + "".join(f"<td{_class(i in numbers, c)}>{html.escape(c)}</td>" for i, c in enumerate(row)) + "</tr>"
            for row in rows
        )
        self._parts.append(f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>')

    def plot(self, drawn: go.Figure) -> None:
        """An interactive figure."""
        config = {"displayModeBar": False, "responsive": True}
        inner = drawn.to_html(full_html=False, include_plotlyjs=False, config=config)
        self._parts.append(f'<div class="plot">{inner}</div>')

    def write(self, path: Path) -> Path:
        """Write the page under a temporary name, then put it in place."""
        text = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self._title)}</title><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>"
            f"<body>{''.join(self._parts)}<script>{_THEME}</script></body></html>"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False, suffix=".part") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).chmod(0o644)
        return Path(file.name).replace(path)


def _class(number: bool, cell: str) -> str:
    names = ["number"] * number + ["good"] * cell.startswith("✓") + ["bad"] * cell.startswith("✗")
    return f' class="{" ".join(names)}"' if names else ""
