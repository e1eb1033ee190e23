"""Ranks and nodes: who says what, who is believed, and what is said where they disagree."""

from __future__ import annotations

import random

import pytest

from rankdiff.claims import Claims
from rankdiff.errors import IdentityError
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import assign, claims, missing_ranks
from rankdiff.simulation import Export


def claim(report, **known):
    """Claims of one report, with what the file name tells left out unless it is given."""
    values = {"path": f"/job/{report}", "pid": 100, "device": 0, "gpu_processes": 1}
    return Claims(report=report, **(values | known))


def ranks(identities):
    return [(each.claims.report, each.rank) for each in identities]


def codes(notes):
    return [note.code for note in notes]


def write(path, **settings):
    # Another process in every file: the builder makes the session's id of node and process.
    pid = 4000 + sum(path.name.encode())
    with Export(path, pid=pid, **settings) as export:
        export.nccl("all_reduce", 0, 1_000_000)
    return path


def read(*paths, **options):
    found = []
    for report in discover(paths).reports:
        found += claims(report, **options)
    return found


def test_ranks_sort_as_numbers(tmp_path):
    paths = [write(tmp_path / f"prof_gpu-a100-07_{rank}.sqlite", node="gpu-a100-07") for rank in range(12)]
    random.Random(1).shuffle(paths)
    identities, notes = assign(read(*paths))
    assert [each.rank for each in identities] == list(range(12))
    assert [each.label for each in identities][9:] == ["9", "10", "11"]
    assert {(each.node, each.rank_source) for each in identities} == {("gpu-a100-07", "file name")}
    assert notes == []


def test_the_result_does_not_depend_on_the_order():
    all_claims = [claim(f"x{i}", hostname=f"n{i % 3}", pid=100 + i) for i in range(7)]
    expected = assign(all_claims)
    for seed in range(5):
        random.Random(seed).shuffle(all_claims)
        assert assign(all_claims) == expected


def test_the_environment_is_believed_before_the_file_name(tmp_path):
    path = write(
        tmp_path / "prof_nodeA_1.sqlite", env={"SLURM_PROCID": 5, "SLURM_NTASKS": 6, "LOCAL_RANK": 2}
    )
    (identity,), notes = assign(read(path))
    assert (identity.rank, identity.rank_source) == (5, "SLURM_PROCID")
    assert codes(notes) == ["rank_disagreement", "missing_ranks"]
    assert notes[0].message == ("prof_nodeA_1.sqlite: SLURM_PROCID says rank 5, file name says 1; 5 is used")
    assert notes[1].ranks == (0, 1, 2, 3, 4)
    assert "%q{SLURM_PROCID}" in notes[1].message


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"regex_rank": 1, "env_ranks": (("RANK", 2),), "mpi_rank": 3, "file_rank": 4}, (1, "--rank-regex")),
        ({"env_ranks": (("SLURM_PROCID", 2), ("RANK", 2)), "mpi_rank": 2}, (2, "SLURM_PROCID")),
        ({"env_ranks": (("PMIX_RANK", 2),), "file_rank": 2}, (2, "PMIX_RANK")),
        ({"env_rank": 6, "env_rank_name": "RANK"}, (6, "RANK")),
        ({"mpi_rank": 3, "file_rank": 3}, (3, "MPI_RANKS")),
        ({"file_rank": 4}, (4, "file name")),
        ({"env_local_rank": 5}, (0, "inferred")),
    ],
)
def test_precedence(known, expected):
    (identity,), _ = assign([claim("a", hostname="n", **known)])
    assert (identity.rank, identity.rank_source) == expected


def test_two_reports_of_one_rank():
    both = [claim("prof_nodeA_03.sqlite", file_rank=3), claim("prof_nodeB_3.sqlite", file_rank=3)]
    with pytest.raises(IdentityError, match="rank 3 twice") as error:
        assign(both)
    assert "/job/prof_nodeA_03.sqlite" in str(error.value)
    assert "/job/prof_nodeB_3.sqlite" in str(error.value)


def test_one_capture_exported_twice():
    both = [claim(name, file_rank=3, session_uuid="u") for name in ("prof_a_3.sqlite", "copy_3.sqlite")]
    with pytest.raises(IdentityError, match="the same capture twice"):
        assign(both)
    renamed = [claim(f"prof_a_{rank}.sqlite", file_rank=rank, session_uuid="u") for rank in (0, 1)]
    assert codes(assign(renamed)[1])[0] == "same_session"


