import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.record import Provenance
from attnbench.bench.core.spec import Spec
from attnbench.tasks.contract import DataPlace, Dataset, Recipe, Split
from attnbench.tasks.lra import listops
from attnbench.tasks.lra._listops.grammar import IDS, SYMBOLS, Sizes, generate, grow
from attnbench.tasks.lra.listops import OFFICIAL, ListOps, evaluate, read_tsv, regenerate

Tree = int | tuple[str, list["Tree"]]

SMALL = Sizes(train=300, validation=40, test=60)


def value(tree: Tree) -> int:
    """The oracle: the grammar's meaning by recursion, with the median by its own definition."""
    if isinstance(tree, int):
        return tree
    operator, children = tree
    values = sorted(value(child) for child in children)
    if operator == "MED":
        n = len(values)
        return values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) // 2
    return {"MIN": values[0], "MAX": values[-1], "SM": sum(values) % 10}[operator]


def flat(tree: Tree) -> str:
    return str(tree) if isinstance(tree, int) else f"[{tree[0]} {' '.join(map(flat, tree[1]))} ]"


def bracketed(tree: Tree) -> str:
    """Long Range Arena's own text: every argument wraps what came before in parentheses."""
    if isinstance(tree, int):
        return str(tree)
    text = f"[{tree[0]}"
    for child in tree[1]:
        text = f"( {text} {bracketed(child)} )"
    return f"( {text} ] )"


def parse(ids: np.ndarray) -> Tree:
    """One tree from token ids; raises where anything is left over or missing."""
    symbols = [SYMBOLS[token - 1] for token in ids]

    def node(at: int) -> tuple[Tree, int]:
        if not symbols[at].startswith("["):
            return int(symbols[at]), at + 1
        children, at_child = [], at + 1
        while symbols[at_child] != "]":
            child, at_child = node(at_child)
            children.append(child)
        return (symbols[at][1:], children), at_child + 1

    tree, end = node(0)
    assert end == len(symbols)
    return tree


def depth(tree: Tree) -> int:
    return 1 if isinstance(tree, int) else 1 + max(depth(child) for child in tree[1])


def arities(tree: Tree) -> Counter[int]:
    if isinstance(tree, int):
        return Counter()
    return sum((arities(child) for child in tree[1]), Counter([len(tree[1])]))


TREES = st.recursive(
    st.integers(0, 9),
    lambda child: st.tuples(st.sampled_from(["MIN", "MAX", "MED", "SM"]), st.lists(child, min_size=1, max_size=10)),
    max_leaves=40,
)


@pytest.fixture(scope="module")
def splits() -> dict[str, Split]:
    return generate(SMALL)


