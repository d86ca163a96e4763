"""What is left of autocast when everything it decides has been decided? A trace, passes over it, and a graph to run."""
