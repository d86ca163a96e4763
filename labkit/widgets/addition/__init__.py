"""How are two floating-point numbers added? A player that shows every step."""
