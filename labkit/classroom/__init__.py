"""What does a teacher need around the grader? Handing out, giving back, the school's tables, and a room of learners.

Nothing imports this room, and a learner's lab does not have it.
"""
