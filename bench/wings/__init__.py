"""Products beside the core, each a folder that can be deleted: see README.md."""
