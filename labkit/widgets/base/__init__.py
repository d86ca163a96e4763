"""What do all widgets share? Messages in turn, assets from the package, still pictures, numbers in words."""
