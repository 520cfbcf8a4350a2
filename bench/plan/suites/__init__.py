"""Built-in suites, as TOML."""
