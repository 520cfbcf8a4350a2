"""`attnbench choose`: the variants that meet some limits."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cli.command import command
from ...cli.leaderboard import show
from ...cli.options import FILTERS, Columns, Format, Mode, Notes, ShownAs, sharing
from ...cli.output import print_rows, say, warn
from ...core.errors import SelectionError

if TYPE_CHECKING:
    from ...score.cost import Mode as CostMode

Size = Annotated[int | None, typer.Option(min=1, help="Of a model that has no name here.")]


@command("Read", "attnbench choose --model llama-3-8b --context 32k --on h100")
@sharing(FILTERS)
def choose(
    length: Annotated[
        str | None,
        typer.Option(
            "--length", "--context", help="Tokens per sequence; 16k is 16,384. Without it, the lengths that were timed."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Estimate prefill, token, cache and batch in this model, or that of a config.json."
        ),
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Beside --model: a card such as h100, or a machine of Records.")
    ] = None,
    layers: Size = None,
    width: Size = None,
    heads: Size = None,
    kv_heads: Size = None,
    head_dim: Size = None,
    feed_forward: Annotated[
        int | None, typer.Option(min=1, help="Width of its gated feed-forward (default: 4 × --width).")
    ] = None,
    vocabulary: Annotated[int | None, typer.Option(min=1, help="Words of its tables (default: none).")] = None,
    weight_bytes: Annotated[
        float | None, typer.Option(min=0.1, max=8, help="Bytes of a weight (default: 2 on a card, 4 on a processor).")
    ] = None,
    variants: Annotated[
        str | None, typer.Option(help="Beside --model: these attentions, such as `mla,window//softmax`.")
    ] = None,
    back_test: Annotated[
        bool, typer.Option("--back-test", help="Show how far such estimates are from what was measured.")
    ] = False,
    mode: Annotated[Mode, typer.Option(help="Operation whose time counts.")] = Mode.STEP,
    memory: Annotated[
        str | None, typer.Option(help="Memory limit of a training step, or of decoding one sequence, such as 40GB.")
    ] = None,
    notes: Notes = False,
    columns: Columns = "",
    format: ShownAs = Format.RICH,
    **filters: Any,
) -> None:
    """Rank by cost the variants that meet a length, memory and quality limit; list the rest with the reason."""
    from .choose import choose as board_of
    from .choose import lengths_to_choose_at
    from .estimate import quantile
    from .model_board import back_test as errors_of
    from .model_board import choose_for_model
    from .models import model_of

    named = {
        "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": feed_forward,
        "vocab_size": vocabulary,
    }  # fmt: skip
    sized = any(value is not None for value in named.values())
    if back_test:
        rows: list[tuple[str, ...]] = [("timings, guessed from others", "trials", "median", "90 %")]
        for name, errors in sorted(errors_of(filters["results"], notice=warn).items()):
            rows.append((name, f"{len(errors):,}", *(f"×÷{quantile(errors, level):.2f}" for level in (0.5, 0.9))))
        print_rows(rows)
        return
    if model is not None or sized:
        if length is None or on is None:
            raise SelectionError("expected --context and --on beside a model, such as `--context 32k --on h100`")
        if memory is not None or mode is not Mode.STEP or (sized and model):
            other = "the sizes of a model" if sized and model else "--memory and --mode"
            raise SelectionError(f"expected a model, or {other}; a model's memory is that of --on")
        shape = model_of(model, **named)
        board = choose_for_model(
            model or shape, length, on, variants=variants, weight_bytes=weight_bytes, notice=warn, **filters
        )
        show([board], format, all_notes=notes, columns=columns, command="choose")
        return
    if on or variants or weight_bytes:
        raise SelectionError("expected --model NAME, or --layers, --width and --heads, beside --on and --variants")
    if length is None:
        results = filters.pop("results")
        # a margin is no filter
        filters.pop("margin")
        _say_lengths(lengths_to_choose_at(results, notice=warn, **filters), mode.value, results)
        return
    board = board_of(length, mode=mode.value, memory=memory, notice=warn, **filters)
    show([board], format, all_notes=notes, columns=columns, command="choose")


def _say_lengths(timed: Mapping[CostMode, Sequence[int]], asked: CostMode, results: Path) -> None:
    """Prints the lengths that `choose` can answer for, and a command that asks for one of them."""
    from ...board.length_board import MODES
    from .choose import command_for_times

    if not timed:
        say(f"Nothing in {results} was timed. Time some variants over lengths first:")
        say(f"  {command_for_times(asked, '256..4096', results)}")
        return
    say(f"`attnbench choose` can answer from {results}:")
    for mode, lengths in timed.items():
        say(f"  {MODES[mode].one} at {', '.join(f'{length:,}' for length in lengths)} tokens")
    mode = asked if asked in timed else next(iter(timed))
    words = "" if mode == "step" else f" --mode {mode}"
    command = f"attnbench choose --length {timed[mode][-1]}{words} --results {shlex.quote(str(results))}"
    say(f"Ask for one of them: `{command}`; --memory 8GiB and --margin 2 narrow the answer.")
