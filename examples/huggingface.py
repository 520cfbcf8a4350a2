"""Swap the attention of a Hugging Face model: train a tiny Llama, convert it to 1.5-entmax, fine-tune, and compare.

    python examples/huggingface.py            # needs pip install '.[transformers]'; seconds on two CPU cores

`attnbench convert PATH --to entmax15` does the same to a checkpoint of yours, with Records and boards.
"""

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from attnbench.variants.integrations.transformers import attach

LENGTH, BATCH = 64, 16


def text_of(path: str | None) -> torch.Tensor:
    """The bytes of a file, or sentences drawn from a small grammar."""
    if path:
        return torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8).long()
    draw = torch.Generator().manual_seed(0)
    kinds = (
        ("the", "a", "every"),
        ("cat", "king", "ship", "river"),
        ("sees", "finds", "leaves"),
        ("now", "again", "here"),
    )
    words = []
    for _ in range(4_000):
        one, verb, two, when = (int(torch.randint(n, (1,), generator=draw)) for n in (12, 3, 12, 3))
        parts = [
            kinds[0][one % 3],
            kinds[1][one % 4],
            kinds[2][verb],
            kinds[0][two % 3],
            kinds[1][two % 4],
            kinds[3][when],
        ]
        words.append(" ".join(parts) + ".\n")
    return torch.frombuffer(bytearray("".join(words).encode()), dtype=torch.uint8).long()


def train(model: torch.nn.Module, text: torch.Tensor, steps: int, rate: float) -> None:
    draw = torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH, (BATCH,), generator=draw)
        ids = torch.stack([text[start : start + LENGTH] for start in starts.tolist()])
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.eval()


@torch.no_grad()
def perplexity(model: torch.nn.Module, text: torch.Tensor) -> float:
    ids = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)[:64]
    return float(model(input_ids=ids, labels=ids, use_cache=False).loss.exp())


def main(path: str | None = None, steps: int = 150) -> dict[str, float]:
    torch.manual_seed(0)
    text = text_of(path)
    held_out, text = text[-8_192:], text[:-8_192]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    train(model, text, steps, 3e-3)
    found = {"softmax, as trained": perplexity(model, held_out)}
    # the weights stay as they are: a map with zeros reads scores that were learned for softmax
    for temperature in (1.0, 1.5):
        attach(model, "entmax15", temperature=temperature)
        found[f"entmax15, zero-shot, temperature {temperature}"] = perplexity(model, held_out)
    attach(model, "entmax15")
    train(model, text, 100, 1e-3)
    found["entmax15, after 100 steps"] = perplexity(model, held_out)
    for name, value in found.items():
        print(f"{name:40s} perplexity {value:8.3f}")
    return found


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
