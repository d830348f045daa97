"""Tools to test with, for this project's suite and yours. The product itself must never import them."""
