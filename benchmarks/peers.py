"""How others turn queries and keys, each called as its users call it.

Whatever can be made beforehand (tables, angles, compiled code, sessions, bound outputs) is made beforehand. A peer
takes part where it supports the pairing, the layout and the dtype. Each function below gives its contenders, or raises
`ImportError` where its package is missing and `Unsupported` where it has nothing for this work.

Not here: torchtune, whose rotation is neither complex nor compiled, and whose import needs torchao.
"""

import os
from collections.abc import Callable, Iterator

import torch
from benchmarks.timing import Contender
from benchmarks.work import Layout, Work
from torch import Tensor

from ropewalk import Pairing

__all__ = ["COMPILED", "EAGER", "ONNX_RUNTIME", "TRANSFORMERS", "llama", "peers"]

TRANSFORMERS = "transformers eager"
EAGER = (TRANSFORMERS, "rotary-embedding-torch", "x-transformers", "complex form eager")
COMPILED = ("transformers compiled", "complex form compiled")
ONNX_RUNTIME = "ONNX Runtime"

_Turn = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Unsupported(Exception):  # noqa: N818  # it is an answer, not an error
    """This peer has nothing for this work."""


def peers(work: Work) -> tuple[list[Contender], list[str]]:
    """All that take part, and a line for each that does not."""
    torch.compiler.reset()  # a function is compiled for eight shapes at most
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # or its workers warm up beside what is timed
    contenders, notes = [], []
    for family in (_transformers, _rotary_embedding_torch, _x_transformers, _complex_form, _onnx_runtime):
        try:
            contenders += list(family(work))
        except ImportError as missing:
            notes.append(f"{family.__name__.strip('_').replace('_', '-')} is not timed: {missing}")
        except Unsupported as reason:
            notes.append(str(reason))
    return contenders, notes


