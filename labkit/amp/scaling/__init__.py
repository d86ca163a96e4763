"""How do small gradients survive? The scaler as state -> next state, six frameworks' rules, unscaling, diagnosis."""
