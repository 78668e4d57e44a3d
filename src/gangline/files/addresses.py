# SPDX-License-Identifier: Apache-2.0
"""The addresses by which other machines reach this one."""

from __future__ import annotations

import ipaddress
import socket

import psutil

_ELSEWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses that nobody has: the way to them is the way out."""
_INNER = ("docker", "br-", "virbr", "veth", "lxc", "cni")
"""Interfaces that lead to containers and virtual machines on this one."""
_MOST = 16


def own_addresses() -> list[str]:
    """Most likely first: the one that leads out, IPv4 before IPv6, those of containers last."""
    first = [_source_towards(target, family) for target, family in _ELSEWHERE]
    states = psutil.net_if_stats()
    found = [
        (name.startswith(_INNER), one.family == socket.AF_INET6, one.address)
        for name, addresses in psutil.net_if_addrs().items()
        if name in states and states[name].isup
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    every = [*first, *(address for _, _, address in sorted(found, key=lambda one: one[:2]))]
    return list(dict.fromkeys(one for one in every if one and _is_reachable(one)))[:_MOST]


def all_interfaces() -> str:
    """What to listen on for connections to all addresses, of IPv6 too where there is IPv6."""
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _source_towards(target: str, family: socket.AddressFamily) -> str:
    """The address of this machine from which another is reached; nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_reachable(text: str) -> bool:
    if "%" in text:
        return False
    address = ipaddress.ip_address(text)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)
