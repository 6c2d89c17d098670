"""The `cpu-native` target: the whole pass as one call into the compiled kernels."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx

from flexspec.codegen.batch import Batch
from flexspec.codegen.cpu.buffers import Buffers
from flexspec.codegen.cpu.fusion import fuse
from flexspec.codegen.cpu.instruction_list import COLLECTIVES, Instruction
from flexspec.codegen.cpu.instructions import build_instructions
from flexspec.codegen.cpu.native.expert_packing import PackedExperts, pack_experts
from flexspec.codegen.cpu.native.library import NativeLibrary
from flexspec.codegen.cpu.native.operands import GatePrologue, Matrix, NormPrologue, Rotary
from flexspec.codegen.cpu.native.packing import PackedWeight, pack_linear
from flexspec.codegen.cpu.native.program import NativeProgram
from flexspec.codegen.cpu.position_tables import PositionTables
from flexspec.codegen.cpu.segments import SegmentedProgram
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.codegen.level_growth import LevelGrower
from flexspec.codegen.lowering import LoweringReport
from flexspec.codegen.parallel_group import ParallelGroup
from flexspec.codegen.tree_walk import TreeWalker
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.graph import ModelGraph
from flexspec.ir.positions import position_graph, position_values


class NativeModel:
    """A compiled model that runs as one native program; see `CompiledModel`."""

    tree_walker: TreeWalker | None = None
    level_grower: LevelGrower | None = None
    completes_batches = False

    def __init__(
        self,
        model: ModelGraph,
        library: NativeLibrary,
        *,
        kv_shape: KVShape,
        max_positions: int | None,
        max_pass_tokens: int,
        store: WeightStore,
        num_threads: int,
        group: ParallelGroup | None = None,
    ) -> None:
        self.vocab_size = model.facts.vocab_size
        self.kv_shape = kv_shape
        self.max_positions = max_positions
        self.max_pass_tokens = max_pass_tokens
        from_positions, frontier = position_graph(model)
        program = build_instructions(model, frontier, position_values(model)[0])
        fuse(program)
        self._buffers = Buffers(program, max_pass_tokens)
        outputs = [self._buffers.tensor(columns) for columns in program.position_values]
        self._positions = PositionTables(from_positions, max_positions=max_positions, outputs=outputs)
        self._features = None if program.features is None else self._buffers.tensor(program.features).numpy()
        self._hidden_states = [self._buffers.tensor(columns).numpy() for columns in program.hidden_states]
        self._num_tokens = 0
        self.feature_size = model.feature_size
        self.hidden_size = sum(columns.cols for columns in program.hidden_states)
        self._program = SegmentedProgram(library, dtype=kv_shape.dtype, num_threads=num_threads)
        emitter = _Emitter(model, library, self._program, self._buffers, store, program.after_gather, kv_shape.dtype, group)
        for instruction in program.instructions:
            emitter.emit(instruction)
        self._result = self._buffers.tensor(program.logits)
        self._gathers = program.logits.value in program.after_gather
        self.lowering = LoweringReport(
            target="cpu-native",
            implementations=emitter.implementations,
            weight_bytes=emitter.weight_bytes,
            workspace_bytes=self._buffers.num_bytes,
        )

    def forward(self, batch: Batch, kv: KVStorage, features: Tensor | None = None) -> Tensor:
        """Run one pass; see `CompiledModel.forward`."""
        count = batch.num_tokens
        assert count <= self.max_pass_tokens
        assert (features is None) == (self._features is None), f"a model with {self.feature_size} features"
        self._positions.fill(batch.positions)
        if features is not None and self._features is not None:
            assert features.dtype == torch.float32 and features.shape == (count, self.feature_size)
            self._features[:count] = features.numpy()
        self._program.run(batch, kv)
        self._num_tokens = count
        return self._result[: len(batch.output_rows) if self._gathers else count]

    def hidden_states(self, rows: npt.NDArray[np.int32] | Sequence[int]) -> Tensor:
        """See `CompiledModel.hidden_states`."""
        assert self._hidden_states, "no hidden states were asked for"
        index = np.asarray(rows, dtype=np.int64)
        states = [state[: self._num_tokens].take(index, axis=0) for state in self._hidden_states]
        return torch.from_numpy(states[0] if len(states) == 1 else np.concatenate(states, axis=1))


class _Emitter:
    """Appends instructions to the native program, laying out each weight once."""

    def __init__(
        self,
        model: ModelGraph,
        library: NativeLibrary,
        segments: SegmentedProgram,
        buffers: Buffers,
        store: WeightStore,
        after_gather: set[int],
        dtype: torch.dtype,
        group: ParallelGroup | None,
    ) -> None:
        self.model, self.library, self.segments, self.buffers, self.group = model, library, segments, buffers, group
        self.store, self.after_gather, self.dtype = store, after_gather, dtype
        self.weight_bytes = 0
        self._ways: dict[str, list[str]] = {}

    @property
    def program(self) -> NativeProgram:
        """What takes the next operator."""
        return self.segments.last

    @property
    def implementations(self) -> dict[str, str]:
        """What runs each operator, the ways in order of first use."""
        return {operator: "; ".join(ways) for operator, ways in self._ways.items()}

    def emit(self, instruction: Instruction) -> None:
        """Append one instruction."""
        inputs = {name: self.buffers.matrix(columns) for name, columns in instruction.inputs.items()}
        out = self.buffers.matrix(instruction.out)
        if instruction.kind not in ("embedding", "gather_rows", "tree_attention"):
            read = next(iter(instruction.inputs.values()))
            rows: dict[str, Any] = {"rows": "outputs" if read.value in self.after_gather else "tokens"}
        else:
            rows = {}
        for operator, how in {str(instruction.node.target): _way(instruction), **instruction.absorbed}.items():
            ways = self._ways.setdefault(operator, [])
            if how not in ways:
                ways.append(how)
        if instruction.kind in COLLECTIVES:
            self._collective(instruction, rows["rows"])
        elif instruction.kind == "linear":
            self._linear(instruction, inputs, out, rows)
        elif instruction.kind == "routed_experts":
            self._experts(instruction, inputs, out, rows)
        elif instruction.kind == "tree_attention":
            cos, sin = inputs.get("cos"), inputs.get("sin")
            q, k, v = inputs["q"], inputs["k"], inputs["v"]
            options = dict(instruction.options)
            interleaved = options.pop("interleaved")
            rotary = None
            if cos is not None and sin is not None:
                rotary = Rotary(cos=cos, sin=sin, dim=cos.cols, interleaved=interleaved)
            for name in ("slopes", "sinks"):
                options[name] = None if options[name] is None else self._vector(options[name])
            self.program.tree_attention(q=q, k=k, v=v, out=out, rotary=rotary, **options)
        else:
            options = {name: self._option(instruction.kind, value) for name, value in instruction.options.items()}
            getattr(self.program, instruction.kind)(**inputs, out=out, **options, **rows)

    def _collective(self, instruction: Instruction, rows: str) -> None:
        """Cut the program: ranks talk between two segments."""
        assert self.group is not None, "a graph with collectives is compiled for a group"
        source, out = self.buffers.tensor(instruction.inputs["x"]), self.buffers.tensor(instruction.out)
        # It must not hold on to the instruction, which holds the graph.
        call: Callable[[Tensor, Tensor], None]
        if instruction.kind == "combine":
            call = partial(_combine, self.group, instruction.options["widths"])
        else:
            call = partial(_in_place, self.group.reduce if instruction.kind == "reduce" else self.group.replicate)

        def run(batch: Batch) -> None:
            count = len(batch.output_rows) if rows == "outputs" else batch.num_tokens
            call(source[:count], out[:count])

        self.segments.cut(run)

    def _linear(self, instruction: Instruction, inputs: dict[str, Matrix], out: Matrix, rows: dict[str, Any]) -> None:
        options = dict(instruction.options)
        before, details = options.pop("prologue", (None, {}))
        prologue: NormPrologue | GatePrologue | None = None
        if before == "gate":
            prologue = GatePrologue(gate=inputs.pop("gate"), up=inputs.pop("up"), activation=details["activation"])
        elif before is not None:
            bias = details.get("bias")
            prologue = NormPrologue(
                kind="rms" if before == "rms_norm" else "layer",
                weight=self._vector(details["weight"]),
                bias=None if bias is None else self._vector(bias),
                eps=details["eps"],
            )
        bias = options["bias"]
        self.program.linear(
            x=inputs.get("x"),
            weight=self._packed(options["weight"]),
            bias=None if bias is None else self._vector(bias),
            out=out,
            residual=inputs.get("residual"),
            activation=options.get("activation"),
            prologue=prologue,
            **rows,
        )

    def _experts(self, instruction: Instruction, inputs: dict[str, Matrix], out: Matrix, rows: dict[str, Any]) -> None:
        options = dict(instruction.options)
        nodes = {name: options.pop(name) for name in ("gate", "gate_bias", "up", "up_bias", "down", "down_bias")}
        key = ("experts", self.dtype, *(None if node is None else self.model.origin(node) for node in nodes.values()))
        experts = self.store.get(key)
        if experts is None:
            weights = {name: None if node is None else self.model.parameter(node) for name, node in nodes.items()}
            experts = pack_experts(self.library, **weights, dtype=self.dtype)  # type: ignore[arg-type]
            self.store.put(key, experts)
            self.weight_bytes += experts.num_bytes
        assert isinstance(experts, PackedExperts)
        self.program.routed_experts(
            x=inputs["x"],
            expert_ids=inputs["expert_ids"],
            expert_weights=inputs["expert_weights"],
            experts=experts,
            out=out,
            **options,
            **rows,
        )

    def _option(self, kind: str, value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        return self._table(value) if kind == "embedding" else self._vector(value)

    def _packed(self, node: fx.Node) -> PackedWeight:
        key = ("packed", self.dtype, self.model.origin(node))
        packed = self.store.get(key)
        if packed is None:
            packed = pack_linear(self.library, self.model.parameter(node), self.dtype)
            self.store.put(key, packed)
            self.weight_bytes += packed.num_bytes
        assert isinstance(packed, PackedWeight)
        return packed

    def _table(self, node: fx.Node) -> Tensor:
        return self._shared(node, self.dtype)

    def _vector(self, node: fx.Node | Tensor) -> Tensor:
        return node if isinstance(node, Tensor) else self._shared(node, torch.float32)

    def _shared(self, node: fx.Node, dtype: torch.dtype) -> Tensor:
        key = ("plain", dtype, self.model.origin(node))
        tensor = self.store.get(key)
        if tensor is None:
            tensor = self.model.parameter(node).detach().to(dtype, copy=True).contiguous()
            self.store.put(key, tensor)
            self.weight_bytes += tensor.nbytes
        assert isinstance(tensor, Tensor)
        return tensor


def _way(instruction: Instruction) -> str:
    return f"{'torch.distributed' if instruction.kind in COLLECTIVES else 'native'} {instruction.kind}"


def _combine(group: ParallelGroup, widths: Sequence[int], source: Tensor, out: Tensor) -> None:
    group.combine(source, widths, out)


def _in_place(collective: Callable[[Tensor], None], source: Tensor, out: Tensor) -> None:
    collective(out)
