"""What can this learner's own GPU do? A button that runs `labkit gpu --quick` and draws what it measured."""
