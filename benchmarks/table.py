"""A table for many positions: exact phases beside cos and sin of float32 angles."""

import functools
from collections.abc import Callable

import torch
from benchmarks.peers import llama
from benchmarks.timing import Contender, Run
from torch import Tensor

from ropewalk import Pairing, Rotary

__all__ = ["FLOAT32", "LLAMA", "OURS", "plan"]

OURS = "rope.table"
FLOAT32 = "float32 angles, cos, sin"
LLAMA = "LlamaRotaryEmbedding"

HEAD_DIM = 128
STEP = 17
"""Every which position is compared."""


def plan(*, quick: bool) -> list[Callable[[], Run]]:
    """One table."""
    return [functools.partial(_run, 4096 if quick else 131_072)]


def _run(length: int) -> Run:
    rope = Rotary(head_dim=HEAD_DIM, pairing=Pairing.HALVES)
    positions = torch.arange(length)
    frequencies = rope.inverse_frequencies().float()

    def ours() -> tuple[Tensor, Tensor]:
        table = rope.table(positions)
        return table.cos, table.sin

    def float32() -> tuple[Tensor, Tensor]:
        angles = positions[:, None].float() * frequencies
        return angles.cos(), angles.sin()

    contenders = [_contender(OURS, rope, positions, ours, 7e-8), _contender(FLOAT32, rope, positions, float32, 2e-2)]
    notes = []
    try:
        embedding, _ = llama(HEAD_DIM)
        of_type = torch.empty(0)
        contenders.append(_contender(LLAMA, rope, positions, lambda: embedding(of_type, positions[None]), 2e-2))
    except ImportError as missing:
        notes.append(f"transformers is not timed: {missing}")
    return Run(
        section="table", work=f"{length} x {HEAD_DIM // 2} pairs", contenders=contenders, dtype="float32", notes=notes
    )


def _contender(
    what: str, rope: Rotary, positions: Tensor, call: Callable[[], tuple[Tensor, Tensor]], tolerance: float
) -> Contender:
    def error() -> float:
        """The largest of cos and sin; half of the columns is all there is to know."""
        angles = positions[::STEP, None].double() * rope.inverse_frequencies()
        right = torch.stack((angles.cos(), angles.sin()))
        got = torch.stack([x.view(-1, x.shape[-1])[::STEP, : HEAD_DIM // 2].double() for x in call()])
        return float((got - right).abs().max())

    return Contender(what=what, call=call, error=error, tolerance=tolerance)
