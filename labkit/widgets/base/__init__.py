"""What all widgets share: messages, assets, still pictures, numbers in words."""
