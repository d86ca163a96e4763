"""What all widgets share: messages, assets, still pictures, numbers as text."""
