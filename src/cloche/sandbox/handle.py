"""What one does with a sandbox: run commands, move files, end it. The same over every driver.

Must never know how the sandbox was made: it speaks to the guest and asks its driver to delete it.
"""

from __future__ import annotations
