"""Tools for teachers: releases, feedback, gradebooks, and a classroom on one machine."""
