"""One block of a Tensor Core's sum."""
