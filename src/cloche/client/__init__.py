"""The Python SDK: the same sandboxes from a service or embedded in this process.

    from cloche import Sandbox                     # or AsyncSandbox, the same methods to await

    with Sandbox.create("debian:12", cpus=1, memory="512m") as box:
        print(box.run("echo hello").stdout.text)

Where sandboxes come from is decided by the configuration (docs/configuration.md), or by ``service=``. The
errors are those of ``cloche.core.errors``, whether they were raised here or by a service::

    ClocheError
     ├── UsageError            the request cannot be; sending it again cannot help
     │    ├── InvalidInput     a value is wrong; ``where`` has the field's path
     │    ├── NotFound         nothing of that name is there, or it is not yours
     │    └── Conflict         it is not in a state for that, or a key stands for another request
     ├── EnvironmentUnusable   the machine cannot do it; the hint says what to change
     ├── PlanRefused           the driver cannot do it: names the capability
     └── InfraError            something broke that is nobody's fault here
          ├── SandboxLost      the sandbox ended before its work did
          └── ImageError       an image could not be made or found

Must never clean up in ``__del__``, and never repeat a request that could act twice.
"""

from __future__ import annotations

from cloche.client.aio import AsyncSandbox
from cloche.client.files import AsyncFiles
from cloche.client.pool import close
from cloche.client.process import AsyncProcess
from cloche.client.request import Options, request
from cloche.client.sync import Files, Process, Sandbox
from cloche.client.target import Service

__all__ = [
    "AsyncFiles",
    "AsyncProcess",
    "AsyncSandbox",
    "Files",
    "Options",
    "Process",
    "Sandbox",
    "Service",
    "close",
    "request",
]
