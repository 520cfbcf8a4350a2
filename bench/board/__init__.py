"""Figures become Boards and reports."""
