"""Translation: parallel text in subwords, and gold word alignments."""
