"""Kinds of problem beside classification: language modeling and translation."""
