"""Any variant inside a Hugging Face model, through the attention interface of transformers.

The recipe in its documentation leaks the future where nothing is padded: the mask is None then, and the function has to
know that it means a causal one. Here a mask always comes, one Boolean a pair, and is read back as a `Mask`. It is a
`VariantMask`, which refuses to be added to scores: many models compute attention by themselves, whatever their config
names.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from ...bench.core.spec import Spec
from .. import build
from ..contract import AttentionShape, Mask, Unsupported, Variant, Wrapper
from ..ops.patterns import PatternVariant
from .masks import ReadMask, boolean, read_mask
from .own_attention import PREFIX, own_attention

__all__ = ["attach", "observe", "register"]

CHILD = "attnbench_variant"
"""The name under which an attention module holds a variant with parameters."""

SAVED = "attnbench_attached"
"""The entry of a config that names the variant whose parameters are in the checkpoint."""

_REFUSED = {
    "softcap": "it caps scores (softcap)",
    "s_aux": "it has attention sinks (s_aux)",
    "sinks": "it has attention sinks (sinks)",
    "position_bias": "it adds a bias for positions to scores (position_bias)",
    "indices": "it picks keys by itself (indices)",
    "block_indices": "it picks blocks of keys by itself (block_indices)",
    "head_mask": "it masks heads (head_mask)",
    "cache": "it keeps keys in pages (continuous batching)",
}
"""Arguments that change the scores of a model, and that a variant has no place for."""

Observer = Callable[[nn.Module, Variant, Tensor, Tensor, Mask, Tensor | None], None]

_observers: list[Observer] = []
# not as submodules: what has no parameters is no part of a checkpoint
_built: WeakKeyDictionary[nn.Module, dict[Any, Variant]] = WeakKeyDictionary()


def register(selection: str, *, temperature: float = 1.0) -> str:
    """Registers a variant, such as `entmax[alpha=1.25]`, and its masks; returns the name for `attn_implementation`.

    `temperature` divides the scores, beside the model's own scaling. Registering again changes nothing. Raises
    SelectionError for an unknown name or parameter. From then on `set_attn_implementation` and `from_pretrained` raise
    Unsupported for a model that the name would not change. What else cannot be done is known when the model runs, and
    raises Unsupported with the reason.
    """
    spec = Spec.parse(selection)
    if any(_tried(each).takes_hidden for each in spec.layers or (spec,)):
        raise Unsupported(
            f"{spec} takes the hidden state, which the interface of transformers does not hand on; call "
            "attach(model, selection)"
        )
    return _registered(spec, temperature)


def _tried(spec: Spec) -> Variant:
    """A variant of one layer, built small, so that a wrong name is found here and not within the model."""
    shape = AttentionShape(heads=2, head_dim=16, max_length=64)
    try:
        tried = build(str(spec), shape)
    except Unsupported:
        tried = build(str(spec), replace(shape, causal=True))
    reason = (
        "it has projections of its own, and those of the model would stay around it" if tried.owns_projections
        else "it changes the feed-forward of its layer" if tried.matches_parameters
        else "it puts a sublayer before attention" if tried.pre_layer(shape.width) is not None
        else ""
    )  # fmt: skip
    if reason:
        raise Unsupported(f"{spec} cannot stand in for the attention of a model of transformers: {reason}")
    return tried


def _registered(spec: Spec, temperature: float) -> str:
    if not temperature > 0.0:
        raise ValueError(f"expected a temperature above 0, got {temperature}")
    for each in spec.layers or (spec,):
        _tried(each)
    name = f"{PREFIX}{spec}" + (f" temperature={temperature:g}" if temperature != 1.0 else "")
    AttentionInterface.register(name, _attention(str(spec), temperature))
    AttentionMaskInterface.register(name, _mask)
    return name


def attach(model: nn.Module, selection: str, *, temperature: float = 1.0) -> list[nn.Module]:
    """Makes a model attend by a variant, and returns its attention modules; two tokens are run to see that it can.

    As `register` and `set_attn_implementation`, and the only way for variants with parameters of their own or with the
    hidden state: each attention module gets one as a submodule, drawn as for training, so that it is trained, moved and
    saved with the model, and a hook that hands over the hidden state. Raises Unsupported, with the model as it was, for
    a model of which some layer does not attend through the interface, and for all that `register` refuses.
    """
    config: Any = model.config
    before = config._attn_implementation
    name = _registered(Spec.parse(selection), temperature)
    if model.main_input_name != "input_ids":
        raise Unsupported(
            f"{type(model).__name__} takes {model.main_input_name}, so attach cannot run two tokens through it; for a "
            "variant without parameters call model.set_attn_implementation(register(selection))"
        )
    calls: list[nn.Module] = []

    def notice(module: nn.Module, *_: object) -> None:
        calls.append(module)

    spec, training = str(Spec.parse(selection)), model.training
    earlier = {module: variant for module in model.modules() if (variant := _attached(module))}
    cast(Any, model).set_attn_implementation(name)
    # of all modules, since those that attend are not known yet
    hooks = [module.register_forward_pre_hook(_keep_hidden, with_kwargs=True) for module in model.modules()]
    _hidden.clear()
    _attaching.append(spec)
    try:
        with torch.no_grad(), observe(notice):
            token = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
            more = {"decoder_input_ids": token} if config.is_encoder_decoder else {}
            try:
                model.eval()(input_ids=token, **more)
            except (TypeError, ValueError, AttributeError) as error:
                raise Unsupported(
                    f"{type(model).__name__} does not run from input_ids alone ({error}); for a variant without "
                    "parameters call model.set_attn_implementation(register(selection))"
                ) from error
        layers = config.get_text_config().num_hidden_layers
        # calls and not modules: in ALBERT all layers share one
        if len(calls) < layers:
            raise Unsupported(
                f"{len(calls)} of the {layers} layers of {type(model).__name__} attend through the interface of "
                "transformers; the others would stay as they are"
            )
        if own := {type(module).__name__ for module in own_attention(model) if module in _hidden}:
            raise Unsupported(f"{', '.join(sorted(own))} in {type(model).__name__} computes its own attention")
        if getattr(config, SAVED, None) == spec and not earlier:
            _load(model)
    except BaseException:
        for module in calls:
            module._modules.pop(CHILD, None)
        for module, variant in earlier.items():
            module.add_module(CHILD, variant)
        cast(Any, model).set_attn_implementation(before)
        raise
    finally:
        _attaching.pop()
        model.train(training)
        for hook in hooks:
            hook.remove()
    for module in earlier:
        if (variant := _attached(module)) and variant.selection != spec:
            # its parameters would be those of a variant that no longer attends
            del module._modules[CHILD]
    for module in dict.fromkeys(calls):
        if old := _hooks.pop(module, None):
            old.remove()
        if getattr(_attached(module), "takes_hidden", False):
            _hooks[module] = module.register_forward_pre_hook(_keep_hidden, with_kwargs=True)
    # `save_pretrained` writes it, so that `attach` after `from_pretrained` knows that there are parameters to load
    setattr(config, SAVED, spec if any(_attached(module) for module in calls) else None)
    return list(dict.fromkeys(calls))


def _load(model: nn.Module) -> None:
    """Gives the attached variants the parameters that `save_pretrained` wrote, which `from_pretrained` leaves out."""
    config: Any = model.config
    folder = Path(config._name_or_path)
    saved: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            saved |= {name: file.get_tensor(name) for name in file.keys() if f".{CHILD}." in name}  # noqa: SIM118
    prefix = f"{cast(Any, model).base_model_prefix}."
    for name, own in model.state_dict().items():
        if f".{CHILD}." not in name:
            continue
        # a checkpoint of the model without its head lacks the prefix, and one with it has it
        found = next((saved[n] for n in (name, prefix + name, name.removeprefix(prefix)) if n in saved), None)
        if found is None or found.shape != own.shape:
            raise Unsupported(
                f"this model was saved with an attached {getattr(config, SAVED)}, but its parameters are not in the "
                f"safetensors of {str(folder)!r} ({name}); load from that folder, or draw new ones: "
                f"model.config.{SAVED} = None, then attach"
            )
        own.copy_(found)


_attaching: list[str] = []

# references that keep no graph alive; a module is in it from when it ran
_hidden: WeakKeyDictionary[nn.Module, Callable[[], Tensor | None]] = WeakKeyDictionary()
_hooks: WeakKeyDictionary[nn.Module, RemovableHandle] = WeakKeyDictionary()


def _keep_hidden(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Notes the hidden state that an attention module is called with, for the variant inside."""
    hidden = named.get("hidden_states", positional[0] if positional else None)
    _hidden[module] = ref(hidden) if isinstance(hidden, Tensor) else lambda: None


