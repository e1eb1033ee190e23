"""Who is who: situations that users met, with their right answers, by the ids of the list of cases."""

from __future__ import annotations

import re

import pytest

from rankdiff.errors import IdentityError, RankdiffError
from rankdiff.simulation import Export, base4, synthetic
from tests.jobs import codes, digests, figures, inspected, late, run, warning, words

MS = 1_000_000


def write(path, **settings):
    """A report with one all-reduce."""
    settings.setdefault("pid", 4_000 + sum(path.name.encode()))
    with Export(path, **settings) as export:
        export.kernel(0, 6 * MS, "gemm")
        export.nccl("all_reduce", 6 * MS, 8 * MS)
    return path


def test_two_gpu_processes_in_one_file(tmp_path):
    """B13: they are two ranks; device 0 idles while device 1 works."""
    with Export(tmp_path / "prof_nodeA_0.sqlite", pid=144) as export:
        other = export.process(145, device=1, gpu=1)
        for begin in (0, 20 * MS):
            export.kernel(begin, begin + 10 * MS, "gemm")
        for begin in (0, 10 * MS, 20 * MS):
            other.kernel(begin, begin + 10 * MS, "gemm")
        for process in (export, other):
            process.nccl("all_reduce", 30 * MS, 31 * MS)
    first, second = digests(export.path)
    assert [(d.info.claims.pid, d.info.claims.device) for d in (first, second)] == [(144, 0), (145, 1)]
    assert (first.info.idle_ns, second.info.idle_ns) == (10 * MS, 0)
    report = run([export.path])
    assert [(r["rank"], r["rank_source"]) for r in report["ranks"]] == [(0, "inferred"), (1, "inferred")]
    assert "rank_inferred" in codes(report)


def test_correlation_ids_of_two_processes(tmp_path):
    """B14: both use the ids 1 to 5: ten kernels, each launched by its own process."""
    with Export(tmp_path / "prof_nodeA_0.sqlite", pid=144) as export:
        other = export.process(145, device=1, gpu=1)
        for n, process in enumerate((export, other)):
            for k in range(5):
                at = (10 + 10 * k) * MS
                process.nccl("all_reduce", at, at + MS, launch=(at - (n + 1) * MS, at - (n + 1) * MS + 5_000))
    found = digests(export.path)
    for n, digest in enumerate(found):
        table = digest.collectives
        assert table["launch_ns"].to_list() == [(10 + 10 * k - n - 1) * MS for k in range(5)]
        assert {tid >> 24 & 0xFFFFFF for tid in table["launch_tid"]} == {144 + n}
    assert sum(d.collectives.height for d in found) == 10


def test_every_rank_sees_its_gpu_as_device_0(tmp_path):
    """B15: physical GPUs are told by uuid and index, and are unknown - not 0 - where the tables are missing."""
    job = base4(tmp_path / "a", nodes=1)
    report = run(job.paths)
    assert figures(report, "device") == dict.fromkeys(range(4), 0)
    assert figures(report, "gpu_index") == {r: r for r in range(4)}
    assert len(set(figures(report, "gpu_uuid").values())) == 4
    assert late(report) == [("late_rank", 2)]
    assert f"GPU-{figures(report, 'gpu_uuid')[2]}" in report["findings"][0]["advice"]
    seen = inspected(job.paths)
    assert re.findall(r"physical index (\w+)", seen) == ["0", "1", "2", "3"]

    def without(rank, export):
        export.drop("TARGET_INFO_CUDA_DEVICE")
        export.drop("TARGET_INFO_GPU")

    job = base4(tmp_path / "b", nodes=1, edit=without)
    report = run(job.paths)
    assert set(figures(report, "gpu_index").values()) == set(figures(report, "gpu_uuid").values()) == {None}
    assert figures(report, "busy_ns")[2] == report["ranks"][2]["span_ns"] - 18 * MS
    assert re.findall(r"physical index (\w+)", inspected(job.paths)) == ["unknown"] * 4


def test_ranks_of_file_names(tmp_path):
    """B16: numbers sort as numbers; digits and underscores in host names are the host's."""
    names = [f"prof_gpu-a100-07_{rank}.sqlite" for rank in (0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11)]
    names += ["prof_node_with_underscore_3_12.sqlite", "prof_n01.cluster.local_2.sqlite"]
    paths = []
    for name in names:
        node = re.fullmatch(r"prof_(.*)_\d+\.sqlite", name)[1]
        paths.append(write(tmp_path / name, node=node))
    report = run(reversed(paths))
    assert [r["rank"] for r in report["ranks"]] == list(range(13))
    nodes = figures(report, "node")
    assert (nodes[2], nodes[3], nodes[12]) == ("n01.cluster.local", "gpu-a100-07", "node_with_underscore_3")
    assert {r["rank_source"] for r in report["ranks"]} == {"file name"}


