"""The environment layer: sandboxes, commands, files, images, network policy and leases.

It knows no agent, no model and no task, and must never import what does.
"""
