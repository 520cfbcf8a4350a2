"""Maps of `ops/written.py` as C++: vectors for `map.h`, a unit of their own to compile."""

from __future__ import annotations

import ctypes
from functools import cache

from ...ops.written import Written, read, text
from . import build


@cache
def address(written: Written) -> int:
    """The address of the map's functions, compiled at the first call; raises RuntimeError if that fails."""
    library = ctypes.CDLL(str(build.built(source(written))))
    return ctypes.addressof(ctypes.c_char.in_dll(library, "attnbench_map"))


def source(written: Written) -> str:
    """The unit to compile."""
    first = 1 if written.tops else 0
    weight, summed, gradients = written.weight, written.summed, written.gradients
    start = ["const Vec v_top(rows[0]);"] if written.tops else []
    start += _declared(read(written.forward, "Vec(rows[{}])", first)) + _declared(written.levels)
    differentiated = _declared(read(written.backward, "load(rows[{}] + at + j, lanes)"))
    differentiated += _declared(written.lines(weight, summed, *gradients))
    differentiated += [
        f"store(load(to_rows[{k}] + at + j, lanes) + {text(x)}, to_rows[{k}] + at + j, lanes);"
        for k, x in enumerate(gradients[1:])
    ]
    inverse = "const Vec inverse_of = load(inverse + j, lanes), v_of_sum = load(of_sums + j, lanes);"
    flags = ", ".join(str(flag).lower() for flag in (written.sums, written.tops))
    return _UNIT.format(
        start="\n  ".join(start),
        body="\n    ".join(_declared(written.lines(weight, summed))),
        weight=text(weight),
        adding="sum = sum + Vec::set(Vec(0.0f), " + text(summed) + ", lanes);" if written.sums else "",
        inverse=inverse if written.sums else "",
        of_weight="load(gradients + j, lanes)" + (" * inverse_of" if written.sums else ""),
        differentiated="\n    ".join(differentiated),
        divided=f"{text(weight)}{' * inverse_of' if written.sums else ''}",
        gradient=text(gradients[0]),
        members=f"{flags}, {len(written.forward) + first}, {len(written.backward)}, {len(gradients) - 1}",
    )


def _declared(lines: list[tuple[str, str]]) -> list[str]:
    return [f"const Vec {name} = {expression};" for name, expression in lines]


_UNIT = """#include "map.h"

namespace attnbench {{
namespace {{
using namespace map;

void weigh(float scale, int64_t n, float* x, const float* rows, float* total) {{
  {start}
  Vec sum(0.0f);
  by_vectors(n, [&](int64_t j, int64_t lanes) {{
    const Vec v_scores = load(x + j, lanes) * Vec(scale);
    {body}
    {adding}
    store({weight}, x + j, lanes);
  }});
  *total += total_of(sum);
}}

void differentiate(float scale, int64_t n, float* x, float* gradients, const float* const* rows, int64_t at,
                   const float* inverse, const float* of_sums, float* const* to_rows) {{
  by_vectors(n, [&](int64_t j, int64_t lanes) {{
    const Vec v_scores = load(x + j, lanes) * Vec(scale);
    {inverse}
    const Vec v_of_weight = {of_weight};
    {differentiated}
    store({divided}, x + j, lanes);
    store({gradient}, gradients + j, lanes);
  }});
}}
}}  // namespace
}}  // namespace attnbench

extern "C" const attnbench::Map attnbench_map = {{{members}, &attnbench::weigh, &attnbench::differentiate}};
"""
