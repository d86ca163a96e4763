"""What goes wrong in practice? First of all the machine: `examine` says what is ready and what to do where it is not."""
