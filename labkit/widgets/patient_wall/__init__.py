"""What goes wrong in practice, and how does it look? A card for each fault."""
