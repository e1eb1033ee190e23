"""Which node each rank ran on, when the capture and the file name may disagree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from rankdiff.claims import Claims
from rankdiff.notes import Note
from rankdiff.reports.names import report_stem

_CONTAINER_ID = re.compile(r"[0-9a-f]{12}")


def assign_nodes(ordered: Sequence[Claims], notes: list[Note]) -> list[tuple[str, str]]:
    """Node and its source for each claim.

    Precedence: ``--rank-regex``, SLURMD_NODENAME, Hostname, file name. The Hostname gives way to the file
    name where containers spoil it: one name for all reports while the file names tell several nodes, another
    one in every report while the file names group them, or container ids.

    Parameters
    ----------
    ordered : sequence of Claims
    notes : list of Note
        Receives a note for each disagreement.

    Returns
    -------
    list of (str, str)
        In the order of `ordered`.
    """
    distrusted = _distrusted(ordered)
    if distrusted:
        notes.append(Note("hostname_distrusted", f"{distrusted}; the nodes of the file names are used"))
    out: list[tuple[str, str]] = []
    differing: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    nameless: list[str] = []
    for each in ordered:
        stated = [
            ("--rank-regex", each.regex_node),
            ("SLURMD_NODENAME", each.env_node),
            # Beside SLURMD_NODENAME it is no news: in a container it differs, and that is well known.
            ("Hostname", None if distrusted or each.env_node else each.hostname),
            ("file name", each.file_node),
        ]
        said = [(source, node) for source, node in stated if node]
        if not said:
            # Reports of unknown nodes share no clock as far as anybody can tell.
            nameless.append(each.report)
            out.append((report_stem(each.report), "report"))
            continue
        source, node = said[0]
        for other, name in said[1:]:
            if not same_node(node, name):
                differing[f"{source} says node {node}", f"{other} says {name}", node].append(each.report)
        out.append((node, source))
    for (one, other, node), files in differing.items():
        listed = ", ".join(dict.fromkeys(files))
        notes.append(Note("node_disagreement", f"{listed}: {one}, {other}; {node} is used"))
    if nameless:
        listed = ", ".join(dict.fromkeys(nameless))
        notes.append(
            Note("node_unknown", f"{listed}: no node is stated; each report is taken as a node of its own")
        )
    return _one_spelling(out)


def same_node(one: str, other: str) -> bool:
    """Say whether two names are one host: equal, or one is the other with its domain."""
    one, other = one.lower(), other.lower()
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _distrusted(ordered: Sequence[Claims]) -> str | None:
    """Why the Hostnames cannot be nodes; None when they can."""
    by_report = {each.path: each for each in ordered}
    hosts = {path: each.hostname for path, each in by_report.items() if each.hostname}
    files = {path: each.file_node for path, each in by_report.items() if each.file_node}
    if len(by_report) < 2 or len(hosts) < len(by_report) or len(files) < len(by_report):
        return None
    distinct_hosts, distinct_files = set(hosts.values()), set(files.values())
    if all(_CONTAINER_ID.fullmatch(host) for host in distinct_hosts):
        return "the Hostnames are ids of containers"
    if len(distinct_hosts) == 1 and len(distinct_files) > 1:
        host = next(iter(distinct_hosts))
        return (
            f"all reports have the Hostname {host}, while their file names tell {len(distinct_files)} nodes"
        )
    if len(distinct_hosts) == len(by_report) > len(distinct_files):
        return "every report has another Hostname (containers), while their file names group them"
    return None


def _one_spelling(nodes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Call a host by one name where some reports have it with its domain and others without."""
    names = {node for node, _ in nodes}
    short = {
        node: min((other for other in names if same_node(node, other)), key=lambda name: (len(name), name))
        for node in names
    }
    return [(short[node], source) for node, source in nodes]
