"""What did a real Tensor Core answer? Single instructions, asked one tile at a time, on a GPU that has them."""
