"""What does autocast do to a model, operation by operation?"""
