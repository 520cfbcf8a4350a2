"""Make docs/huggingface-models.md: every architecture that transformers builds small, by each door of the bridge.

    python tests/support/architectures.py rows build/rows.jsonl           # an hour; goes on where it stopped
    python tests/support/architectures.py rows build/rows.jsonl bert vit  # these alone, anew: the last row counts
    python tests/support/architectures.py page build/rows.jsonl > docs/huggingface-models.md

Each model is random, runs in a child of its own, and has to give by `softmax` what it gives by itself, padded too. By
`entmax15` its output has to change, and no softmax of attention may be left unless a warning names it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import multiprocessing
import os
import re
import sys
import tempfile
import textwrap
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnbench.variants.contract import Unsupported
from attnbench.variants.integrations.transformers import attach, observe, register

DOORS = ("attach", "set_attn_implementation", "from_pretrained")
SECOND = "entmax15"
TOLERANCE = 1e-4
"""Of the largest output, in float32 through two layers with weights ten times as large as usual."""

MOST_PARAMETERS = 60_000_000
SECONDS = 600
"""A minute of the largest on a core of its own."""
LENGTH, SHORTER = 12, 7
ONE_KEY, WIDE_IMAGE = ("segformer", "sam2", "maskformer"), 128
"""Models that reduce a small image to one key, over which every attention is the same."""

UNREAD = ("sam2",)
"""Beginnings of models that compute a softmax which nothing reads (Sam2MultiScaleAttention of transformers 5.23)."""

DEPTHS = [
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth",
    "num_encoder_layers", "num_decoder_layers", "encoder_num_layers", "decoder_num_layers",
]  # fmt: skip
LAYERS: dict[str, Any] = dict.fromkeys(DEPTHS, 2) | {
    "type_vocab_size": 2, "vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "image_size": 32,
}  # fmt: skip
OF_SIZE = {
    0.0: "dropout attention_dropout hidden_dropout hidden_dropout_prob attention_probs_dropout_prob",
    1: "n_group topk_group n_shared_experts first_k_dense_replace mamba_n_groups n_groups",
    2: """num_key_value_heads num_experts_per_tok index_n_heads linear_num_key_heads mamba_expand
        swa_num_key_value_heads indexer_n_heads indexer_kv_heads o_groups hc_mult num_global_key_value_heads""",
    4: """num_attention_heads n_head n_heads attention_heads encoder_attention_heads decoder_attention_heads num_experts
        num_local_experts n_routed_experts moe_num_experts swa_num_attention_heads linear_num_value_heads
        linear_num_heads conv_kernel time_step_rank attention_window indexer_compress_ratio num_queries
        num_entity_labels""",
    8: """qk_rope_head_dim qk_nope_head_dim state_size ssm_state_size mamba_d_state mamba_n_heads num_heads
        mamba_num_heads chunk_size sliding_window rotary_dim hidden_size_per_layer_input indexer_budget
        attention_chunk_size patch_size""",
    16: """head_dim kv_lora_rank v_head_dim index_head_dim linear_key_head_dim linear_value_head_dim mamba_d_head
        mamba_head_dim swa_head_dim indexer_head_dim o_lora_rank query_pre_attn_scalar global_head_dim linear_head_dim
        d_kv num_mel_bins""",
    32: "moe_intermediate_size shared_expert_intermediate_size q_lora_rank projection_dim",
    64: """hidden_size intermediate_size n_embd n_inner ffn_dim word_embed_proj_dim d_model decoder_ffn_dim
        encoder_ffn_dim d_ff attention_hidden_size ffn_hidden_size lru_width embedding_size dim hidden_dim embed_dim
        decoder_hidden_size vision_hidden_size max_source_positions max_target_positions""",
    128: "max_position_embeddings n_positions max_seq_len mamba_d_ssm",
}  # fmt: skip
SMALL: dict[str, Any] = LAYERS | {name: size for size, names in OF_SIZE.items() for name in names.split()} | {
    "index_topk": 6, "vocab_size_per_layer_input": 99, "num_kv_shared_layers": 0, "partial_rotary_factor": 0.5,
    "num_channels": 3, "attn_layer_indices": [1],
}  # fmt: skip
"""Sizes that most models take."""

DERIVED = ("head_dim", "partial_rotary_factor")
DEEP = {name: size for name, size in SMALL.items() if name not in DERIVED} | dict.fromkeys(DEPTHS, 8)
"""For hybrids, whose first layers are of one kind, and models whose sizes follow from others."""


def main() -> None:
    what, path, *names = sys.argv[1:]
    if what == "page":
        print(page([json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n") if line]))
        return
    transformers.logging.disable_progress_bar()
    file = Path(path)
    done = set()
    if not names and file.exists():
        done = {json.loads(line)["model"] for line in file.read_text(encoding="utf-8").split("\n") if line}
    for name in names or architectures():
        if name not in done:
            row = examined(name)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            print(row, file=sys.stderr, flush=True)


def architectures() -> list[str]:
    return sorted(CONFIG_MAPPING)


def examined(name: str) -> dict[str, str]:
    """The row of one architecture, made in a child, which may hang or die."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_answer, args=(name, theirs))
    child.start()
    theirs.close()
    row = {"model": name, "skipped": f"took more than {SECONDS} s"}
    if ours.poll(SECONDS):
        try:
            row = ours.recv()
        except EOFError:
            row = {"model": name, "skipped": "its process died"}
    child.kill()
    child.join()
    return row


