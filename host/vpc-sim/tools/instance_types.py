#!/usr/bin/env python3
"""Writes src/instance_types.json: what EC2's DescribeInstanceTypes says about networking, one line per type.

The figures come from the data that moto (PyPI) bundles, which is a recording of DescribeInstanceTypes. To refresh them:

    python3 -m venv /tmp/moto && /tmp/moto/bin/pip install 'moto[server,ec2]'
    /tmp/moto/bin/python tools/instance_types.py > src/instance_types.json

Each value is [interfaces for each network card, IPv4 addresses for each interface, hypervisor]; the hypervisor of a
bare-metal type is "metal".
"""
import gzip
import json
import pathlib
import sys

import moto.ec2

DATA = pathlib.Path(moto.ec2.__file__).parent / "resources" / "instance_types.json.gz"


def row(entry):
    """The three figures of one type, in the order the Rust side reads them."""
    net = entry["NetworkInfo"]
    cards = sorted(net["NetworkCards"], key=lambda card: card["NetworkCardIndex"])
    hypervisor = "metal" if entry["BareMetal"] else entry["Hypervisor"]
    return [[card["MaximumNetworkInterfaces"] for card in cards], net["Ipv4AddressesPerInterface"], hypervisor]


def main():
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        types = json.load(file)
    lines = [f"{json.dumps(name)}:{json.dumps(row(types[name]), separators=(',', ':'))}" for name in sorted(types)]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
