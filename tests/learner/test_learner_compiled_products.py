"""Products as compiled gradient steps write them: the same numbers, in a form that kernels around them take in."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lockstep.learner.compiled_products import MAX_ELEMENTS, MAX_OUTPUTS, MAX_SUMS, MAX_WRITTEN_OUT, PRODUCTS

aten = torch.ops.aten
FEW, MANY = MAX_WRITTEN_OUT, MAX_WRITTEN_OUT + 1


def traced(operation, *inputs, **options):
    """Result, and the names of the graph's operations."""
    graph = make_fx(lambda *given: operation(*given, **options), decomposition_table=PRODUCTS)(*inputs)
    return graph(*inputs), {str(node.target).split(".")[1] for node in graph.graph.nodes if node.op == "call_function"}


def tensors(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("leading", [(), (2,)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("columns", [1, FEW])
def test_a_product_over_few_columns_is_written_out(leading, with_bias, columns):
    bias, a, b = tensors((*leading, 1, 6) if leading else (6,), (*leading, 5, columns), (*leading, columns, 6))
    name = ("baddbmm" if leading else "addmm") if with_bias else ("bmm" if leading else "mm")
    inputs = (bias, a, b) if with_bias else (a, b)
    found, operations = traced(getattr(aten, name).default, *inputs)
    torch.testing.assert_close(found, a @ b + (bias if with_bias else 0))
    assert operations <= {"add", "mul", "slice", "alias"}, operations


def test_a_product_with_a_transposed_matrix_of_few_rows_is_written_out_with_a_copy_of_it():
    bias, a, b = tensors((6,), (5, FEW), (6, FEW))
    found, operations = traced(aten.addmm.default, bias, a, b.t())
    torch.testing.assert_close(found, a @ b.t() + bias)
    assert operations <= {"add", "mul", "slice", "alias", "clone", "as_strided"}, operations


@pytest.mark.parametrize("leading", [(), (2,)])
def test_the_bias_of_a_product_is_added_by_itself(leading):
    bias, a, b = tensors((*leading, 1, 6) if leading else (6,), (*leading, 5, MANY), (*leading, MANY, 6))
    found, operations = traced(aten.baddbmm.default if leading else aten.addmm.default, bias, a, b)
    torch.testing.assert_close(found, a @ b + bias)
    assert operations == ({"bmm", "add"} if leading else {"mm", "unsqueeze", "add", "squeeze"})


@pytest.mark.parametrize("leading", [(), (2,)])
def test_a_product_of_few_outputs_is_written_as_sums(leading):
    a, b = tensors((*leading, 20, MANY), (*leading, MAX_OUTPUTS, MANY))
    operation = aten.bmm.default if leading else aten.mm.default
    found, operations = traced(operation, a, b.mT)
    torch.testing.assert_close(found, a @ b.mT)
    assert operations == {"transpose", "unsqueeze", "mul", "sum"}
    wide = tensors((*leading, MANY, MAX_OUTPUTS + 1))[0]
    assert traced(operation, a, wide)[1] == {"bmm" if leading else "mm"}


@pytest.mark.parametrize("leading", [(), (2,)])
def test_the_gradient_of_the_weights_of_a_narrow_layer_is_written_as_sums_over_the_batch(leading):
    inputs, gradient = tensors((*leading, 20, MANY), (*leading, 20, MAX_SUMS))
    operation = aten.bmm.default if leading else aten.mm.default
    found, operations = traced(operation, inputs.mT, gradient)
    torch.testing.assert_close(found, inputs.mT @ gradient)
    assert operations == {"transpose", "slice", "mul", "sum", "stack"}
    turned = gradient.mT, inputs
    assert traced(operation, *turned)[1] == {"bmm" if leading else "mm"}
    turned = gradient.mT.bfloat16(), inputs.bfloat16()  # strides stay
    found, operations = traced(operation, *turned)
    torch.testing.assert_close(found.double(), turned[0].double() @ turned[1].double(), rtol=0.1, atol=0.2)
    assert operations == {"select", "unsqueeze", "mul", "sum", "stack"}


def test_a_narrow_product_of_a_large_matrix_is_left_to_the_library_but_in_bfloat16():
    a, b = tensors((MAX_ELEMENTS // 64 + 1, 64), (64, 1))
    assert traced(aten.mm.default, a, b)[1] == {"mm"}
    assert "mm" not in traced(aten.mm.default, a.bfloat16(), b.bfloat16())[1]


def test_one_row_in_bfloat16_is_written_as_sums_though_its_strides_are_those_of_a_column():
    column, outputs = (tensor.bfloat16() for tensor in tensors((20, 1), (20, MANY)))
    assert column.mT.stride() == (1, 1)
    found, operations = traced(aten.mm.default, column.mT, outputs)
    torch.testing.assert_close(found.double(), column.mT.double() @ outputs.double(), rtol=0.1, atol=0.2)
    assert operations == {"select", "unsqueeze", "mul", "sum", "stack"}


def test_a_scaled_product_stays_as_it_is():
    bias, a, b = tensors((6,), (5, FEW), (FEW, 6))
    found, operations = traced(aten.addmm.default, bias, a, b, alpha=0.5)
    torch.testing.assert_close(found, a @ b * 0.5 + bias)
    assert operations == {"addmm"}
