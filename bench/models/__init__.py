"""The networks that a variant sits in, and decoding."""
