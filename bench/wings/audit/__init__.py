"""The gate for layers and models of others, as they are."""
