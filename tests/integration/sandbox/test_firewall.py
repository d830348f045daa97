"""The doctor sees a firewall that would keep public networks from reaching anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = "from cloche.sandbox.native.firewall import blocked_by; print(blocked_by())"


def asked_after(*rules: str) -> str:
    """Apply rules in a network namespace of its own and ask there."""
    lines = [f"nft {rule}" for rule in rules]
    script = " && ".join([*[f"{line}" for line in lines], 'exec "$@"'])
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


@pytest.mark.fault("host-firewall-drops-forwarded-packets")
def test_a_policy_of_drop_is_seen() -> None:
    forward = "'{ type filter hook forward priority filter; policy drop; }'"
    assert (
        asked_after("add table ip filter", f"add chain ip filter FORWARD {forward}")
        == "['ip filter FORWARD']"
    )


def test_other_chains_do_not_matter() -> None:
    assert asked_after() == "[]"
    others = (
        "add table ip filter",
        "add chain ip filter INPUT '{ type filter hook input priority filter; policy drop; }'",
        "add chain ip filter FORWARD '{ type filter hook forward priority filter; policy accept; }'",
        "add table inet cloche_test",
        "add chain inet cloche_test forward '{ type filter hook forward priority filter; policy drop; }'",
    )
    assert asked_after(*others) == "[]"
