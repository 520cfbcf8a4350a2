"""The harness: from a selection to cells, from cells to records, from records to a board."""
