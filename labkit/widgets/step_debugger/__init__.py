"""What happens in one training step? Walk through it, tensor by tensor."""