def _hidden_of(module: nn.Module, query: Tensor) -> Tensor | None:
    """The hidden state of these queries, (batch, queries, width), where a hook has seen it."""
    hidden = _hidden.get(module, lambda: None)()
    return hidden if hidden is not None and hidden.shape[:-1] == (query.shape[0], query.shape[2]) else None


def _attached(module: nn.Module) -> Any:
    """The variant with parameters that `attach` has put into an attention module, or None."""
    return module._modules.get(CHILD)


@contextlib.contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Let each attention inside the block call observer(module, variant, query, key, mask, hidden).

    For analysis: the query is scaled as the variant has it, and `variant.weights_with(query, key, mask, None, hidden)`
    are the weights before dropout.
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


class VariantMask(Tensor):
    """A mask that the attention of a variant reads, and that no other code can combine with scores.

    Bloom, MPT and others add it to their own scores, or fill them where it is True: a Boolean mask would then hide
    nothing, or the wrong half.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves((args, kwargs)):
            # slices and copies of the mask are as harmless as numbers
            if isinstance(x, Tensor) and not isinstance(x, cls) and x.is_floating_point() and x.dim() > 1:
                raise Unsupported(
                    "this model computes its own attention: it puts the mask, or a bias, on scores itself instead of "
                    "calling the attention interface of transformers; use attn_implementation='eager'"
                )
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def _mask(*args: Any, **kwargs: Any) -> Tensor:
    """The mask of a model, Boolean (batch, 1, queries, keys), where transformers may leave it out as well."""
    always = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "allow_torch_fix": False}
    return cast(Tensor, sdpa_mask(*args, **{**kwargs, **always})).as_subclass(VariantMask)


def _attention(spec: str, temperature: float) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """query (batch, heads, queries, d), key and value (batch, kv_heads, keys, d): (batch, queries, heads, d).

        Where `output_attentions` asks for them also the weights before dropout, (batch, heads, queries, keys).
        """
        for argument, reason in _REFUSED.items():
            if more.get(argument) is not None:
                raise _unsupported(spec, module, reason)
        try:
            read = _read(module, query.shape[2], key, attention_mask, more)
        except Unsupported as error:
            raise _unsupported(spec, module, str(error)) from error
        keys = key.shape[2]
        key, value = key[:, :, : read.keys], value[:, :, : read.keys]
        hidden = _hidden_of(module, query)
        variant = _variant(spec, module, query, key, read.mask, float(dropout), hidden)
        # variants divide by sqrt(head_dim) themselves; exactly 1 for most models, so that nothing is rounded
        own = query.shape[-1] ** -0.5
        factor = (own if scaling is None else scaling) / own / temperature
        if not math.isclose(factor, 1.0, rel_tol=1e-12):
            query = query * factor
        for observer in _observers:
            observer(module, variant, query, key, read.mask, hidden)
        output, weights = variant(query, key, value, read.mask, hidden), None
        if more.get("output_attentions") or getattr(getattr(module, "config", None), "output_attentions", False):
            weights = variant.weights_with(query, key, read.mask, None, hidden)
            if weights is None:
                raise _unsupported(spec, module, "it has no weights, which output_attentions asks for")
            # of free places of a cache
            weights = nn.functional.pad(weights, (0, keys - read.keys))
        return output.transpose(1, 2).contiguous(), weights

    return attention


def _unsupported(spec: str, module: nn.Module, reason: str) -> Unsupported:
    return Unsupported(f"{spec} cannot stand in for the attention of {type(module).__name__}: {reason}")


def _read(module: nn.Module, queries: int, key: Tensor, mask: Tensor | None, more: dict[str, Any]) -> ReadMask:
    given = more.get("is_causal")
    keys = key.shape[2]
    if mask is None:
        # of encoders that make no mask: eager attention hides nothing then, whereas SDPA goes by what the module says
        causal = bool(getattr(module, "is_causal", False) if given is None else given) and not _crosses(module)
        if causal and given is None and queries > 1:
            raise Unsupported("no mask came, and the module says is_causal, which eager attention would not heed")
        window = more.get("sliding_window")
        if window is not None and keys > window:
            raise Unsupported("a sliding window came without a mask")
        if more.get("cu_seq_lens_q") is not None:
            raise Unsupported("packed sequences came without a mask")
        return ReadMask(mask=Mask(causal=causal), keys=keys)
    causal = bool(getattr(module, "is_causal", True) if given is None else given)
    # all layers get one tensor, which is read once; a mask that was changed in place is read again
    version = None if mask.is_inference() else mask._version
    known = getattr(mask, "_attnbench_read", None)
    if known is not None and version is not None and known[:3] == (version, causal, queries):
        return cast(ReadMask, known[3])
    # caches of a fixed size may be longer than the mask says
    allowed = boolean(mask.as_subclass(Tensor)[..., :keys])
    if allowed.dim() == 4 and allowed.shape[2] == 1:
        # LayoutLM gives one row for all queries
        allowed = allowed.expand(-1, -1, queries, -1)
    read = read_mask(allowed, causal=causal)
    mask._attnbench_read = (version, causal, queries, read)  # type: ignore[attr-defined]
    return read


def _crosses(module: nn.Module) -> bool:
    return bool(getattr(module, "is_cross_attention", False))


def _variant(
    spec: str, module: nn.Module, query: Tensor, key: Tensor, mask: Mask, dropout: float, hidden: Tensor | None
) -> Variant:
    """The variant of an attention module, for these inputs."""
    config: Any = getattr(module, "config", None)
    queries, keys = query.shape[2], key.shape[2]
    layer = getattr(module, "layer_idx", None)
    if layer is None and "//" in spec:
        raise _unsupported(spec, module, "the module does not know its layer, which decides what a pattern names")
    layer = layer or 0
    shape = AttentionShape(
        heads=query.shape[1],
        kv_heads=key.shape[1],
        hidden_width=hidden.shape[-1] if hidden is not None else 0,
        head_dim=query.shape[3],
        max_length=max(keys, getattr(config, "max_position_embeddings", None) or 0),
        causal=mask.causal,
        cross=_crosses(module) or (queries != keys and not mask.causal),
        dropout=dropout,
        dtype=str(query.dtype).removeprefix("torch."),
        device=str(query.device),
        layer=layer,
        layers=max(layer + 1, getattr(config, "num_hidden_layers", None) or 1),
    )
    variant: Variant | None = _attached(module)
    # a config may name another variant than the one that was attached
    if variant is None or variant.selection != spec:
        kinds = _built.setdefault(module, {})
        variant = kinds.get(known := (spec, replace(shape, max_length=1, dropout=0.0)))
        if variant is None:
            variant = _new(spec, module, shape)
            if _attaching and next(variant.parameters(), None) is not None:
                # beside the parameters, so that a copy of the model knows it as well
                cast(Any, variant).selection = spec
                module.add_module(CHILD, variant)
            else:
                kinds[known] = variant
    if variant.takes_hidden and hidden is None:
        raise _unsupported(spec, module, "it takes the hidden state, which this module is not called with")
    if variant.shape.dropout != dropout or variant.shape.causal != shape.causal:
        if reason := variant.supports(shape):
            raise _unsupported(spec, module, reason)
        variant.shape = replace(variant.shape, dropout=dropout, causal=shape.causal)
    variant.train(module.training)
    if mask.causal and queries < keys and _has_linear_state(variant):
        raise _unsupported(
            spec, module, "it decodes from a state of fixed size, which the cache of keys and values has no place for; "
            "pass use_cache=False",
        )  # fmt: skip
    return variant


def _new(spec: str, module: nn.Module, shape: AttentionShape) -> Variant:
    try:
        with torch.random.fork_rng(devices=[]):
            # what is drawn is drawn alike whenever the model is loaded again
            torch.manual_seed(shape.layer)
            variant = build(spec, shape).to(shape.device)
    except Unsupported as error:
        raise _unsupported(spec, module, str(error)) from error
    if shape.causal and variant.causality == "selection":
        raise _unsupported(spec, module, "which past keys it sees depends on later tokens, so it would leak the future")
    if not _attaching and next(variant.parameters(), None) is not None:
        raise _unsupported(
            spec, module, "it has parameters of its own, which would be random; call attach(model, selection), which "
            "makes them part of the model, and fine-tune",
        )  # fmt: skip
    return variant


def _has_linear_state(variant: Variant) -> bool:
    """True if it decodes from a state that does not grow with the keys, other than the last keys themselves."""
    while isinstance(variant, Wrapper):
        variant = variant.inner
    if type(variant).step is Variant.step or isinstance(variant, PatternVariant):
        return False
    long, longer = (replace(variant.shape, max_length=length) for length in (2**20, 2**21))
    return bool(size := variant.state_bytes(long)) and size == variant.state_bytes(longer)
