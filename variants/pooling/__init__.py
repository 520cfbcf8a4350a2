"""Attention by pooling: global queries and running averages."""
