"""Language modeling: text as bytes or subwords, predicted one token at a time."""
