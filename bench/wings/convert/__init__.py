"""Convert a model of Hugging Face, and measure it before and after."""
