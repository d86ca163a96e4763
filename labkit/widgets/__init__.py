"""How does a learner touch it? Widgets: their state is plain Python, their picture is drawn in the browser."""