@given(TREES)
@settings(deadline=None)
def test_evaluation_agrees_with_recursion_with_and_without_parentheses(tree: Tree) -> None:
    assert evaluate(flat(tree)) == evaluate(bracketed(tree)) == value(tree)
    assert evaluate(bracketed(tree).replace("( ", "(").replace(" )", ")")) == value(tree)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it does not end"),
        ("[MAX ]", "closes no arguments"),
        ("1 ]", "follows its end"),
        ("[FIRST 1 2 ]", r"\[MIN, \[MAX, \[MED, \[SM, got '\[FIRST'"),
        ("[MAX 12 ]", "got '12'"),
        ("( [MAX 1 ]", "a parenthesis does not end"),
        (") 1 (", "closes nothing"),
    ],
)
def test_what_is_no_expression_is_named(text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        evaluate(text)


def test_every_generated_label_is_the_value_of_its_expression(splits: dict[str, Split]) -> None:
    for split in (splits["test"], splits["validation"]):
        for index in range(len(split)):
            tree = parse(split.sequence(index))
            assert value(tree) == split.labels[index] == evaluate(flat(tree))


def test_every_expression_keeps_to_the_grammar(splits: dict[str, Split]) -> None:
    seen: Counter[int] = Counter()
    for split in (splits["test"], splits["validation"]):
        for index in range(len(split)):
            ids = split.sequence(index)
            tree = parse(ids)
            assert 501 <= len(ids) <= 1999 and depth(tree) <= 10
            seen += arities(tree)
    assert set(seen) == set(range(2, 11))
    # uniform arity, checked against its binomial spread at four standard deviations (which acceptance bends little)
    shares = np.array([seen[n] for n in range(2, 11)]) / seen.total()
    assert np.abs(shares - 1 / 9).max() < 0.012


def test_sizes_are_exact_and_no_expression_is_in_two_splits(splits: dict[str, Split]) -> None:
    assert {name: len(split) for name, split in splits.items()} == {"train": 300, "validation": 40, "test": 60}
    every = [split.sequence(index).tobytes() for split in splits.values() for index in range(len(split))]
    assert len(set(every)) == 400


def test_membership_follows_from_the_hash_of_the_content(splits: dict[str, Split]) -> None:
    def hashes(name: str) -> list[str]:
        split = splits[name]
        return [hashlib.sha256(split.sequence(i).astype(np.uint8).tobytes()).hexdigest() for i in range(len(split))]

    assert max(hashes("test")) < min(hashes("validation")) <= max(hashes("validation")) < min(hashes("train"))


def test_generation_follows_the_plain_procedure_in_distribution() -> None:
    """The oracle grows one tree at a time by recursion; 8.2 % of trees are accepted, 1,034 tokens long on average."""
    draw = random.Random(0)

    def length(level: int) -> int:
        if level < 10 and draw.random() <= 0.25:
            return 2 + sum(length(level + 1) for _ in range(draw.randint(2, 10)))
        return 1

    plain = np.array([n for n in (length(1) for _ in range(12_000)) if 500 < n < 2000])
    grown = [grow(np.random.PCG64(seed), 20_000, 500, 2000) for seed in range(3)]
    lengths = np.concatenate([np.diff(starts) for _, starts, _ in grown])
    labels = np.concatenate([values for _, _, values in grown])
    share = len(lengths) / 60_000
    assert abs(share - len(plain) / 12_000) < 4 * (share / 12_000) ** 0.5
    assert abs(lengths.mean() - plain.mean()) < 4 * plain.std() / len(plain) ** 0.5
    assert abs(np.median(lengths) - np.median(plain)) < 4 * 1.3 * plain.std() / len(plain) ** 0.5
    published = [0.172, 0.088, 0.077, 0.081, 0.091, 0.085, 0.081, 0.076, 0.082, 0.168]
    assert np.abs(np.bincount(labels) / len(labels) - published).max() < 4 * (0.17 / len(labels)) ** 0.5 + 0.004
    roots = np.bincount(np.concatenate([tokens[starts[:-1]] for tokens, starts, _ in grown]), minlength=16)
    assert np.abs(roots[11:15] / roots.sum() - 0.25).max() < 4 * (0.1875 / roots.sum()) ** 0.5
    assert roots[:11].sum() == roots[15] == 0


def test_ids_are_fixed_and_zero_is_padding_alone(splits: dict[str, Split]) -> None:
    expected = {**{str(d): d + 1 for d in range(10)}, "[MIN": 11, "[MAX": 12, "[MED": 13, "[SM": 14, "]": 15}
    assert expected == IDS and ListOps().problem().vocabulary == 16
    assert set(np.unique(splits["train"].tokens).tolist()) == set(range(1, 16))


def test_data_are_the_same_in_every_process_and_under_every_hash_seed(splits: dict[str, Split]) -> None:
    """Pinned: were it to change, every record of the task would be about other data under the same name."""
    code = (
        "import hashlib; from attnbench.tasks.lra._listops.grammar import *; "
        "s = generate(Sizes(train=300, validation=40, test=60)); "
        "print(hashlib.sha256(b''.join(s[n].tokens.tobytes() for n in sorted(s))).hexdigest(), list(IDS.items()))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout
    tokens = b"".join(splits[name].tokens.tobytes() for name in sorted(splits))
    assert said == f"{hashlib.sha256(tokens).hexdigest()} {list(IDS.items())}\n"
    assert hashlib.sha256(tokens).hexdigest() == "2387d2dd40c987ea2f6f4854e63900f65ee6674a7aae553641ed26400fa3c6d4"


def test_another_seed_gives_other_expressions(splits: dict[str, Split]) -> None:
    other = generate(Sizes(train=20, validation=2, test=2), seed=1)["train"].sequence(0)
    every = {splits[name].sequence(i).tobytes() for name in splits for i in range(len(splits[name]))}
    assert other.tobytes() not in every


def write_official(root: Path, rows: list[tuple[str, int]], ending: str = "\n") -> None:
    folder = root / "listops-1000"
    folder.mkdir(parents=True)
    for name in OFFICIAL.values():
        lines = ["Source\tTarget", *(f"{text}\t{label}" for text, label in rows)]
        (folder / name).write_text(ending.join(lines) + ending, encoding="utf-8", newline="")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_the_official_files_give_the_same_ids_without_parentheses(
    place: DataPlace, splits: dict[str, Split], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listops, "OFFICIAL_COUNTS", dict.fromkeys(listops.OFFICIAL_COUNTS, 30))
    split = splits["test"]
    rows = [(bracketed(parse(split.sequence(i))), int(split.labels[i])) for i in range(30)]
    write_official(place.root, rows, ending)
    task = ListOps()
    dataset = task.load(place, task.recipe(Spec("pt-2x64")), 0, "validation")
    assert dataset.provenance.fidelity == "official" and len(dataset.provenance.files) == 3
    read = dataset.test.split
    assert [read.sequence(i).tolist() for i in range(30)] == [split.sequence(i).tolist() for i in range(30)]
    assert read.labels.tolist() == split.labels[:30].tolist()
    assert task.availability(place)[0].ready


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (("( ( ( [MAX 1 ) 2 ) ] )", 1), "line 2: the expression's value is 2, not 1"),
        (("( ( ( [AVG 1 ) 2 ) ] )", 1), "line 2: expected an expression"),
        (("( ( ( [MAX 1 ) 2 ) ] )", 12), "line 2: expected an expression"),
        (("", 1), "line 2: expected an expression"),
    ],
)
def test_a_line_that_is_no_example_is_named(tmp_path: Path, row: tuple[str, int], complaint: str) -> None:
    write_official(tmp_path, [row])
    with pytest.raises(DataError, match=complaint):
        read_tsv(tmp_path / "listops-1000" / "basic_val.tsv")


