"""The command line: `main.py` runs it, and each command is a file."""
