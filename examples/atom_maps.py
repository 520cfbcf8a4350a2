"""Swap the attention of a pretrained model whose attention is its answer: which atom of a product was which before.

    pip install --no-deps --target rxn rxnmapper==0.4.3       # MIT licence; 3 MB, of which only data are read
    python examples/atom_maps.py rxn                          # needs attnbench[transformers]; a minute

RXNMapper (Schwaller et al. 2021, Science Advances 7, eabe4166) is an ALBERT of 0.77 million parameters that has learned
reactions as a masked language model. One head, the sixth of the eleventh layer, looks from atoms to what they were, and
a greedy walk over its weights maps them. Here that head is read by softmax, and then by maps that it was not trained
for: 1.5-entmax, sparsemax and local attention, with the weights as they are.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AlbertConfig, AlbertModel

from attnbench.variants.integrations.transformers import attach

MODEL = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
LAYER, HEAD, BOOST = 10, 5, 90.0
"""The head of the package that maps, and by how much neighbours of mapped atoms gain."""

TOKEN = re.compile(r">>|\[[^\]]*\]|Br|Cl|%\d\d|.")
TEMPERATURES = (1.0, 1.4, 2.0, 2.8)
CANDIDATES = [
    ("softmax", 1.0), *(("entmax15", each) for each in TEMPERATURES), *(("sparsemax", each) for each in TEMPERATURES),
    ("local[flange=16,query_block=16]", 1.0),
]  # fmt: skip
REACTIONS = {
    "Williamson ether": "CC[O-].BrCc1ccccc1>>CCOCc1ccccc1",
    "Fischer ester": "CC(=O)O.OCCc1ccccc1>>CC(=O)OCCc1ccccc1",
    "amide": "CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1",
    "Suzuki": "OB(O)c1ccccc1.Cc1ccc(Br)cc1>>Cc1ccc(-c2ccccc2)cc1",
    "aspirin": "CC(=O)OC(C)=O.O=C(O)c1ccccc1O>>CC(=O)Oc1ccccc1C(=O)O",
    "paracetamol": "CC(=O)OC(C)=O.Nc1ccc(O)cc1>>CC(=O)Nc1ccc(O)cc1",
    "Diels-Alder": "C=CC=C.C=CC(=O)OC>>COC(=O)C1CC=CCC1",
    "aldol condensation": "O=Cc1ccccc1.CC(C)=O>>CC(=O)C=Cc1ccccc1",
    "nitration": "Cc1ccccc1.O[N+](=O)[O-]>>Cc1ccc([N+](=O)[O-])cc1",
    "reductive amination": "O=Cc1ccccc1.NC1CCCCC1>>c1ccc(CNC2CCCCC2)cc1",
    "reduction": "CC(=O)c1ccccc1>>CC(O)c1ccccc1",
    "Wittig": "C=P(c1ccccc1)(c1ccccc1)c1ccccc1.O=C1CCCCC1>>C=C1CCCCC1",
    "Boc protection": "CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.NCc1ccccc1>>CC(C)(C)OC(=O)NCc1ccccc1",
    "Boc removal": "CC(C)(C)OC(=O)NCCc1ccccc1>>NCCc1ccccc1",
    "Grignard": "C[Mg]Br.O=C(C)c1ccccc1>>CC(C)(O)c1ccccc1",
    "Buchwald-Hartwig": "Brc1ccccc1.C1COCCN1>>c1ccc(N2CCOCC2)cc1",
    "aromatic substitution": "O=[N+]([O-])c1ccc(F)cc1.C1CCNCC1>>O=[N+]([O-])c1ccc(N2CCCCC2)cc1",
    "sulfonamide": "Cc1ccc(S(=O)(=O)Cl)cc1.CCCN>>CCCNS(=O)(=O)c1ccc(C)cc1",
    "Heck": "Ic1ccccc1.C=CC(=O)OC>>COC(=O)C=Cc1ccccc1",
    "azide and alkyne": "C#Cc1ccccc1.[N-]=[N+]=NCc1ccccc1>>c1ccc(Cn2cc(-c3ccccc3)nn2)cc1",
    "Friedel-Crafts": "CC(=O)Cl.COc1ccccc1>>COc1ccc(C(C)=O)cc1",
    "hydrolysis": "COC(=O)c1ccc(Cl)cc1.O>>O=C(O)c1ccc(Cl)cc1",
    "epoxide opening": "C1OC1C.NCc1ccccc1>>CC(O)CNCc1ccccc1",
    "oxidation": "OCc1ccccc1>>O=Cc1ccccc1",
}
"""Textbook reactions, written down for this example."""


class Reaction:
    """Tokens of a reaction, and its atoms: their tokens, elements, sides and bonds."""

    def __init__(self, smiles: str):
        self.tokens = ["[CLS]", *TOKEN.findall(smiles), "[SEP]"]
        self.atoms = [at for at, token in enumerate(self.tokens[1:-1], 1) if token[0].isalpha() or token[0] == "["]
        # case is aromaticity, and a bracket may hold an isotope, hydrogens and a charge
        named = [re.match(r"\[?\d*([A-Z][a-z]?|[a-z]+)", self.tokens[at]) for at in self.atoms]
        self.elements = np.array([found[1].title() if found else "" for found in named])
        self.is_product = np.array(self.atoms) > self.tokens.index(">>")
        self.bonds = np.zeros((len(self.atoms), len(self.atoms)), dtype=bool)
        for one, other in self._bonds():
            self.bonds[one, other] = self.bonds[other, one] = True

    def _bonds(self) -> Iterator[tuple[int, int]]:
        """Pairs of bonded atoms: neighbours in a chain, after a branch closes, and at a ring's digits."""
        number, last, branches, rings = -1, -1, [], dict[str, int]()
        for at, token in enumerate(self.tokens):
            if at in self.atoms:
                number += 1
                if last >= 0:
                    yield last, number
                last = number
            elif token == "(":
                branches.append(last)
            elif token == ")":
                last = branches.pop()
            elif token in (".", "~", ">>"):
                last = -1
            elif token[-1].isdigit():
                if token in rings:
                    yield rings.pop(token), last
                else:
                    rings[token] = last