def _answer(name: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # transformers calls its kernels wherever the package can be imported, and they need a GPU
    sys.modules["fla"] = None  # type: ignore[assignment]
    try:
        row = examine(name)
    except Exception as error:
        row = {"skipped": _told(error)}
    pipe.send({"model": name} | row)
    # no handlers of the parent at the end of a fork
    os._exit(0)


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def examine(name: str) -> dict[str, str]:
    """`kind`, and for each door "equal", "equal, but warned: …", "refused: …", "SILENT: …" or "error: …"."""
    kind, cls = class_of(name)
    if name == "mimi":
        raise ValueError("random, its decoder drowns what attention does: 1.3e-6 of its output; see mimi_encoder")
    with tempfile.TemporaryDirectory() as folder:
        made_of(name, cls).save_pretrained(folder)
        model = cls.from_pretrained(folder, attn_implementation="eager").eval()
        inputs = inputs_of(model)
        expected, _ = outputs(model, inputs)
        if not all(torch.isfinite(x).all() for x in expected):
            raise ValueError("its own outputs are not finite")

        def attached(selection: str) -> nn.Module:
            attach(other := copy.deepcopy(model), selection)
            return other

        def renamed(selection: str) -> nn.Module:
            (other := copy.deepcopy(model)).set_attn_implementation(register(selection))
            return other

        def loaded(selection: str) -> nn.Module:
            return cls.from_pretrained(folder, attn_implementation=register(selection)).eval()

        doors = dict(zip(DOORS, (attached, renamed, loaded), strict=True))
        reads = not name.startswith(UNREAD)
        return {"kind": kind} | {door: verdict(make, inputs, expected, reads) for door, make in doors.items()}


def verdict(
    make: Callable[[str], nn.Module], inputs: list[dict[str, Tensor]], expected: list[Tensor], reads: bool
) -> str:
    difference: dict[str, float] = {}
    for selection in ("softmax", SECOND):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                calls: list[None] = []
                model = make(selection)
                with observe(lambda *_, calls=calls: calls.append(None)):
                    found, left = outputs(model, inputs)
            except Unsupported as error:
                return f"refused: {error}"
            except Exception as error:
                return f"error: {_told(error)}"
        difference[selection] = max(map(_difference, found, expected))
    stays = [str(each.message) for each in warned if "stays as it is" in str(each.message)]
    if difference["softmax"] > TOLERANCE:
        return f"SILENT: softmax differs by {difference['softmax']:.2g} of the largest output"
    # a small effect counts where it stands out of rounding, as that of a codec behind a quantiser
    if difference[SECOND] <= 10 * max(difference["softmax"], 1e-7) or not calls:
        return f"SILENT: {SECOND} changes nothing"
    if stays:
        return f"equal, but warned: {stays[0]}"
    if left and reads:
        return f"SILENT: {len(left)} softmax of attention stay as they are, of shape {left[0]}"
    return "equal"


def _difference(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    if not torch.isfinite(found).all():
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-9)) if found.numel() else 0.0


