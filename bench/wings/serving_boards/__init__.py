"""The boards of prefill and decoding over batch and length."""
