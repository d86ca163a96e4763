"""How are all casts of a network decided before it runs?"""