def llama(head_dim: int) -> tuple[torch.nn.Module, _Turn]:
    """`LlamaRotaryEmbedding` of base 10 000, and `apply_rotary_pos_emb`."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, num_key_value_heads=1, head_dim=head_dim)
    return LlamaRotaryEmbedding(config), apply_rotary_pos_emb


def _transformers(work: Work) -> Iterator[Contender]:
    q, k = work.q, work.k
    embedding, turn = llama(work.shape.head_dim)
    cos, sin = embedding(q, work.positions[None])
    compiled = torch.compile(turn, fullgraph=True, dynamic=False)
    yield work.peer(TRANSFORMERS, Pairing.HALVES, lambda: turn(q, k, cos, sin))
    yield work.peer("transformers compiled", Pairing.HALVES, lambda: compiled(q, k, cos, sin))


def _rotary_embedding_torch(work: Work) -> Iterator[Contender]:
    from rotary_embedding_torch import RotaryEmbedding

    q, k = work.q, work.k
    turn = RotaryEmbedding(work.shape.head_dim).rotate_queries_or_keys  # keeps its angles from the first call on
    yield work.peer("rotary-embedding-torch", Pairing.ADJACENT, lambda: (turn(q), turn(k)))


def _x_transformers(work: Work) -> Iterator[Contender]:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    q, k = work.q, work.k
    angles, scale = RotaryEmbedding(work.shape.head_dim)(work.positions)

    def turn() -> tuple[Tensor, Tensor]:
        return apply_rotary_pos_emb(q, angles, scale), apply_rotary_pos_emb(k, angles, scale)

    yield work.peer("x-transformers", Pairing.ADJACENT, turn)


def _complex_form(work: Work) -> Iterator[Contender]:
    """Meta's Llama and torchtitan: pairs as complex numbers, in float32."""
    q, k = work.q, work.k
    exponents = torch.arange(0, work.shape.head_dim, 2).float() / work.shape.head_dim
    angles = torch.outer(work.positions.float(), 10_000.0**-exponents)
    turns = torch.polar(torch.ones_like(angles), angles)  # (S, P)

    def turn(q: Tensor, k: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        z_q = torch.view_as_complex(q.float().unflatten(-1, (-1, 2)))  # (B, H, S, P)
        z_k = torch.view_as_complex(k.float().unflatten(-1, (-1, 2)))
        return (
            torch.view_as_real(z_q * turns).flatten(-2).type_as(q),
            torch.view_as_real(z_k * turns).flatten(-2).type_as(k),
        )

    compiled = torch.compile(turn, fullgraph=True, dynamic=False)
    yield work.peer("complex form eager", Pairing.ADJACENT, lambda: turn(q, k, turns))
    yield work.peer("complex form compiled", Pairing.ADJACENT, lambda: compiled(q, k, turns))


def _onnx_runtime(work: Work) -> Iterator[Contender]:
    if work.dtype != torch.float32:
        raise Unsupported(f"ONNX Runtime has no CPU kernel for {work.dtype}")
    if work.layout is Layout.FUSED:
        raise Unsupported("ONNX Runtime takes contiguous tensors only")
    for pairing in Pairing:
        yield work.peer(ONNX_RUNTIME, pairing, _bound_session(work, pairing))


def _bound_session(work: Work, pairing: Pairing) -> Callable[[], tuple[Tensor, Tensor]]:
    """A session that turns q and k in one run, inputs and outputs bound to torch's memory."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads may spin while it runs, and not into the time of whoever comes next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    inputs, outputs = _onnx_tensors(work)
    model = _onnx_model(work, pairing, inputs)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, x in inputs.items():
        kind = "int64" if x.dtype == torch.int64 else "float32"
        binding.bind_input(name, "cpu", 0, kind, tuple(x.shape), x.data_ptr())
    for name, y in outputs.items():
        binding.bind_output(name, "cpu", 0, "float32", tuple(y.shape), y.data_ptr())
    turned = tuple(_as_heads(outputs[name], x) for name, x in (("q_out", work.q), ("k_out", work.k)))

    def run() -> tuple[Tensor, Tensor]:
        assert inputs  # the session reads their memory
        session.run_with_iobinding(binding)
        return turned[0], turned[1]

    return run


def _onnx_tensors(work: Work) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By name; q and k as (B, H, S, D) or, for positions first, as (B, S, H D)."""
    q, k = work.q, work.k
    if work.layout is Layout.POSITIONS_FIRST:
        q, k = q.transpose(1, 2).flatten(2), k.transpose(1, 2).flatten(2)
    table = work.table(Pairing.HALVES)
    rows = torch.arange(work.shape.length).expand(work.shape.batch, -1).contiguous()
    inputs = {"q": q, "k": k, "rows": rows, "cos": table.cos, "sin": table.sin}
    return inputs, {"q_out": torch.empty_like(q), "k_out": torch.empty_like(k)}


def _as_heads(y: Tensor, x: Tensor) -> Tensor:
    """An output as (B, H, S, D), the shape of `x`."""
    return y if y.dim() == 4 else y.unflatten(-1, (x.shape[1], x.shape[3])).transpose(1, 2)


def _onnx_model(work: Work, pairing: Pairing, inputs: dict[str, Tensor]) -> bytes:
    from onnx import TensorProto, helper

    def value(name: str, x: Tensor) -> object:
        kind = TensorProto.INT64 if x.dtype == torch.int64 else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind, list(x.shape))

    nodes = [
        helper.make_node(
            "RotaryEmbedding",
            [name, "rows", "cos", "sin"],
            [f"{name}_out"],
            domain="com.microsoft",
            interleaved=int(pairing is Pairing.ADJACENT),
            num_heads=heads,
        )
        for name, heads in (("q", work.shape.heads), ("k", work.shape.key_heads))
    ]
    results = [value(f"{name}_out", inputs[name]) for name in ("q", "k")]
    graph = helper.make_graph(nodes, "rotation", [value(name, x) for name, x in inputs.items()], results)
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model: bytes = helper.make_model(graph, opset_imports=versions, ir_version=8).SerializeToString()
    return model
