"""What does a Tensor Core do with one block of products?"""
