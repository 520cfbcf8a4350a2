"""The gate on every form that a parameter gives a variant; the defaults are in `tests/bench/gate/test_properties.py`.

The gate is the contract suite of a variant. Other tests of this folder compare with an oracle, or ask what the gate
does not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.bench.gate import quick_gate
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Unsupported

# so short that windows, blocks and landmarks of the forms still divide it into several
BOTH = AttentionShape(heads=2, head_dim=16, max_length=40)
BACK = replace(BOTH, causal=True)
FORMS = (
    "softmax[impl=eager]", "stick-breaking[own=true]", "scalable-softmax[bias=true]",
    "differential[impl=eager]", "rela[impl=eager]", "rela[norm=head]", "relu-squared[power=0]",
    "sigmoid[bias=-2.0]", "topk[k=3]", "softmax1[sink=learned]", "entmax[alpha=1.25]", "entmax[alpha=learned]",
    "asentmax[form=head]", "asentmax[alpha=2,delta=0.5]", "additive[hidden=5,bias=true]",
    "additive[hidden=4,normalized=true]", "relative[clip=2]", "relative[clip=9,values=false]", "feedforward[hidden=4]",
    "linformer[k=6]", "linformer[k=6,sharing=separate]", "nystrom[landmarks=6,kernel=5]",
    "nystrom[landmarks=16,kernel=0]", "skyformer[landmarks=8]", "synthesizer[variant=random]",
    "synthesizer[variant=factorised-dense]", "synthesizer[variant=factorised-random]", "performer[kernel=relu]",
    "delta[decay=scalar]", "delta[decay=channel,eigenvalues=signed]", "gated-linear[output_gate=false]",
    "fastformer[value=value]", "additive-lm[kernel_size=3]",
    "local[query_block=5,flange=3]", "local[query_block=4,flange=9,relative=false]", "window[size=5]",
    "window[sink=learned,size=6]", "indexer[index_dim=5,index_heads=2,k=6]", "moba[block=5,blocks=3]",
    "nsa[block=4,blocks=4,window=3]", "differential-v2[impl=eager]", "moba[block=6,blocks=1]",
    "xsa[strength=learned]+softmax", "qk-norm[scale=dimension]+softmax",
    "qk-norm+linear", "sink+topk[k=3]", "conv[size=3]+softmax", "conv[activation=none]+delta", "gate[by=head]+xsa+fox",
    "path[forget=true,rank=4]", "path[size=1]", "hgrn2[lower_bound=0.5]",
    "retention[decays=lightning,output_gate=false]", "delta-product[decay=scalar,steps=3]",
    "gated-delta-2[eigenvalues=signed]", "rwkv7[rank=4]", "log-linear[of=delta]", "mla[rank=5,rotary=4]",
    "mamba3[output_gate=false]", "ttt[batch=4]",
    "longformer[window=3,global_tokens=2]", "longformer[window=2,global_tokens=0]", "sparse[pattern=strided,stride=4]",
    "sparse[pattern=fixed,stride=5,summary=2]", "bigbird[block=3,random_blocks=2,global_blocks=1,window_blocks=3]",
    "reformer[bucket=4,hashes=3]", "sinkhorn[block=5]", "routing[clusters=2,form=strict,window=6]",
    "routing[clusters=3,window=5,relative=false]",
    "routing[clusters=3,form=strict,share_qk=true,suppress_self=true,window=4]", "sparse[pattern=strided,stride=1]",
    "local-routing[clusters=2,flange=3,form=strict,query_block=5,window=6]",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_a_variant_holds_what_it_promises(form: str) -> None:
    """Looking back, or both ways where it refuses that."""
    shape = BOTH if refused(form, BACK) else BACK
    # the gate passes a shape that is refused
    assert not refused(form, shape)
    assert quick_gate(form, shape) is None


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_form_holds_it_looking_both_ways_too(form: str) -> None:
    assert quick_gate(form, BOTH) is None


def refused(form: str, shape: AttentionShape) -> bool:
    try:
        build(form, shape)
    except Unsupported:
        return True
    return False
