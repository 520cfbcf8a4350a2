"""How long a translation may become."""

import pytest
import torch

from attnbench.bench.wings.translation.decoding import limits
from attnbench.bench.wings.translation.model import Transformer
from attnbench.tasks.translation.problem import Translation, TranslationRecipe
from attnbench.variants import build

RECIPE = TranslationRecipe(layers=1, width=16, heads=2, feed_forward=32, vocabulary=24, length=206)


@pytest.mark.parametrize(("sentences", "most"), [(1, [57, 53, 206]), (4, [206, 203, 206])])
def test_each_sentence_of_a_source_may_become_fifty_tokens_longer_as_far_as_the_model_goes(sentences, most):
    problem = Translation(vocabulary=2**16, sentences=sentences)
    model = Transformer(problem, RECIPE, lambda shape: build("softmax", shape), 0)
    assert limits(model, torch.tensor([[7], [3], [200]])).tolist() == most
