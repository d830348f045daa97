"""What makes sandboxes, one module per substrate. Nothing outside a driver may name its substrate."""
