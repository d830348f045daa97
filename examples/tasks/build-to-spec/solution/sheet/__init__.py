"""A small spreadsheet."""