def test_gaps_in_the_numbering(tmp_path):
    paths = [write(tmp_path / f"prof_nodeA_{rank}.sqlite") for rank in (0, 1, 3)]
    identities, notes = assign(read(*paths))
    assert missing_ranks(identities) == (2,)
    assert codes(notes) == ["missing_ranks"]
    assert notes[0].message == "1 of 4 ranks have no report: 2; communicators are compared without it"


def test_missing_ranks_by_the_world_size():
    some = [claim(f"{rank}", file_rank=rank, world_size=8, hostname="n") for rank in (0, 1, 2, 4, 5, 6)]
    identities, _ = assign(some)
    assert missing_ranks(identities) == (3, 7)
    assert missing_ranks([]) == ()


def test_several_processes_in_one_report(tmp_path):
    paths = []
    for node in ("gpu02", "gpu01"):
        env = {"SLURM_PROCID": int(node[-1]) - 1, "SLURM_NTASKS": 2, "LOCAL_RANK": 1}
        with Export(tmp_path / f"prof_{node}_0.sqlite", node=node, env=env, pid=20) as export:
            other = export.process(10, device=1)
            for process in (export, other):
                process.nccl("all_reduce", 0, 1_000_000)
        paths.append(export.path)
    found = read(*paths)
    assert {each.gpu_processes for each in found} == {2}
    identities, notes = assign(found)
    assert [(i.node, i.claims.device, i.claims.pid) for i in identities] == [
        ("gpu01", 0, 20),
        ("gpu01", 1, 10),
        ("gpu02", 0, 20),
        ("gpu02", 1, 10),
    ]
    assert {each.rank_source for each in identities} == {"inferred"}
    assert codes(notes) == ["rank_inferred"]
    assert notes[0].ranks == (0, 1, 2, 3)


def test_mpi_ranks_tell_the_processes_of_one_report_apart(tmp_path):
    with Export(tmp_path / "prof_gpu01.sqlite", pid=20) as export:
        other = export.process(10, device=1)
        for rank, process in ((4, export), (5, other)):
            process.nccl("all_reduce", 0, 1_000_000)
            export.row("MPI_RANKS", globalTid=process.gtid(), rank=rank)
    identities, _ = assign(read(export.path))
    assert [(each.rank, each.claims.pid, each.rank_source) for each in identities] == [
        (4, 20, "MPI_RANKS"),
        (5, 10, "MPI_RANKS"),
    ]


def test_inferred_numbers_go_around_the_known_ones():
    some = [
        claim("a", hostname="n2", pid=1),
        claim("b", hostname="n10", pid=1),
        claim("c", hostname="n1", file_rank=1),
        claim("d", hostname="n2", pid=2),
    ]
    identities, _ = assign(some)
    assert ranks(identities) == [("a", 0), ("c", 1), ("d", 2), ("b", 3)]


def test_local_ranks_order_but_do_not_number():
    some = [
        claim(f"{node}{local}", hostname=node, env_local_rank=local, pid=9 - local)
        for node in "ba"
        for local in (1, 0)
    ]
    identities, _ = assign(some)
    assert ranks(identities) == [("a0", 0), ("a1", 1), ("b0", 2), ("b1", 3)]


def test_file_names_with_local_ranks_are_an_error(tmp_path):
    paths = [write(tmp_path / f"prof_{node}_{local}.sqlite", node=node) for node in "ab" for local in (0, 1)]
    with pytest.raises(IdentityError, match="--rank-regex"):
        assign(read(*paths))


def test_rank_regex(tmp_path):
    folder = tmp_path / "nodeA"
    folder.mkdir()
    path = write(folder / "run7-r3.sqlite", node="other")
    (identity,), notes = assign(read(path, rank_regex=r"(?P<node>[^/]+)/run\d+-r(?P<rank>\d+)"))
    assert (identity.rank, identity.node, identity.rank_source, identity.node_source) == (
        3,
        "nodeA",
        "--rank-regex",
        "--rank-regex",
    )
    assert codes(notes) == ["node_disagreement", "missing_ranks"]
    _, notes = assign(read(path, rank_regex=r"rank(?P<rank>\d+)"))
    assert "rank_regex_unmatched" in codes(notes)


