"""Tools for teachers around the grader: release, feedback, gradebooks, and a classroom on one machine."""
