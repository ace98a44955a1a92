"""The compiled linear layer that acts: what numpy computes, row by row whatever stands beside it."""

import numpy as np
import pytest

from lockstep.ops._dense_kernel import ROWS, dense

SIZES = [(1, 1), (3, 4), (4, 1), (17, 9), (64, 64), (33, 130)]
NUM_ROWS = (1, 2, 3, 8, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 5)


def layer(num_rows, num_inputs, num_outputs, dtype=np.float32):
    rng = np.random.default_rng(num_rows * 1000 + num_inputs)
    x, weight = rng.standard_normal((num_rows, num_inputs)), rng.standard_normal((num_outputs, num_inputs))
    return x.astype(dtype), weight.astype(dtype), rng.standard_normal(num_outputs).astype(dtype)


def run(x, weight, bias, rectify=False):
    out = np.full((len(x), len(weight)), 7.0, x.dtype)
    dense(x, weight, bias, rectify, out)
    return out


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-13)])
@pytest.mark.parametrize("num_inputs, num_outputs", SIZES)
def test_dense_is_the_product_and_the_bias(num_inputs, num_outputs, dtype, tolerance):
    for num_rows in NUM_ROWS:
        x, weight, bias = layer(num_rows, num_inputs, num_outputs, dtype)
        expected = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
        np.testing.assert_allclose(run(x, weight, bias), expected, rtol=tolerance, atol=10 * tolerance)
        rectified = np.maximum(expected, 0.0)
        np.testing.assert_allclose(run(x, weight, bias, True), rectified, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("num_inputs, num_outputs", SIZES)
def test_a_row_has_the_same_bits_whatever_rows_stand_beside_it(num_inputs, num_outputs):
    x, weight, bias = layer(2 * ROWS + 5, num_inputs, num_outputs)
    together = run(x, weight, bias)
    for begin, end in ((0, 1), (1, 2), (1, 4), (2, 10), (ROWS - 1, ROWS + 2), (5, 2 * ROWS + 5)):
        np.testing.assert_array_equal(run(x[begin:end].copy(), weight, bias), together[begin:end])


def test_what_is_not_finite_is_not_hidden():
    x, weight, bias = layer(3, 5, 6)
    x[0, 0], x[1, 0] = np.nan, np.inf
    for rectify in (False, True):
        out = run(x, weight, bias, rectify)
        assert np.isnan(out[0]).all()
        assert np.isinf(out[1]).any()
        assert np.isfinite(out[2]).all()
