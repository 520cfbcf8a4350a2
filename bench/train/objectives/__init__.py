"""Kinds of problem: what training, timing and judging must know of each, behind one seam."""
