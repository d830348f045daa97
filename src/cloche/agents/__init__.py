"""What tries to do a task: the oracle, the agent that does nothing, and the built-in tool-calling loop.

Agents run on the host and act on a sandbox through its handle. They must never know how the sandbox was
made, nor decide what a failure means for a trial: they raise typed errors, the failure table decides.
"""
