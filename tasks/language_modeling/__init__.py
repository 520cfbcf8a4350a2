"""Language modelling: text as bytes or words, predicted one token at a time."""
