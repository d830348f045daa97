"""Public networks: which addresses an installation uses, and the rules that say what a sandbox may reach.

A sandbox reaches public addresses, and our name server at its gateway's address; never the host, private
networks, other sandboxes or metadata services, and nothing by IPv6. The documentation ranges of RFC 5737
are not blocked: some networks route them. Must never change the host: the spawner loads the rules.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cloche.core.errors import EnvironmentUnusable, InvalidInput
from cloche.sandbox.settings import Settings

DEFAULT_POOL = "10.210.0.0/16"
_GATEWAYS = 254
_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")

BLOCKED = (
    "0.0.0.0/8",  # this network
    "10.0.0.0/8",  # private, RFC 1918
    "100.64.0.0/10",  # carrier-grade NAT, RFC 6598
    "127.0.0.0/8",  # loopback
    "169.254.0.0/16",  # link-local, cloud metadata
    "172.16.0.0/12",  # private, RFC 1918
    "192.0.0.0/24",  # IETF protocol assignments, RFC 6890 (cloud metadata too)
    "192.168.0.0/16",  # private, RFC 1918
    "198.18.0.0/15",  # benchmarking, RFC 2544
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, broadcast
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Addresses of one installation: ``gateway`` is on every host end, sandboxes start at the 256th."""

    pool: ipaddress.IPv4Network
    gateway: ipaddress.IPv4Address
    links: str
    table: str


def plan(settings: Settings) -> Plan:
    """Return the addresses of this installation. Raises InvalidInput for a pool that cannot be."""
    text = os.environ.get("CLOCHE_NETWORK_POOL") or DEFAULT_POOL
    try:
        pool = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise InvalidInput(f"CLOCHE_NETWORK_POOL: {error}", hint=f"for example {DEFAULT_POOL}") from error
    if not 8 <= pool.prefixlen <= 22:
        raise InvalidInput(f"CLOCHE_NETWORK_POOL: {text} must have between /8 and /22 addresses")
    offset = 1 + int(settings.instance, 16) % _GATEWAYS
    return Plan(pool, pool[offset], f"cl{settings.instance[:4]}x", f"cloche_{settings.instance}")


def rules(addresses: Plan) -> str:
    """Return the table of rules for ``nft -f``; loading it replaces the table that stands.

    A packet must come in by the link that its source address is routed to (``fib``), so no sandbox can borrow
    another's address.
    """
    ours = f'iifname "{addresses.links}*"'
    return f"""\
table inet {addresses.table}
delete table inet {addresses.table}
table inet {addresses.table} {{
  set blocked {{
    type ipv4_addr
    flags interval
    elements = {{ {", ".join(BLOCKED)} }}
  }}
  chain host {{
    type filter hook input priority -10; policy accept;
    {ours} jump to_host
  }}
  chain to_host {{
    fib saddr . iif oif missing drop
    ip daddr {addresses.gateway} udp dport 53 accept
    ip daddr {addresses.gateway} tcp dport 53 accept
    drop
  }}
  chain pass {{
    type filter hook forward priority -10; policy accept;
    {ours} jump from_sandbox
    oifname "{addresses.links}*" jump to_sandbox
  }}
  chain from_sandbox {{
    meta nfproto ipv6 drop
    fib saddr . iif oif missing drop
    ip saddr != {addresses.pool} drop
    ip daddr @blocked reject with icmpx admin-prohibited
    oifname "{addresses.links}*" drop
    tcp flags syn tcp option maxseg size set rt mtu
    accept
  }}
  chain to_sandbox {{
    ct state established,related accept
    drop
  }}
  chain leave {{
    type nat hook postrouting priority 100; policy accept;
    ip saddr {addresses.pool} oifname != "{addresses.links}*" masquerade
  }}
}}
"""


def rules_file(settings: Settings) -> Path:
    """Return where the rules are kept for the spawner."""
    return settings.run_dir / "network.nft"


def write_rules(settings: Settings) -> None:
    """Write the rules of this installation."""
    rules_file(settings).write_text(rules(plan(settings)))


def spawner_arguments(settings: Settings) -> list[str]:
    """Return what the spawner needs to know of the network."""
    addresses = plan(settings)
    return [
        f"--nft-file={rules_file(settings)}",
        f"--pool={int(addresses.pool.network_address)}/{addresses.pool.prefixlen}",
        f"--gateway={int(addresses.gateway)}",
    ]


def resolver_arguments(settings: Settings) -> list[str]:
    """Return the arguments of the name server."""
    addresses = plan(settings)
    return [
        f"--listen={addresses.gateway}",
        f"--log={settings.run_dir / 'names.jsonl'}",
        f"--links={addresses.links}",
        f"--lock={settings.run_dir / 'spawner.lock'}",
    ]


def check_public() -> None:
    """Raise EnvironmentUnusable when this host does not forward packets."""
    if _IP_FORWARD.read_text().strip() != "1":
        raise EnvironmentUnusable(
            "public networks need net.ipv4.ip_forward, which is off on this machine",
            hint="cloche doctor --fix",
        )
