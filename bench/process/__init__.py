"""Child processes: how they start, talk and end, and questions to plugins that only a child imports."""
