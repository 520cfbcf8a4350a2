"""Tasks: one family per file or folder, all behind the contract of `contract.py`."""