def test_a_file_without_its_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("[MAX 1 2 ]\t2\n")
    with pytest.raises(DataError, match="expected the header"):
        read_tsv(tmp_path / "x.tsv")


def test_smoke_generates_no_more_than_it_needs_and_says_so(place: DataPlace) -> None:
    task = ListOps()
    recipe = task.recipe(Spec("smoke"))
    dataset = task.load(place, recipe, 0, "validation")
    assert dataset.provenance.counts == {"train": 256, "validation": 32, "test": 64}
    assert dataset.provenance.fidelity == "regenerated" and "256/32/64" in dataset.provenance.source
    assert "352 expressions instead of 100,000" in dataset.provenance.notes
    assert "expressions of 33 to 127 tokens instead of 501 to 1,999" in dataset.provenance.notes
    lengths = np.diff(dataset.train.split.starts)
    assert lengths.min() >= 33 and lengths.max() <= 127, "none is cut by the preset's length"


def test_examples_scale_the_splits(place: DataPlace) -> None:
    assert ListOps().sizes(Recipe(length=2048)) == Sizes() and Sizes().total == 100_000
    assert ListOps(examples=1_000).sizes(Recipe(length=2000)) == Sizes(train=960, validation=20, test=20)


def test_heuristics_reach_the_plateaus_on_which_published_scores_lie(place: DataPlace) -> None:
    """Majority 17.3, root operator 36.1, root operator and literals 47.0; at 4,000 expressions 0.03 is four sigma."""
    splits = regenerate(Sizes(train=3_000, validation=2, test=4_000), place).splits
    train, test = splits["train"].all(), splits["test"].all()
    provenance = Provenance(source="x", fidelity="regenerated")
    dataset = Dataset(train=train, validation=test, test=test, provenance=provenance)
    share = {
        n: float((predict(dataset, Recipe(length=2000)) == test.labels).mean())
        for n, predict in ListOps.baselines.items()
    }
    assert abs(share["majority"] - 0.173) < 0.03
    assert abs(share["root-operator"] - 0.361) < 0.03
    assert 0.45 < share["root-and-literals"] < 0.53


def test_only_as_many_expressions_as_the_official_ones_are_official(place: DataPlace, splits: dict[str, Split]) -> None:
    split = splits["test"]
    write_official(place.root, [(bracketed(parse(split.sequence(i))), int(split.labels[i])) for i in range(30)])
    task = ListOps()
    provenance = task.load(place, task.recipe(Spec("pt-2x64")), 0, "validation").provenance
    assert provenance.fidelity == "surrogate" and "30/30/30 expressions instead of" in provenance.notes[0]