def load(folder: Path) -> tuple[AlbertModel, dict[str, int]]:
    """The pretrained model with its own attention, and the ids of its tokens."""
    place = folder / MODEL
    if not place.is_dir():
        raise SystemExit(f"no {place}; pip install --no-deps --target {folder} rxnmapper==0.4.3")
    named = json.loads((place / "config.json").read_text())
    config = AlbertConfig(**{key: value for key, value in named.items() if hasattr(AlbertConfig(), key)})
    model = AlbertModel._from_config(config, attn_implementation="eager").eval()
    # a pickle, of which torch reads tensors alone
    weights = torch.load(place / "pytorch_model.bin", map_location="cpu", weights_only=True)
    kept = {key.removeprefix("albert."): value for key, value in weights.items() if key.startswith("albert.")}
    lacking = model.load_state_dict(kept, strict=False).missing_keys
    assert not lacking, lacking
    tokens = (place / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return model, {token: at for at, token in enumerate(tokens)}


@torch.no_grad()
def weights_of(model: AlbertModel, ids: dict[str, int], reaction: Reaction) -> np.ndarray:
    """The weights of the mapping head, (tokens, tokens)."""
    given = torch.tensor([[ids.get(token, ids["[UNK]"]) for token in reaction.tokens]])
    return model(given, output_attentions=True).attentions[LAYER][0, HEAD].double().numpy()


def atom_map(reaction: Reaction, weights: np.ndarray) -> tuple[list[int], float]:
    """The atom of the reactants that each atom of the product was, -1 for unknown, and the confidence of the whole.

    Weights in both directions are added between atoms of one element, and each product atom's are normalised. The
    surest pair is taken; both of its atoms are then spent, and their neighbours gain. Confidences are multiplied.
    """
    atoms, product = np.array(reaction.atoms), reaction.is_product
    both = (weights + weights.T)[np.ix_(atoms[product], atoms[~product])]
    both = both * (reaction.elements[product][:, None] == reaction.elements[~product][None, :])
    before, after = reaction.bonds[np.ix_(~product, ~product)], reaction.bonds[np.ix_(product, product)]
    gain, found, confidence = np.ones_like(both), [-1] * len(both), 1.0
    for _ in found:
        scores = both * gain
        sums = scores.sum(1, keepdims=True)
        scores = np.divide(scores, sums, out=np.zeros_like(scores), where=sums > 0)
        one, other = np.unravel_index(scores.argmax(), scores.shape)
        if np.isclose(scores[one, other], 0.0):
            break
        found[int(one)] = int(other)
        confidence *= float(scores[one, other])
        gain[np.ix_(after[one], before[other])] *= BOOST
        gain[one] = 0.0
        gain[:, other] = 0.0
    return found, confidence


def measure(model: AlbertModel, ids: dict[str, int], reactions: dict[str, str]) -> list[dict[str, object]]:
    """A row for each candidate: what it keeps of the maps that the model gives by itself."""
    read = [Reaction(smiles) for smiles in reactions.values()]
    own = [weights_of(model, ids, reaction) for reaction in read]
    expected = [atom_map(reaction, weights)[0] for reaction, weights in zip(read, own, strict=True)]
    rows = []
    for variant, temperature in CANDIDATES:
        attach(model, variant, temperature=temperature)
        given = [weights_of(model, ids, reaction) for reaction in read]
        maps = [atom_map(reaction, weights) for reaction, weights in zip(read, given, strict=True)]
        kept = [
            [a == b for a, b in zip(found, one, strict=True)] for (found, _), one in zip(maps, expected, strict=True)
        ]
        atoms = sum(map(len, kept))
        rows.append(
            {
                "attention": variant, "temperature": temperature,
                "atoms kept": sum(map(sum, kept)) / atoms, "reactions kept": sum(map(all, kept)) / len(kept),
                "unmapped": sum(found.count(-1) for found, _ in maps) / atoms,
                "confidence": float(np.mean([confidence for _, confidence in maps])),
                "zeros": float(np.mean(np.concatenate([(weights == 0).ravel() for weights in given]))),
                "largest change": max(float(abs(a - b).max()) for a, b in zip(given, own, strict=True)),
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where rxnmapper 0.4.3 lies")
    rows = measure(*load(parser.parse_args().folder), REACTIONS)
    print("|", " | ".join(rows[0]), "|")
    print("|---|" + "---:|" * (len(rows[0]) - 1))
    for row in rows:
        name, temperature, *shares, change = row.values()
        print(f"| {name} | {temperature:g} |", " | ".join(f"{share:.1%}" for share in shares), f"| {change:.1g} |")


if __name__ == "__main__":
    main()
