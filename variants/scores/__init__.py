"""Scoring functions: how a query meets a key."""
