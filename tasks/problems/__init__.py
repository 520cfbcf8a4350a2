"""Kinds of problem beside classification: language modelling and translation."""
