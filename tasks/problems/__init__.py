"""Kinds of problem beside classification: language modeling and token prediction."""