def class_of(name: str) -> tuple[str, Any]:
    """What is built: the language model where there is one, else the model without a head, else with any head."""
    tables = {
        "masked": "MASKED_LM", "encoder-decoder": "SEQ_TO_SEQ_CAUSAL_LM", "speech": "SPEECH_SEQ_2_SEQ",
        "causal": "CAUSAL_LM",
    }  # fmt: skip
    found = {kind: getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES") for kind, table in tables.items()}
    found["base"] = modeling_auto.MODEL_MAPPING_NAMES
    found |= {
        table.removeprefix("MODEL_FOR_").removesuffix("_MAPPING_NAMES").lower().replace("_", " "): names
        for table, names in vars(modeling_auto).items()
        if table.startswith("MODEL_FOR_") and table.endswith("_MAPPING_NAMES")
    }
    for kind, names in found.items():
        if name in names:
            named = names[name] if isinstance(names[name], str) else names[name][0]
            return kind, getattr(transformers, named)
    raise ValueError("part of other models, without a class of its own")


def made_of(name: str, cls: Any) -> nn.Module:
    """A random model that runs, of the first sizes at which it does."""
    reasons = []
    image = {"image_size": WIDE_IMAGE} if name.startswith(ONE_KEY) else {}
    # a row of wide convolutions would swamp attention
    convolution = 0.05 if name.startswith(("mimi", "pocket_tts")) else 0.15
    for sizes in (SMALL, LAYERS, DEEP):
        try:
            config = small(CONFIG_MAPPING[name], sizes | image)
            if "MaskedLM" in cls.__name__ and hasattr(config, "is_decoder"):
                config.is_decoder = False
            with torch.device("meta"):
                count = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
            if count > MOST_PARAMETERS:
                raise ValueError(f"not small: {count / 1e6:.0f} million parameters")
            torch.manual_seed(0)
            model: nn.Module = cls._from_config(config, attn_implementation="eager").eval().float()
            torch.manual_seed(1)
            with torch.no_grad():
                for p in model.parameters():
                    # a branch that begins at zero, or scaled to nearly nothing, would hide what attention does
                    if p.ndim >= 2 or p.abs().max() < 0.05:
                        p.normal_(std=convolution if p.ndim == 3 else 0.15)
            inputs_of(model)
            return model
        except Exception as error:
            reasons.append(error)
    raise reasons[0]


def small(cls: Any, sizes: dict[str, Any]) -> Any:
    default, parts = cls(), getattr(cls, "sub_configs", None) or {}
    chosen = {
        key: size
        for key, size in sizes.items()
        if key not in parts and hasattr(default, key) and not isinstance(getattr(default, key), list | tuple | dict)
    }
    made = {key: small(type(part), sizes) for key in parts if (part := getattr(default, key, None)) is not None}
    try:
        return cls(**chosen, **made)
    except Exception:
        return cls(**chosen, **{key: part.to_dict() for key, part in made.items()})


def inputs_of(model: nn.Module) -> list[dict[str, Tensor]]:
    """The first inputs that the model takes; and these with a mask of padding, where it takes that too."""
    drawn, config, name = torch.Generator().manual_seed(0), model.config, model.main_input_name

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=drawn)

    ids = torch.randint(3, 90, (2, LENGTH), generator=drawn)
    sizes = (getattr(each, "image_size", None) for each in (config, getattr(config, "vision_config", None)))
    size = next((each for each in sizes if each), 32)
    size = WIDE_IMAGE if config.model_type.startswith(ONE_KEY) else size
    pixels, mel = normal(3, *(size if isinstance(size, list | tuple) else (size, size))), 16
    decoder = {"decoder_input_ids": ids[:, :SHORTER]}
    named: dict[str, list[Tensor]] = {
        "pixel_values": [pixels, normal(1, *pixels.shape[2:]), pixels[:, None].expand(-1, 8, -1, -1, -1)],
        "input_features": [normal(mel, 128), normal(40, mel), normal(40, 160), normal(80, 3000)],
        "input_values": [normal(4000), normal(1, 4000), normal(128, mel), ids],
    }
    firsts = [{name: each} for each in named.get(name, [ids, pixels, normal(LENGTH, 64)])]
    beside: list[dict[str, Tensor]] = [{}, {"pixel_values": pixels}, {"input_ids": ids}]
    if model.config.is_encoder_decoder:
        beside.insert(0, decoder)
    reason = None
    for given in [first | more for first in firsts for more in beside]:
        try:
            outputs(model, [given])
            break
        except Exception as error:
            reason = reason or error
    else:
        raise ValueError(f"runs on no inputs that are tried: {reason and _told(reason)}")
    if "input_ids" not in given:
        return [given]
    mask = torch.ones_like(ids)
    mask[1, slice(0, 3) if "CausalLM" in type(model).__name__ else slice(-3, None)] = 0
    with contextlib.suppress(Exception):
        padded = given | {"attention_mask": mask}
        other = padded | {"input_ids": ids.where(mask == 1, ids % 80 + 7)}
        # a recurrence may carry what padding holds into real tokens, and what attention leaves there is arbitrary
        if all(map(torch.allclose, outputs(model, [padded])[0], outputs(model, [other])[0])):
            return [given, padded]
    return [given]


