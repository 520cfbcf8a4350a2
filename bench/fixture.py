"""Fixture."""
