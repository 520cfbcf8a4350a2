"""Values of the flow: Spec, Cell, Record, metrics, registry, errors."""
