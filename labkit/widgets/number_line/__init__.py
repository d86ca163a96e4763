"""Where do the numbers of a format lie, and where does a real number land?"""
