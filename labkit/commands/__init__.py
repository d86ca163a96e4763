"""The commands that belong to no other room: a file each, with `run(arguments)` and `add_arguments(parser)`."""
