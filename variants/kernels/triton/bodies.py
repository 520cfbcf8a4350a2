"""The functions of written text in Triton: head and body of each, with the bounds and the NaN of PyTorch's operators.

Text and no jitted functions, since each is one line, and a module that is written holds them all.
"""

from __future__ import annotations

BODIES = {
    "number(x)": "tl.cast(x, tl.float32)",
    "as_number(condition)": "condition.to(tl.float32)",
    "where(condition, yes, no)": "tl.where(condition, yes, no)",
    "logical_not(condition)": "condition == 0",
    "neg(x)": "-x",
    # by default a maximum on a GPU leaves NaN out
    "maximum(x, y)": "tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)",
    "minimum(x, y)": "tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)",
    "relu(x)": "maximum(x, 0.0)",
    # NaN stays, as does zero
    "sign(x)": "tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, x))",
    "trunc(x)": "tl.where(x < 0.0, tl.ceil(x), tl.floor(x))",
    "reciprocal(x)": "1.0 / x",
    "log10(x)": "tl.log2(x) * 0.30102999566398120",
    # Kahan's form: log(u) / (u - 1) varies slowly, so that the rounding of u = 1 + x does no harm
    "log1p(x)": "_log1p(x, 1.0 + x)",
    "_log1p(x, u)": "tl.where(u == 1.0, x, tl.where(u == INFINITY, u, tl.log(u) * (x / (u - 1.0))))",
    "expm1(x)": "_expm1(x, tl.exp(x))",
    # far from zero nothing cancels
    "_expm1(x, u)": "tl.where((x > 1.0) | (x < -1.0), u - 1.0, tl.where(u == 1.0, x, (u - 1.0) * (x / tl.log(u))))",
    "tanh(x)": "sign(x) * _tanh(expm1(2.0 * minimum(tl.abs(x), 20.0)))",
    "_tanh(grown)": "grown / (grown + 2.0)",
    # half of an exponential that overflows may not
    "sinh(x)": "sign(x) * tl.where(tl.abs(x) > 20.0, tl.exp(tl.abs(x) - 0.6931471805599453), _sinh(expm1(tl.abs(x))))",
    "_sinh(grown)": "0.5 * (grown + grown / (grown + 1.0))",
    "cosh(x)": "tl.exp(tl.abs(x) - 0.6931471805599453) + 0.5 * tl.exp(-tl.abs(x))",
    "sigmoid(x)": "1.0 / (1.0 + tl.exp(-x))",
    "pow(x, y)": "_pow(x, y, tl.where(y == 0.0, 1.0, tl.exp2(y * tl.log2(tl.abs(x)))))",
    "_pow(x, y, size)": "tl.where(x < 0.0, tl.where(y == tl.floor(y), _signed(size, y), NAN), size)",
    "_signed(size, y)": "tl.where(y - 2.0 * tl.floor(y * 0.5) == 1.0, -size, size)",
    "threshold_backward(gradient, x, threshold)": "tl.where(x <= threshold, 0.0, gradient)",
    "sigmoid_backward(gradient, y)": "gradient * y * (1.0 - y)",
    "tanh_backward(gradient, y)": "gradient * (1.0 - y * y)",
    **{f"{name}(x)": f"tl.{name}(x)" for name in ("abs", "ceil", "cos", "erf", "exp", "exp2", "floor", "log", "log2")},
    **{f"{name}(x)": f"tl.{name}(x)" for name in ("rsqrt", "sin", "sqrt")},
}
