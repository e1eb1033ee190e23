"""Who is who: the ranks and nodes that follow from the claims of all reports together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankdiff.claims import Claims
from rankdiff.errors import IdentityError
from rankdiff.notes import Note
from rankdiff.reports.names import natural_key
from rankdiff.reports.nodes import assign_nodes
from rankdiff.reports.probe import claims as claims

_MANY = 20  # ranks listed in one message


@dataclass(frozen=True)
class Identity:
    """One rank of the job.

    Attributes
    ----------
    rank_source, node_source : str
        Where it was read: ``--rank-regex``, a variable's name, ``MPI_RANKS``, ``file name``, ``Hostname``,
        ``inferred``, or ``report`` for a node that nothing names.
    """

    claims: Claims
    rank: int
    label: str
    node: str
    rank_source: str
    node_source: str


def assign(all_claims: Sequence[Claims]) -> tuple[list[Identity], list[Note]]:
    """Give every claim its rank and node.

    Parameters
    ----------
    all_claims : sequence of Claims
        Of all reports of the job, in any order.

    Returns
    -------
    identities : list of Identity
        Sorted by rank.
    notes : list of Note
        Disagreements with both values, inferred ranks, missing ranks.

    Raises
    ------
    IdentityError
        When two reports are one rank.
    """
    ordered = sorted(
        all_claims, key=lambda each: (natural_key(each.report), each.path, each.device, each.pid)
    )
    notes: list[Note] = []
    _tell_same_session(ordered, notes)
    nodes = assign_nodes(ordered, notes)
    known = [_stated_rank(each, notes) for each in ordered]
    _refuse_duplicates(ordered, known)
    ranks = _with_inferred(ordered, known, [node for node, _ in nodes], notes)
    identities = [
        Identity(each, rank, str(rank), node, rank_source, node_source)
        for each, (rank, rank_source), (node, node_source) in zip(ordered, ranks, nodes, strict=True)
    ]
    identities.sort(key=lambda each: each.rank)
    unmatched = [each.report for each in ordered if _regex_missed(each)]
    if unmatched:
        notes.append(Note("rank_regex_unmatched", f"--rank-regex does not match {_listed(unmatched)}"))
    missing = missing_ranks(identities)
    if missing:
        notes.append(_missing_note(missing, identities))
    return identities, notes


def missing_ranks(identities: Sequence[Identity]) -> tuple[int, ...]:
    """Ranks without a report: those below the world size, else the gaps in the numbering.

    Reports that contradict each other about the world size are not believed.
    """
    present = {each.rank for each in identities}
    if not present:
        return ()
    sizes = {each.claims.world_size for each in identities if each.claims.world_size}
    size = max(present) + 1
    if len(sizes) == 1:
        size = max(size, *sizes)
    return tuple(sorted(set(range(size)) - present))


def _missing_note(missing: tuple[int, ...], identities: Sequence[Identity]) -> Note:
    count = len(missing) + len(identities)
    message = (
        f"{len(missing)} of {count} ranks have no report: {_listed(list(map(str, missing)))}; communicators are compared "
        f"without {'it' if len(missing) == 1 else 'them'}"
    )
    if len({each.claims.path for each in identities}) == 1:
        message += (
            "; reports of one job overwrite each other when their name has no %q{SLURM_PROCID}: "
            "nsys profile -o prof_%h_%q{SLURM_PROCID}"
        )
    return Note("missing_ranks", message, missing)


def _regex_missed(each: Claims) -> bool:
    return each.regex_given and each.regex_rank is None and each.regex_node is None


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:_MANY]) + (", ..." if len(words) > _MANY else "")


def _stated_rank(each: Claims, notes: list[Note]) -> tuple[int, str] | None:
    """The rank that a report states, by precedence; a disagreement becomes a note."""
    several = each.gpu_processes > 1
    stated: list[tuple[str, int]] = []
    if not several and each.regex_rank is not None:
        stated.append(("--rank-regex", each.regex_rank))
    if not several:
        # They belong to the process that nsys started; with several GPU processes that is their parent.
        stated += each.env_ranks or (
            [(each.env_rank_name or "environment", each.env_rank)] if each.env_rank is not None else []
        )
    if each.mpi_rank is not None:
        stated.append(("MPI_RANKS", each.mpi_rank))
    if not several and each.file_rank is not None:
        stated.append(("file name", each.file_rank))
    if not stated:
        return None
    source, rank = stated[0]
    for other, value in stated[1:]:
        if value != rank:
            notes.append(
                Note(
                    "rank_disagreement",
                    f"{each.report}: {source} says rank {rank}, {other} says {value}; {rank} is used",
                    (rank,),
                )
            )
            break
    return rank, source


def _tell_same_session(ordered: Sequence[Claims], notes: list[Note]) -> None:
    """One session is one capture; two files of it are two exports of the same rank under two names."""
    files: dict[tuple[str, int, int], list[str]] = {}
    for each in ordered:
        if each.session_uuid is not None:
            files.setdefault((each.session_uuid, each.pid, each.device), []).append(each.report)
    alike = [", ".join(names) for names in files.values() if len(names) > 1]
    if alike:
        message = f"the same session in several reports, are they one capture twice? {_listed(alike)}"
        notes.append(Note("same_session", message))


def _refuse_duplicates(ordered: Sequence[Claims], known: Sequence[tuple[int, str] | None]) -> None:
    holders: dict[int, tuple[Claims, str]] = {}
    for each, stated in zip(ordered, known, strict=True):
        if stated is None:
            continue
        rank, source = stated
        if rank in holders:
            other, other_source = holders[rank]
            what = f"rank {rank} twice: {other.path} (by {other_source}) and {each.path} (by {source})"
            if other.session_uuid is not None and other.session_uuid == each.session_uuid:
                raise IdentityError(f"{what}; they are the same capture twice", "Give one of them")
            raise IdentityError(
                what,
                "Give one report per rank, of one job; if the names hold local ranks, "
                "tell the global ones with --rank-regex",
            )
        holders[rank] = each, source


def _with_inferred(
    ordered: Sequence[Claims],
    known: Sequence[tuple[int, str] | None],
    nodes: Sequence[str],
    notes: list[Note],
) -> list[tuple[int, str]]:
    """Number the claims without a rank by (node, device, process), around the numbers that are taken."""
    taken = {stated[0] for stated in known if stated is not None}
    unknown = [i for i, stated in enumerate(known) if stated is None]

    def order(i: int) -> tuple[object, ...]:
        each = ordered[i]
        local = each.env_local_rank if each.gpu_processes == 1 and each.env_local_rank is not None else -1
        return natural_key(nodes[i]), local, each.device, each.pid, natural_key(each.report)

    ranks = [stated or (-1, "inferred") for stated in known]
    number = 0
    for i in sorted(unknown, key=order):
        while number in taken:
            number += 1
        ranks[i] = number, "inferred"
        number += 1
    if unknown:
        inferred = tuple(sorted(ranks[i][0] for i in unknown))
        files = sorted({ordered[i].report for i in unknown}, key=natural_key)
        message = (
            f"{_listed(files)}: no rank is stated (by SLURM_PROCID, a file name prof_<node>_<rank> or "
            "--rank-regex); numbered by node, device and process"
        )
        notes.append(Note("rank_inferred", message, inferred))
    return ranks
