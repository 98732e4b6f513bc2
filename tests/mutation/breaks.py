"""The deliberate breaks, as data: what is wrong, in which body, and the text of the source that makes it so.

Nine mistakes that rotations really have had, each in every body it can be in, and behind them some more. `run.py`
applies each to a copy of the sources and expects the suite to fail. A text that is not found any more is an error: the
source has moved on, and the break has to follow it.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["BREAKS", "NINE", "Break", "Edit"]

SOURCES: Final = "src/ropewalk/"
PLAIN: Final = SOURCES + "rotation/plain.py"
OPERATOR: Final = SOURCES + "rotation/operator.py"
PHASE: Final = SOURCES + "phase.py"
TABLE: Final = SOURCES + "rotation/table.py"
ROTARY: Final = SOURCES + "encodings/rotary.py"
SPECTRUM: Final = SOURCES + "frequencies/spectrum.py"
C_ROWS: Final = SOURCES + "kernels/native/turn.inc"
C_CALLS: Final = SOURCES + "kernels/native/rotate.c"


@dataclass(frozen=True, slots=True)
class Edit:
    """One text of one file, to be found exactly once, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Break:
    """One mistake in one body: `plain` torch operations, the `C` kernel, or what `both` share."""

    mistake: str
    body: str
    edits: tuple[Edit, ...]

    @property
    def name(self) -> str:
        """As in the table: mistake (body)."""
        return f"{self.mistake} ({self.body})"


NINE: Final = (
    "turn by minus theta",
    "a sign slip",
    "pairings swapped",
    "exponent over D - 1",
    "wrong output layout",
    "angles in the type of x",
    "offset ignored",
    "nothing is turned",
    "halves treated as adjacent",
)
"""The mistakes that issue after issue of other libraries tells of."""

_C_FIRST = "#define FIRST_OF(L, a, b, c, s) minus_times_##L(b, s, times_##L(a, c))"
_C_SECOND = "#define SECOND_OF(L, a, b, c, s) times_plus_##L(a, s, times_##L(b, c))"
_C_PUT_FIRST = "put_##T(y + (A), a * c - b * s);"
_C_PUT_SECOND = "put_##T(y + (B), a * s + b * c);"
_C_JOIN = "join_##T##_##L(y + 2 * i, FIRST_OF(L, a, b, c, s), SECOND_OF(L, a, b, c, s), stream);"
_C_JOIN_SWAPPED = "join_##T##_##L(y + 2 * i, SECOND_OF(L, a, b, c, s), FIRST_OF(L, a, b, c, s), stream);"
_C_BODY = "turn[rotation->dtype][rotation->pairing]"
_C_TURN = "uint32_t turn = size * w0[j] + (uint32_t)(low >> 32) + (uint32_t)(low >> 31 & 1);"
_C_FLOAT32_TURN = (
    "double turns = (double)((float)size * (float)(w0[j] * (TAU * 0x1p-32))) / TAU; "
    "uint32_t turn = (uint32_t)(uint64_t)((turns - (double)(uint64_t)turns) * 0x1p32); (void)low;"
)
_C_POSITION = "p->narrow ? ((const int32_t *)p->positions)[row] : ((const int64_t *)p->positions)[row];"
_PLAIN_TURN = "a * cos - b * sin, a * sin + b * cos"
_PLAIN_PAIRING = "    adjacent = table.pairing is Pairing.ADJACENT\n    return turned("
_KERNEL_PAIRING = "adjacent, first, source = table.pairing is Pairing.ADJACENT, table.first, table.source"
_FLOAT32_OR_64 = "table.cos_sin(torch.float64 if {} == torch.float64 else torch.float32)"
_TURNS = "_turns(whole, words)\n    signed"
_BACKWARD = "_transposed(gradient, table, not inverse, factor)"
_CONSECUTIVE = "positions = torch.arange(positions, positions + q.shape[-2], device=q.device)"


def _one(mistake: str, body: str, file: str, old: str, new: str) -> Break:
    return Break(mistake, body, (Edit(file, old, new),))


