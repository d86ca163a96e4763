"""How did recorded runs do? A figure, a sentence, a table."""
