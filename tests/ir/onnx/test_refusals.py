"""Graphs that ask for too much, or break the rules of their operators, are refused with one message that names the nodes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from flexspec.errors import UsageError
from flexspec.ir.onnx.importer import import_graph
from flexspec.ir.onnx.read import read_onnx
from onnx_operator_cases import CASES, Case, model_of


def imported(model: onnx.ModelProto, folder: Path) -> None:
    path = folder / "model.onnx"
    onnx.save(model, path)
    import_graph(read_onnx(path), path=path, name="case", longest=24)


_LARGE = {"size": np.array([1 << 40]), "count": np.array(1 << 40), "many": np.array([1 << 20, 1 << 20])}
_DOUBLED = " ".join(f"d{n + 1} = Concat<axis = 0>(d{n}, d{n})" for n in range(45))
_DEEP = " ".join(f"d{n + 1} = Add(d{n}, d{n})" for n in range(100))


@pytest.mark.parametrize(
    "nodes",
    [
        "made = ConstantOfShape(size) one_more = Add(made, made) some = Slice(one_more, front, front2) logits = Add(x, some)",
        "made = Range(zero, count, one) some = Slice(made, front, front2) more = Cast<to = 1>(some) logits = Add(x, more)",
        "made = Tile(x, many3) logits = ReduceMean<axes = [1]>(made)",
        "made = Expand(lowest, many) twice = Mul(made, made) some = ReduceMax<axes = [0, 1]>(twice) logits = Add(x, some)",
        f"d0 = Identity(slope) {_DOUBLED} some = ReduceMax<axes = [0]>(d45) logits = Add(x, some)",
        f"d0 = Identity(counted_float) {_DOUBLED} some = ReduceMax<axes = [0]>(d45) logits = Add(x, some)",
        "made = Pad(slope, pads) some = ReduceMax<axes = [0]>(made) logits = Add(x, some)",
    ],
)
def test_what_would_take_all_memory(nodes: str, tmp_path: Path) -> None:
    constants = {**_LARGE, "front2": np.array([1]), "many3": np.array([1 << 20, 1 << 20, 1]), "pads": np.array([0, 1 << 40])}
    used = {name: value for name, value in constants.items() if name in nodes}
    with pytest.raises(UsageError, match=r"takes more than \d+ numbers|its logits are \[3145728, 1, 64\]"):
        imported(model_of(Case(nodes=nodes, constants=used, opset=17)), tmp_path)


def test_a_value_used_twice_again_and_again_is_no_work(tmp_path: Path) -> None:
    imported(model_of(Case(nodes=f"d0 = Identity(counted_float) {_DEEP} s = Sub(d100, d100) u = Unsqueeze(s, ends3) logits = Add(x, u)",
                           constants={"ends3": np.array([0, 2])})), tmp_path)  # fmt: skip


def test_all_that_is_not_supported_is_named_at_once(tmp_path: Path) -> None:
    nodes = (
        "a = ms.FastGelu<surprise = 1>(x) b = ms.QuickGelu<other = 2>(a) c = Softmax<axis = 2, strange = 1>(b)"
        " d = Hardmax(c) e = ms.FusedMatMul<odd = 3>(d, w) logits = Identity(e)"
    )
    with pytest.raises(UsageError) as refusal:
        imported(model_of(Case(nodes=nodes, constants={"w": (64, 5)})), tmp_path)
    assert all(word in str(refusal.value) for word in ("surprise", "other", "strange", "ai.onnx::Hardmax", "odd"))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("logits = Softmax<axis = 7>(x)", "axis"),
        ("y = ms.FastGelu(x) logits = Softmax<axis = 7>(y)", "its axis is 7, but there are 3 dims"),
        ("y = ms.FastGelu(x) logits = Gather<axis = 5>(y, front)", "its axis is 5"),
        ("y = ms.FastGelu(x) logits = Reshape(y, front)", r"can't become \[0\]"),
        ("y = ms.FastGelu(x) z = Slice(y, front, ends1, ends1) logits = Concat<axis = 2>(y, z)", "all other dims must be the same"),
        ("token = Equal(input_ids, input_ids) all = ReduceMax<axes = [0, 1], keepdims = 0>(input_ids) shown = Greater(all, one)"
         " part = If(shown) <then_branch = a () => (float p) { p = Constant<value = float {1.0}>() },"
         " else_branch = c () => (float q) { q = Constant<value = float {2.0}>() }> logits = Add(x, part)",
         "which branch it takes depends on the tokens"),
        ("logits = Loop(one,, x) <body = a (int64 i, bool c, float[b] y) => (bool d, float[b] z) { d = Identity(c) z = Neg(y) }>",
         "loops are not supported"),
        ("t = Transpose<perm = [0, 2, 1]>(x) s = MatMul(x, t) m = Add(s, bias2) p = Softmax<axis = 1>(m) logits = MatMul(p, x)",
         "over dim 1, not over the keys"),
        ("logits = Gather<axis = 2>(x, far)", "outside of its dim of 64"),
        ("always = Equal(one, one) logits = Dropout(x,, always)", "training_mode"),
        ("s = Einsum<equation = \"btk,btk,btk->btk\">(x, x, x) logits = Identity(s)", "multiplies 3 tensors"),
        ("y = ms.FastGelu(x) logits = Einsum<equation = \"btk,bs->bt\">(y, y)", "does not fit tensors of 3, 3 dims"),
        ("always = Equal(one, one) y = If(always) <then_branch = a () => (float[b, l, c] p) { p = Hardmax(x) },"
         " else_branch = c () => (float[b, l, c] q) { q = Identity(x) }> z = Add(x, y) logits = Bernoulli(z)",
         r"with their nodes: ai.onnx::Hardmax \(p\); ai.onnx::Bernoulli \(logits\)"),
        ("best, which = TopK(x, long) logits = Identity(best)", "mixture of experts"),
    ],
)  # fmt: skip
def test_rules_of_operators(nodes: str, message: str, tmp_path: Path) -> None:
    constants = {name: value for name, value in {"ends1": np.array([1]), "far": np.array([3, 77])}.items() if name in nodes}
    with pytest.raises(UsageError, match=message):
        imported(model_of(Case(nodes=nodes, constants=constants, opset=17)), tmp_path)


def test_what_nothing_reads_is_not_looked_at(tmp_path: Path) -> None:
    imported(model_of(Case(nodes='y = Constant<value_string = "a">() z = Hardmax(x) logits = Gelu(x)')), tmp_path)


def test_hidden_states_are_no_logits(tmp_path: Path) -> None:
    model = model_of(CASES["gelu"])  # 64 columns of 20 tokens
    for name, message in (("output", "has 64 columns, but there are 20 tokens"), ("hidden", r"none of its outputs \(hidden\)")):
        model.graph.node[-1].output[0] = model.graph.output[0].name = name
        with pytest.raises(UsageError, match=message):
            imported(model, tmp_path)


def test_logits_among_other_outputs(tmp_path: Path) -> None:
    model = model_of(CASES["gelu"])
    model.graph.node[-1].output[0] = model.graph.output[0].name = "lm_logits"
    model.graph.output.insert(0, helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["B", "L", 64]))
    model.graph.input.append(helper.make_tensor_value_info("num_logits_to_keep", onnx.TensorProto.INT64, []))
    imported(model, tmp_path)


def test_fixed_sizes_are_refused_by_name(tmp_path: Path) -> None:
    model = model_of(CASES["gelu"])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 16
    with pytest.raises(UsageError, match="'input_ids' has the fixed dims"):
        imported(model, tmp_path)


def test_functions_with_operator_sets_of_their_own(tmp_path: Path) -> None:
    """One calls the other; what is imported is what they do."""
    model = model_of(Case(nodes="logits = Gelu(x)", opset=21))
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "Inner", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], sets)
    outer = helper.make_function(
        "own", "Outer", ["a"], ["c"], [helper.make_node("Inner", ["a"], ["b"], domain="own"), helper.make_node("Neg", ["b"], ["c"])], sets
    )
    model.functions.extend([inner, outer])
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[-1].domain, model.graph.node[-1].op_type = "own", "Outer"
    imported(model, tmp_path)
    path = tmp_path / "model.onnx"
    assert [node.op_type for node in read_onnx(path).graph.node] == ["Gather", "Relu", "Neg"]