class OwnSoftmax(TorchDispatchMode):
    """Notes the shapes of each softmax over keys: of four dimensions, or of three with the heads in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if "scaled_dot_product" in name or ("softmax" in name and "log" not in name):
            shape = tuple(args[0].shape)
            if len(shape) > 3 or (len(shape) == 3 and shape[0] > 2):
                self.shapes.append(shape)
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def outputs(model: nn.Module, inputs: list[dict[str, Tensor]]) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    """Floating outputs at real tokens, and the shapes of each softmax that torch computed for attention."""
    found = []
    with OwnSoftmax() as own:
        for given in inputs:
            # what is drawn in a model, such as the noise of an autoencoder
            torch.manual_seed(2)
            out = model(**given)
            found += list(_real(out, given.get("attention_mask")))
    return found, own.shapes


def _real(out: Any, mask: Tensor | None) -> Iterator[Tensor]:
    kept = [x for key, x in out.items() if not any(part in key for part in ("past", "cache", "attentions"))]
    for x in tree_leaves(kept):
        if isinstance(x, Tensor) and x.is_floating_point():
            if mask is None:
                yield x
            elif x.shape[:2] == mask.shape:
                yield x[mask.bool()]


def page(rows: list[dict[str, str]]) -> str:
    rows = sorted({row["model"]: row for row in rows}.values(), key=lambda row: row["model"])
    run, skipped = [row for row in rows if "kind" in row], [row for row in rows if "kind" not in row]
    lines = [
        "# Which models of transformers take a variant",
        "",
        "Made by `tests/support/architectures.py` with "
        f"transformers {transformers.__version__} and torch {torch.__version__}.",
        f"Of {len(rows)} architectures {len(run)} were built small and run: random weights, two sequences, also padded",
        "where the model takes a mask. By `softmax` each has to give what it gives by itself, within",
        f"{TOLERANCE:g} of its largest output, and by `{SECOND}` something else, with no softmax of attention left.",
        "`SILENT` would be a model that gives something else, or stays as it is, without a word.",
        "",
        f"| door | {' | '.join(VERDICTS)} |",
        "|---|" + "---:|" * len(VERDICTS),
    ]
    for door in DOORS:
        # "equal" comes last: "equal, but warned" begins so too
        counted = Counter(next(each for each in reversed(VERDICTS) if row[door].startswith(each)) for row in run)
        lines.append(f"| `{door}` | {' | '.join(str(counted[each]) for each in VERDICTS)} |")
    refused = [[row[door].startswith("refused") for door in DOORS] for row in run]
    alone, nowhere = refused.count([True, False, False]), refused.count([True] * len(DOORS))
    served = f"are served by `register`, whose name the other two doors take; {nowhere} are refused by all three."
    lines += ["", f"Of those that `attach` refuses, {alone} {served}"]
    lines += ["", "## Outcomes", "", f"By {', '.join(f'`{door}`' for door in DOORS)}.", ""]
    outcomes = defaultdict(list)
    reasons = defaultdict(list)
    for row in run:
        cells = [row[door].partition(": ") for door in DOORS]
        outcomes[" · ".join(word for word, _, _ in cells)].append(row["model"])
        for reason in dict.fromkeys(without_names(reason) for _, _, reason in cells if reason):
            reasons[reason].append(row["model"])
    lines += listed(outcomes)
    lines += ["## Reasons", "", "`…` stands for the name of a class.", "", *listed(reasons)]
    unexamined = defaultdict(list)
    for row in skipped:
        unexamined[kind_of_failure(row["skipped"])].append(row["model"])
    parts = len(unexamined.pop("part of other models", []))
    lines += [
        "## Not examined",
        "",
        f"{parts} architectures are parts of other models, without a class of their own.",
        "",
    ]
    lines += listed(unexamined)
    return "\n".join(lines).rstrip("\n")


def without_names(reason: str) -> str:
    """Return the reason without names of classes, numbers of layers and messages, so that models share it."""
    reason = re.sub(r"\b(?!NoneType)[A-Z]\w*[A-Z]\w*\b|\bAttention\b", "…", reason)
    reason = re.sub(r"…(, …)+", "…", reason)
    reason = re.sub(r"\d+ of the \d+ layers", "some of the layers", reason)
    return re.sub(r"input_ids alone \(.*\)", "input_ids alone", reason)


def kind_of_failure(reason: str) -> str:
    """Return the reason without the error that one model raised."""
    kinds = ("part of other models", "not small", "runs on no inputs that are tried", "its own outputs are not finite")
    if library := re.search(r"requires the (\w+) library", reason):
        return f"needs {library[1]}"
    return next((kind for kind in kinds if kind in reason), "no small configuration was accepted")


def listed(groups: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield an item for each group and its models, the largest group first."""
    for words, models in sorted(groups.items(), key=lambda group: -len(group[1])):
        item = f"- **{words}** ({len(models)}): {', '.join(models)}"
        yield from textwrap.wrap(item, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    yield ""


VERDICTS = ("equal", "equal, but warned", "refused", "SILENT", "error")

if __name__ == "__main__":
    main()
