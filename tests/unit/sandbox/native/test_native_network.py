"""Addresses and rules of public networks."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from cloche.core.errors import EnvironmentUnusable, InvalidInput
from cloche.sandbox.native import network
from cloche.sandbox.settings import Settings

SETTINGS = Settings(state_dir=Path("/a"), run_dir=Path("/b"))
OTHER = Settings(state_dir=Path("/c"), run_dir=Path("/d"))


@pytest.fixture(autouse=True)
def no_pool_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOCHE_NETWORK_POOL", raising=False)


def test_installations_differ_in_gateway_links_and_table() -> None:
    ours, theirs = network.plan(SETTINGS), network.plan(OTHER)
    assert ours.pool == theirs.pool == ipaddress.IPv4Network(network.DEFAULT_POOL)
    assert ours.gateway != theirs.gateway
    assert ours.links != theirs.links
    assert ours.table == f"cloche_{SETTINGS.instance}"
    assert len(f"{ours.links}{16383:x}") <= 15  # IFNAMSIZ less its NUL


def test_another_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOCHE_NETWORK_POOL", "172.20.0.0/20")
    plan = network.plan(SETTINGS)
    assert plan.gateway in ipaddress.IPv4Network("172.20.0.0/24")
    assert "172.20.0.0/20" in network.rules(plan)


@pytest.mark.parametrize("pool", ["nonsense", "10.0.0.1/16", "10.0.0.0/24", "fd00::/64", "0.0.0.0/0"])
def test_a_pool_that_cannot_be(monkeypatch: pytest.MonkeyPatch, pool: str) -> None:
    monkeypatch.setenv("CLOCHE_NETWORK_POOL", pool)
    with pytest.raises(InvalidInput, match="CLOCHE_NETWORK_POOL"):
        network.plan(SETTINGS)


@pytest.mark.parametrize(
    ("address", "blocked"),
    [
        ("10.1.2.3", True),
        ("172.31.255.255", True),
        ("172.32.0.1", False),
        ("192.168.0.1", True),
        ("100.127.0.1", True),
        ("100.128.0.1", False),
        ("169.254.169.254", True),
        ("127.0.0.53", True),
        ("0.0.0.0", True),
        ("224.0.0.251", True),
        ("255.255.255.255", True),
        ("192.0.2.1", False),  # documentation ranges are routed in places
        ("198.51.100.7", False),
        ("203.0.113.80", False),
        ("198.18.0.1", True),
        ("8.8.8.8", False),
    ],
)
def test_what_is_blocked(address: str, blocked: bool) -> None:
    parsed = ipaddress.IPv4Address(address)
    assert any(parsed in ipaddress.IPv4Network(text) for text in network.BLOCKED) is blocked


def test_rules_name_everything_that_is_blocked() -> None:
    text = network.rules(network.plan(SETTINGS))
    for item in network.BLOCKED:
        assert item in text
    assert "delete table" not in text  # what is in the sets must outlive a change of the rules
    assert "$" not in text
    assert text.count("{") == text.count("}")


def test_the_operators_exceptions_are_networks_with_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOCHE_ALLOW_PRIVATE", "10.1.0.0/16:3128, 10.1.2.0/24:80-90")
    text = network.rules(network.plan(SETTINGS))
    assert "10.1.0.0/16 . 3128-3128" in text
    assert "10.1.2.0/24 . 80-90" in text
    for wrong in ("10.1.0.0/16", "example.org:80", "[fd00::1]:80", "10.1.0.0/16:0"):
        with pytest.raises(InvalidInput):
            network.allow_private(wrong)


def test_the_spawner_is_told_numbers() -> None:
    arguments = dict(item.lstrip("-").split("=", 1) for item in network.spawner_arguments(SETTINGS))
    plan = network.plan(SETTINGS)
    assert arguments["pool"] == f"{int(plan.pool.network_address)}/16"
    assert arguments["gateway"] == str(int(plan.gateway))


def test_forwarding_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    switch = tmp_path / "ip_forward"
    monkeypatch.setattr(network, "_IP_FORWARD", switch)
    switch.write_text("1\n")
    network.check_public()
    switch.write_text("0\n")
    with pytest.raises(EnvironmentUnusable) as caught:
        network.check_public()
    assert caught.value.hint == "cloche doctor --fix"
