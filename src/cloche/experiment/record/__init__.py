"""The record of an experiment on disk: Harbor's tree, and beside it what is ours. See docs/record.md.

Must never hold a credential, and never add a key of ours to a file whose shape is Harbor's.
"""
