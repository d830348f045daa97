# The same few scripts by hand and in CI.
.PHONY: demo test test-vm fuzz setup check bench soak clean

demo:  ## set everything up and run the shipped tasks; ends with the result table
	@scripts/setup demo
	@scripts/demo

test:  ## everything the project is tested by
	@scripts/setup test
	@scripts/check
	@scripts/test

test-vm:  ## the sandbox and escape suites under pure cgroup v2, in an emulated machine
	@scripts/setup vm
	@scripts/test-vm

fuzz:  ## the C parsers, ten minutes each
	@scripts/setup test
	@scripts/fuzz

setup:
	@scripts/setup test

check:  ## style, types, layers
	@scripts/check

bench:  ## the figures of BENCHMARKS.md
	@scripts/setup bench
	@scripts/bench

clean:
	rm -rf .venv build dist src/cloche/_guest .mypy_cache .ruff_cache .pytest_cache .hypothesis