@pytest.mark.parametrize("regex", ["(", r"(\d+)", "(?P<other>x)"])
def test_a_rank_regex_that_cannot_work(tmp_path, regex):
    with pytest.raises(IdentityError, match="--rank-regex"):
        read(write(tmp_path / "prof_a_0.sqlite"), rank_regex=regex)


def nodes(*known):
    identities, notes = assign([claim(f"r{i}", file_rank=i, **each) for i, each in enumerate(known)])
    return [(each.node, each.node_source) for each in identities], [
        n for n in notes if "node" in n.code or "host" in n.code
    ]


def test_nodes_by_precedence():
    found, notes = nodes(
        {"regex_node": "a"},
        {"env_node": "b", "hostname": "deadbeef", "file_node": "b"},
        {"hostname": "c.cluster.local", "file_node": "c"},
        {"file_node": "d"},
    )
    assert found == [
        ("a", "--rank-regex"),
        ("b", "SLURMD_NODENAME"),
        ("c.cluster.local", "Hostname"),
        ("d", "file name"),
    ]
    assert notes == []


def test_nodes_that_disagree():
    found, notes = nodes(
        {"hostname": "nodeB", "file_node": "nodeA"}, {"hostname": "nodeC", "file_node": "nodeC"}
    )
    assert found[0] == ("nodeB", "Hostname")
    assert codes(notes) == ["node_disagreement"]
    assert notes[0].message == "r0: Hostname says node nodeB, file name says nodeA; nodeB is used"


def test_a_host_name_shared_by_all():
    found, notes = nodes(*({"hostname": "modal", "file_node": f"gpu0{i // 2}"} for i in range(4)))
    assert [node for node, _ in found] == ["gpu00", "gpu00", "gpu01", "gpu01"]
    assert codes(notes) == ["hostname_distrusted"]
    assert "modal" in notes[0].message


def test_another_host_name_in_every_container():
    found, notes = nodes(*({"hostname": f"box{i}", "file_node": f"gpu0{i // 2}"} for i in range(4)))
    assert [node for node, _ in found] == ["gpu00", "gpu00", "gpu01", "gpu01"]
    assert codes(notes) == ["hostname_distrusted"]


def test_container_ids():
    found, notes = nodes(
        {"hostname": "f6fbf0e347c9", "file_node": "a"}, {"hostname": "94b8b7b3215f", "file_node": "b"}
    )
    assert [node for node, _ in found] == ["a", "b"]
    assert codes(notes) == ["hostname_distrusted"]


def test_one_node_where_file_names_agree_or_say_nothing():
    found, notes = nodes(*({"hostname": "n"} for _ in range(3)))
    assert found == [("n", "Hostname")] * 3
    assert notes == []


def test_one_spelling_of_a_host():
    found, _ = nodes({"hostname": "gpu01.cluster"}, {"hostname": "gpu01"}, {"hostname": "gpu011"})
    assert [node for node, _ in found] == ["gpu01", "gpu01", "gpu011"]


def test_reports_without_a_node_share_none():
    found, notes = nodes({}, {})
    assert len({node for node, _ in found}) == 2
    assert codes(notes) == ["node_unknown"]


def test_only_the_devices_that_communicate_are_ranks(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nccl("all_reduce", 0, 1_000)
        helper = export.process(77, device=0)
        helper.kernel(0, 900_000_000, "gemm")
        second = export.process(export.pid, device=1)
        second.kernel(0, 500_000_000, "gemm")
    assert [(each.pid, each.device) for each in read(export.path)] == [(export.pid, 0)]


def test_the_busiest_device_where_nobody_communicates(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.memcpy(0, 1_000)
        second = export.process(export.pid, device=1)
        second.kernel(0, 500_000, "gemm")
    (one,) = read(export.path)
    assert (one.device, one.gpu_processes) == (1, 1)


def test_a_process_whose_collectives_may_hide_in_graphs_is_a_rank(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nccl("all_reduce", 0, 1_000)
        export.process(77, device=1).graph_trace(0, 1_000)
    assert [each.device for each in read(export.path)] == [0, 1]


def test_other_communication_kernels(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 1_000, "void vllm::cross_device_reduce_2stage<float, 8>")
        export.process(77, device=1).kernel(0, 9_000, "gemm")
    assert [each.device for each in read(export.path, comm_regex="cross_device_reduce")] == [0]
