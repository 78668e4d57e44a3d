# SPDX-License-Identifier: Apache-2.0
"""Hosts files: what they say, and what is refused, with the entry, the key and what was expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline.spec.errors import UsageError
from gangline.spec.machines.hosts import Host, read_hosts, split_place


def test_a_host_has_what_it_says_and_otherwise_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(
        '[defaults]\nuser = "anna"\nenvironment = { A = "1", B = "1" }\n'
        '[[hosts]]\nname = "desk"\n'
        '[[hosts]]\nname = "lab"\naddress = "10.0.0.7"\nuser = "bo"\ndevices = [2, 3]\n'
        'environment = { B = "2" }\n'
    )
    desk, lab = read_hosts(path)
    assert (desk.destination, desk.num_workers(0), desk.environment) == (
        "anna@desk",
        1,
        {"A": "1", "B": "1"},
    )
    assert (lab.destination, lab.num_workers(8), lab.environment) == (
        "bo@10.0.0.7",
        2,
        {"A": "1", "B": "2"},
    )


def test_all_devices_are_as_many_workers_as_there_are_gpus() -> None:
    host = Host(name="lab", devices="all")
    assert (host.num_workers(4), host.chosen_devices(4)) == (4, (0, 1, 2, 3))
    assert (host.num_workers(0), host.chosen_devices(0)) == (1, ())


def refusal(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_hosts(path)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it names no hosts; write a [[hosts]] table for each"),
        ("[[hosts]]\nuser = 'x'", "host number 1 has no name"),
        ("[defaults]\nname = 'a'", "[defaults] has a key 'name', which is not known"),
        ("[[host]]\nname = 'a'", "the file has a key 'host', which is not known: did you mean"),
        ("[[hosts]]\nname = 'a/b'", "name must be letters, digits, dots and dashes"),
        ("[[hosts]]\nname = 'a'\n[[hosts]]\nname = 'a'", "used more than once: a"),
        ("hosts = 3", "hosts must be [[hosts]] tables"),
        ("[[hosts", "is not TOML"),
    ],
)
def test_files_that_cannot_be_meant_are_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path / "hosts.toml", text)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("pyhton = 'x'", "has a key 'pyhton', which is not known: did you mean python?"),
        ("port = '22'", ": port: Expected `int | null`, got `str`"),
        ("port = 70000", ": port must be a port from 1 to 65535, not 70000"),
        ("workers = 0", ": workers must be 1 to 256, not 0"),
        ("devices = [1, 1]", ": devices must be a list of different numbers of GPUs"),
        ("devices = 'some'", "or 'all', not 'some'"),
        ("address = '-oProxyCommand=x'", ": address must be a host name or an address"),
        ("user = '-x'", ": user must be the name of a user"),
        ("environment = {'A-B' = 'x'}", ": environment must name variables by letters"),
        ("coordinator = 'x:y'", ": coordinator must be HOST or HOST:PORT, not 'x:y'"),
    ],
)
def test_the_entry_and_the_key_are_named(tmp_path: Path, key: str, said: str) -> None:
    told = refusal(tmp_path / "hosts.toml", f"[[hosts]]\nname = 'desk'\n{key}\n")
    assert "host 'desk'" in told
    assert said in told


def test_the_page_names_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hosts.md").read_text()
    rows = re.findall(r"^\| (`[a-z_`, ]+) \|", page, re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == {*Host.__struct_fields__}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.5", ("10.0.0.5", 0)),
        ("10.0.0.5:7700", ("10.0.0.5", 7700)),
        ("desk.local:1", ("desk.local", 1)),
        ("::1", ("::1", 0)),
        ("[::1]", ("::1", 0)),
        ("[fd00::2]:7700", ("fd00::2", 7700)),
    ],
)
def test_places_are_split(text: str, found: tuple[str, int]) -> None:
    assert split_place(text, name="--listen") == found
