"""Take, check and send Records of other people."""