def test_one_rank_in_two_files(tmp_path):
    """B16: an error with both paths."""
    paths = [write(tmp_path / name) for name in ("prof_nodeA_03.sqlite", "prof_nodeB_3.sqlite")]
    with pytest.raises(IdentityError, match="rank 3 twice") as error:
        run(paths)
    assert all(str(path) in str(error.value) for path in paths)


def test_a_rank_without_a_report(tmp_path):
    """B16: rank 2 of four is missing; that is said, and what it means for its communicators."""
    report = run(base4(tmp_path, written=[0, 1, 3], late={1: 3 * MS}).paths)
    assert report["job"]["missing_ranks"] == [2]
    told = warning(report, "missing_ranks")
    assert told.startswith("1 of 4 ranks have no report: 2")
    assert "compared without" in told
    assert report["communicators"][0]["ranks"] == [0, 1, 3]
    assert "among the captured ranks" in report["verdict"]["summary"]


def test_some_ranks_are_missing_and_one_ends_early(tmp_path):
    """B40: six of eight ranks, one of them captured for less time: the common window is compared."""
    settings = {"steps": 30, "cut": {4: (0, 9)}, "late": {1: 3 * MS}, "jitter_ns": 100_000}
    job = synthetic(tmp_path, ranks=8, written=[0, 1, 2, 4, 5, 6], **settings)
    report = run(job.paths)
    assert report["job"]["missing_ranks"] == [3, 7]
    assert report["job"]["matched_collectives"] == report["job"]["steps"] == 21
    assert late(report) == [("late_rank", 1)]
    text = words(job.paths)
    assert "made the others wait (among the captured ranks)" in text
    assert "6 of 8 ranks (missing 3, 7)" in text
    assert "ends earlier on rank 4" in text
    assert "30% of the usual window" in text


def test_host_names_that_file_names_contradict(tmp_path):
    """B44: the capture is believed, and both names are shown."""
    paths = [
        write(tmp_path / "prof_nodeA_0.sqlite", node="nodeB"),
        write(tmp_path / "prof_nodeC_1.sqlite", node="nodeC"),
    ]
    report = run(paths)
    assert figures(report, "node") == {0: "nodeB", 1: "nodeC"}
    told = warning(report, "node_disagreement")
    assert "nodeA" in told
    assert "nodeB" in told


def test_one_host_name_for_all_containers(tmp_path):
    """B44: then the file names tell the nodes."""
    paths = [write(tmp_path / f"prof_gpu0{rank // 2}_{rank}.sqlite", node="modal") for rank in range(4)]
    report = run(paths)
    assert figures(report, "node") == {0: "gpu00", 1: "gpu00", 2: "gpu01", 3: "gpu01"}
    assert "modal" in warning(report, "hostname_distrusted")


def test_a_file_name_that_the_capture_contradicts(tmp_path):
    """B45: the capture's SLURM_PROCID counts, both numbers are shown, and duplicates are looked for afterwards."""
    env = {"SLURM_PROCID": 5, "SLURM_NTASKS": 6, "LOCAL_RANK": 1}
    path = write(tmp_path / "prof_nodeA_1.sqlite", env=env)
    report = run([path])
    assert [(r["rank"], r["rank_source"]) for r in report["ranks"]] == [(5, "SLURM_PROCID")]
    told = warning(report, "rank_disagreement")
    assert "SLURM_PROCID says rank 5, file name says 1" in told
    with pytest.raises(IdentityError, match="rank 5 twice"):
        run([path, write(tmp_path / "prof_nodeA_5.sqlite")])


def test_local_ranks_are_no_ranks(tmp_path):
    """B45: files named by local rank on two nodes are an error, until a regex says what is what."""
    paths = [
        write(tmp_path / f"prof_{node}_{local}.sqlite", node=node) for node in "AB" for local in range(4)
    ]
    with pytest.raises(IdentityError, match="--rank-regex"):
        run(paths)
    with pytest.raises(RankdiffError, match="local ranks"):
        run(paths)
    only_local = [
        write(tmp_path / f"{node}{local}.sqlite", node=node, env={"LOCAL_RANK": local})
        for node in "AB"
        for local in range(2)
    ]
    report = run(only_local)
    assert {r["rank_source"] for r in report["ranks"]} == {"inferred"}
    assert figures(report, "node") == {0: "A", 1: "A", 2: "B", 3: "B"}
