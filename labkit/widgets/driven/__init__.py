"""What do the widgets that train live share? A thread, and frames at the pace of the browser."""
