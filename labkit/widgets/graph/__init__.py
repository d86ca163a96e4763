"""The passes that decide all casts of a network before it runs."""
