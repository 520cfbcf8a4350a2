"""Look into a trained model: attention maps, generated text."""
