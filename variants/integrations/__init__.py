"""Adapters to models of other libraries; each imports its library only when it is asked for by name."""
