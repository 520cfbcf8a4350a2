"""Audit layers and models of anybody, as they are."""
