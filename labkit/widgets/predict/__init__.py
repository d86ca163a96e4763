"""What do you expect? A question that is answered before the answer is seen."""
