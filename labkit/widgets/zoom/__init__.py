"""From a network to the sixteen bits of one of its gradients."""