BREAKS: Final[tuple[Break, ...]] = (
    _one("turn by minus theta", "plain", PLAIN, "    if inverse:\n", "    if not inverse:\n"),
    _one("turn by minus theta", "C", C_ROWS, "int sign = position < 0 ? -1 : 1;", "int sign = position < 0 ? 1 : -1;"),
    _one("a sign slip", "plain", PLAIN, _PLAIN_TURN, "a * cos - b * sin, a * sin - b * cos"),
    Break(
        "a sign slip",
        "C",
        (
            Edit(C_ROWS, _C_SECOND, _C_SECOND.replace(") times_plus", ") minus_times")),
            Edit(C_ROWS, _C_PUT_SECOND, "put_##T(y + (B), b * c - a * s);"),
        ),
    ),
    _one("pairings swapped", "plain", OPERATOR, _PLAIN_PAIRING, _PLAIN_PAIRING.replace("ADJACENT", "HALVES")),
    _one("pairings swapped", "C", C_CALLS, _C_BODY, _C_BODY.replace("->pairing", "->pairing == HALVES")),
    _one("exponent over D - 1", "both", SPECTRUM, "ln() * 2 / self.width", "ln() * 2 / (self.width - 1)"),
    _one(
        "wrong output layout",
        "plain",
        PLAIN,
        "return torch.stack((a, b), -1).view(*a.shape[:-1], 2 * a.shape[-1])",
        "return torch.cat((a, b), -1)",
    ),
    Break(
        "wrong output layout",
        "C",
        (
            Edit(C_ROWS, _C_JOIN, _C_JOIN_SWAPPED),
            Edit(C_ROWS, _C_PUT_FIRST, _C_PUT_FIRST.replace("(A)", "(B)")),
            Edit(C_ROWS, _C_PUT_SECOND, _C_PUT_SECOND.replace("(B)", "(A)")),
        ),
    ),
    _one(
        "angles in the type of x",
        "plain",
        OPERATOR,
        "    cos, sin = " + _FLOAT32_OR_64.format("x.dtype") + "\n    adjacent",
        "    cos, sin = (t.to(x.dtype).to(t.dtype) for t in " + _FLOAT32_OR_64.format("x.dtype") + ")\n    adjacent",
    ),
    _one("angles in the type of x", "C", C_ROWS, _C_TURN, _C_FLOAT32_TURN),
    _one("offset ignored", "both", ROTARY, _CONSECUTIVE, "positions = torch.arange(q.shape[-2], device=q.device)"),
    _one("offset ignored", "plain", PHASE, _TURNS, _TURNS.replace("whole,", "whole - whole[..., :1, :],")),
    _one("offset ignored", "C", C_ROWS, "int64_t position = " + _C_POSITION, "int64_t position = row;"),
    _one("nothing is turned", "both", OPERATOR, "    checks.inputs(xs, names, table)\n", "    return xs\n"),
    _one("nothing is turned", "plain", PLAIN, f"_join({_PLAIN_TURN}, adjacent)", "_join(a, b, adjacent)"),
    Break(
        "nothing is turned",
        "C",
        (
            Edit(C_ROWS, _C_FIRST, "#define FIRST_OF(L, a, b, c, s) (a)"),
            Edit(C_ROWS, _C_SECOND, "#define SECOND_OF(L, a, b, c, s) (b)"),
            Edit(C_ROWS, _C_PUT_FIRST, "put_##T(y + (A), a);"),
            Edit(C_ROWS, _C_PUT_SECOND, "put_##T(y + (B), b);"),
        ),
    ),
    _one(
        "halves treated as adjacent",
        "plain",
        OPERATOR,
        _PLAIN_PAIRING,
        _PLAIN_PAIRING.replace("table.pairing is Pairing.ADJACENT", "True"),
    ),
    _one("halves treated as adjacent", "C", C_CALLS, _C_BODY, _C_BODY.replace("rotation->pairing", "ADJACENT")),
    # ---- beyond the nine ----
    _one(
        "pairings swapped on the way to the kernel",
        "C",
        OPERATOR,
        _KERNEL_PAIRING,
        _KERNEL_PAIRING.replace("ADJACENT", "HALVES"),
    ),
    _one(
        "a table rounded on the way to the kernel",
        "C",
        OPERATOR,
        "    cos, sin = " + _FLOAT32_OR_64.format("xs[0].dtype") + "\n",
        "    cos, sin = (t.to(xs[0].dtype).to(t.dtype) for t in " + _FLOAT32_OR_64.format("xs[0].dtype") + ")\n",
    ),
    _one("the rest of a row behind whole vectors is not turned", "C", C_ROWS, _C_PUT_SECOND, "put_##T(y + (B), b);"),
    _one(
        "every row of the batch takes the first table",
        "C",
        OPERATOR,
        "    kernel.rotate(*views, cos, sin,",
        "    kernel.rotate(*views, cos[:1], sin[:1],",
    ),
    _one(
        "every row of the batch takes the first table",
        "plain",
        PLAIN,
        "cos.unsqueeze(-3), sin.unsqueeze(-3)",
        "cos[:1].unsqueeze(-3), sin[:1].unsqueeze(-3)",
    ),
    _one(
        "the leading part turned for the trailing one",
        "both",
        TABLE,
        "self.first = 0 if part is Part.LEADING else head_dim - 2 * self.pairs",
        "self.first = 0",
    ),
    _one("the inverse multiplies by the factor", "both", OPERATOR, "1.0 / table.factor if inverse else", ""),
    _one("the gradient is turned the same way", "both", OPERATOR, _BACKWARD, _BACKWARD.replace("not ", "")),
    _one("a gradient forgets the factor", "both", OPERATOR, _BACKWARD, _BACKWARD.replace("factor", "1.0")),
    _one(
        "positions are read again after the caller has changed them",
        "both",
        TABLE,
        "positions.clone() if copy else positions",
        "positions",
    ),
    _one(
        "what is overwritten is not counted",
        "both",
        OPERATOR,
        "torch.autograd.graph.increment_version(targets)",
        "pass",
    ),
    _one(
        "out over the input is written while it is read",
        "C",
        OPERATOR,
        "    elif targets is not xs and _entangled(xs, targets):\n",
        "    elif False:\n",
    ),
    _one("real positions lose their fraction", "both", PHASE, "angle = angle + fraction.double() * theta", "pass"),
    _one(
        "whole turns are dropped before the low words are added",
        "plain",
        PHASE,
        "high = (whole * words[0] + (low >> 32)) & _LOW_WORD",
        "high = (whole * words[0]) & _LOW_WORD",
    ),
)
