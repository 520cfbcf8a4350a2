"""Linear attention by feature maps."""
