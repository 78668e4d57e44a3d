# SPDX-License-Identifier: Apache-2.0
"""Hosts with networks of their own and a real sshd each; the launcher is in the network between."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from networks import Network

from fake_hosts import await_true

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PermitUserEnvironment no
AcceptEnv PYTHONPATH
"""
_CLIENT = """\
IdentityFile {folder}/user_key
UserKnownHostsFile {folder}/known_hosts
SendEnv PYTHONPATH
"""
_FIREWALL = """\
table inet wall {
    chain inward {
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iif "lo" accept
        tcp dport 22 accept
    }
}
"""


class SshHosts:
    """The hosts of a test, from `host0` on, and what it takes to run commands beside them."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.network = network
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        self._make_keys()

    def _make_keys(self) -> None:
        for name in ("host_key", "user_key"):
            path = self.folder / name
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
            subprocess.run(command, check=True)
        (self.folder / "sshd_config").write_text(_CONFIG.format(folder=self.folder))
        public = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        names = [f"host{number}" for number in range(len(self.network.workers))]
        known = "".join(f"{address(number)} {public}\n" for number in range(len(names)))
        (self.folder / "known_hosts").write_text(known)
        lines = [f"Host {name}\n  HostName {address(n)}\n" for n, name in enumerate(names)]
        (self.folder / "ssh_config").write_text(
            "".join(lines) + "Host *\n" + _CLIENT.format(folder=self.folder)
        )
        programs = self.folder / "bin"
        programs.mkdir()
        ssh = programs / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)

    def serve(self, number: int) -> None:
        """Starts a host's sshd, and waits until it can be reached."""
        program = shutil.which("sshd") or "/usr/sbin/sshd"
        within = ["ip", "netns", "exec", self.network.workers[number]]
        server = subprocess.Popen(
            [*within, program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
            stderr=subprocess.DEVNULL,
        )
        self.servers[number] = server
        ssh = [str(self.folder / "bin" / "ssh"), "-o", "BatchMode=yes", f"host{number}", "true"]
        command = ["ip", "netns", "exec", self.network.coordinator, *ssh]
        await_true(lambda: subprocess.run(command, capture_output=True).returncode == 0, "sshd")

    def close(self, number: int) -> None:
        """From now on a host lets nothing in but ssh, and what answers its own calls."""
        within = ["ip", "netns", "exec", self.network.workers[number]]
        done = subprocess.run(
            [*within, "nft", "-f", "-"], input=_FIREWALL, text=True, capture_output=True
        )
        if done.returncode:
            said = done.stderr.strip()
            pytest.skip(f"no firewall can be made here (Debian: nftables): {said}")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command of gangline's, in the network between the hosts."""
        within = ["ip", "netns", "exec", self.network.coordinator]
        return subprocess.Popen(
            [*within, sys.executable, "-m", "gangline.cli.main", *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def write(self, *names: str) -> Path:
        """A hosts file."""
        hosts = "".join(f'[[hosts]]\nname = "{name}"\n' for name in names)
        path = self.folder / "hosts.toml"
        path.write_text(f'[defaults]\npython = "{sys.executable}"\n{hosts}')
        return path


def address(number: int) -> str:
    """A host's address."""
    return f"198.18.0.{10 + number}"


@contextlib.contextmanager
def ssh_hosts(folder: Path, count: int) -> Iterator[SshHosts]:
    """So many hosts, whose servers run; skips the test where that cannot be."""
    if shutil.which("ssh") is None or not (shutil.which("sshd") or Path("/usr/sbin/sshd").exists()):
        pytest.skip("there is no ssh or no sshd here (Debian: openssh-client, openssh-server)")
    with Network(count) as network:
        Path("/run/sshd").mkdir(exist_ok=True)
        hosts = SshHosts(folder, network)
        try:
            for number in range(count):
                hosts.serve(number)
            yield hosts
        finally:
            for server in hosts.servers.values():
                # A session whose network is cut would wait for its client for ever.
                for session in psutil.Process(server.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        session.kill()
                server.kill()
                server.wait()
