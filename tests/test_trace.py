"""`rankdiff trace`: what is in the file, who is joined to whom, and that no half file is ever left."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankdiff.errors import RankdiffError
from rankdiff.pipeline import compare
from rankdiff.simulation import Phase, synthetic, tp_dp
from rankdiff_cli.main import group
from tests import traces

MS = 1_000_000


def trace(paths, output: Path, *more: object) -> str:
    """Run the command and return what it printed."""
    done = CliRunner().invoke(group, ["trace", *map(str, paths), "-o", str(output), *map(str, more)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def read(paths, output: Path, *more: object) -> traces.Trace:
    trace(paths, output, *more)
    return traces.read(output)


def met(paths) -> tuple[int, int]:
    """Members of matched instances, and those of them for whom the last had to come."""
    c = compare([str(p) for p in paths]).comparison
    members = waited = 0
    for island, each in zip(c.islands, c.waited, strict=True):
        for t, w in zip(island.timed, each, strict=True):
            members += t.start.size
            last = t.start.max(axis=1, keepdims=True)
            waited += int(((w.wait > 0) & (t.end > last + 1)).sum())
    return members, waited


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Two nodes whose clocks differ, rank 1 late in its tensor-parallel pair."""
    return synthetic(
        tmp_path_factory.mktemp("job"),
        phases=tp_dp(),
        late={1: 4 * MS},
        late_as="data_load",
        offset_ns={"nodeB": 3 * MS},
        drift_ppm={"nodeB": 8.0},
        session_start_ns={0: 0, 1: -2_000 * MS, 2: -40 * MS, 3: 5 * MS},
        end_jitter_ns=20_000,
    )


@pytest.fixture(scope="module")
def whole(job, tmp_path_factory):
    return read(job.paths, tmp_path_factory.mktemp("out") / "job.json.gz")


def test_every_matched_instance_is_there_with_its_arrows(job, whole):
    members, waited = met(job.paths)
    matched = [e for e in whole.collectives() if e["args"]["instance"] is not None]
    assert len(matched) == members == 4 * 2 * 10
    assert len(whole.starts) == waited > 30
    for e in matched:
        args = e["args"]
        assert e["name"] == "all_reduce"
        assert args["bytes"] == 1 << 20
        assert args["wait_ns"] >= 0
        assert args["transfer_ns"] > 0
        assert args["communicator"]
        assert args["step"] in {str(k) for k in range(10)}


def test_waits_and_transfers_lie_inside_their_collectives(whole):
    inside = [e for _, _, e in whole.slices("nccl") if e["args"]["kernel"] is None]
    assert {e["name"] for e in inside} == {"transfer", *(f"wait for rank {r}" for r in range(4))}
    for track in whole.tracks.values():
        outer = None
        for start, end, e in track.slices:
            if e["cat"] != "nccl":
                continue
            if e["args"]["kernel"] is not None:
                outer = start, end, e
            else:
                assert outer[0] <= start <= end <= outer[1]
                if e["name"] == "transfer":
                    assert end == outer[1]
                else:
                    assert (start, end - start) == (outer[0], outer[2]["args"]["wait_ns"])
                    assert e["name"] == f"wait for rank {outer[2]['args']['last_rank']}"


def test_arrows_lead_from_the_last_to_arrive(whole):
    rank = {pid: int(about["name"].split()[1]) for pid, about in whole.processes.items()}
    starts = {(e["ts"], rank[e["pid"]]) for e in whole.starts.values()}
    lasts = {
        (e["ts"], rank[e["pid"]])
        for e in whole.collectives()
        if e["args"]["last_rank"] == rank[e["pid"]] and e["args"]["instance"] is not None
    }
    assert starts <= lasts
    assert {r for _, r in starts} >= {0, 1}


def test_processes_are_the_ranks_by_node(tmp_path):
    job = synthetic(tmp_path, nodes=("gpu10", "gpu9", "gpu10", "gpu9"), steps=9)
    found = read(job.paths, tmp_path / "out.json")
    order = sorted(found.processes.values(), key=lambda p: p["sort_index"])
    assert [p["name"] for p in order] == [
        "rank 1 (gpu9)",
        "rank 3 (gpu9)",
        "rank 0 (gpu10)",
        "rank 2 (gpu10)",
    ]
    assert list(found.processes.values()) == order


def test_tracks_of_a_rank(job, whole):
    assert whole.names(1001) == [
        "steps (GPU time)",
        "late arrivals",
        "compute, stream 7",
        *(n for n in whole.names(1001) if n.startswith("NCCL ")),
        "idle, by cause",
        "NVTX, thread 4010",
        "OS and blocking CUDA calls, thread 4010",
    ]
    assert {n.partition(", ")[2] for n in whole.names(1001) if n.startswith("NCCL ")} == {
        "ranks 0-1",
        "ranks 1, 3",
    }
    assert "late: " in whole.processes[1001]["labels"]
    assert {e["name"] for _, _, e in whole.slices("calls")} == {"read"}
    assert "data_load" in {e["name"] for _, _, e in whole.slices("idle")}
    assert {e["name"] for _, _, e in whole.slices("nvtx")} >= {"step 0", "data_load", "ncclAllReduce"}
    steps = [e for _, _, e in whole.slices("steps") if e["pid"] == 1001]
    assert [e["name"] for e in steps] == [f"step {k}" for k in range(10)]
    assert min(e["args"]["delay_ns"] for e in steps) > 2 * MS


def test_marks_are_material_late_arrivals(job, whole):
    assert {m["pid"] for m in whole.marks} <= {1000, 1001}
    assert len([m for m in whole.marks if m["pid"] == 1001]) >= 10
    for m in whole.marks:
        assert m["args"]["lateness_ns"] >= 50_000
        assert m["name"].startswith("late by ")


def test_clocks_are_common(job, whole):
    """All ends of an instance lie within the jitter, though sessions began seconds apart."""
    ends: dict[int, list[int]] = {}
    for start, end, e in whole.slices("nccl"):
        if e["args"].get("instance") is not None:
            ends.setdefault(e["args"]["instance"], []).append(end)
            assert start < end
    assert ends
    assert max(max(x) - min(x) for x in ends.values()) < 200_000


def test_steps_and_ranks_narrow_it(job, whole, tmp_path):
    some = read(job.paths, tmp_path / "some.json.gz", "--step", "4-5", "--ranks", "0-1")
    assert {p["name"] for p in some.processes.values()} == {"rank 0 (nodeA)", "rank 1 (nodeA)"}
    assert {e["name"] for _, _, e in some.slices("steps")} >= {"step 4", "step 5"}
    kinds = ("compute", "nccl", "idle", "nvtx", "calls")
    for kind in kinds:
        assert 0 < len(some.slices(kind)) < len(whole.slices(kind)) / 2
        assert {e["pid"] for _, _, e in some.slices(kind)} == set(some.processes)
    # Arrows need both ends: of rank 0's instances with rank 2 none is left.
    assert 0 < len(some.starts) < len(whole.starts) / 2
    length = max(end for t in some.tracks.values() for _, end, _ in t.slices)
    assert max(end for _, end, _ in some.slices("steps")) <= length < 40 * MS


def test_equal_input_gives_equal_bytes(job, tmp_path):
    one, two = tmp_path / "one.json.gz", tmp_path / "two.json.gz"
    trace(job.paths, one)
    trace(reversed(job.paths), two)
    assert one.read_bytes() == two.read_bytes()


def test_what_it_says(job, tmp_path):
    out = tmp_path / "job.json"
    text = trace(job.paths, out)
    assert text.startswith("4 ranks, all of the capture (")
    assert text.endswith(f"open {out} in ui.perfetto.dev\n")
    assert len(text.splitlines()) == 1


def test_kernels_of_one_stream_that_overlap_get_a_second_track(tmp_path):
    def edit(rank, export):
        if rank == 0:
            export.kernel(3 * MS, 5 * MS, "lonely", stream=99)
            export.kernel(4 * MS, 6 * MS, "crossing", stream=99)

    job = synthetic(tmp_path, ranks=2, steps=9, edit=edit)
    names = read(job.paths, tmp_path / "out.json").names(1000)
    assert "compute, stream 99" in names
    assert "compute, stream 99 (2)" in names


def test_names_from_the_export_are_only_names(tmp_path):
    evil = '\x1b[31m"}]}\\ \n[/x] $y$ é'

    def edit(rank, export):
        export.nvtx(MS, 2 * MS, evil)

    job = synthetic(
        tmp_path, ranks=2, steps=9, nodes=["a\x1b", "a\x1b"], pattern="prof_{rank}.sqlite", edit=edit
    )
    found = read(job.paths, tmp_path / "out.json")
    assert evil.replace("\x1b", "?").replace("\n", "?") in {e["name"] for _, _, e in found.slices("nvtx")}
    assert {p["name"] for p in found.processes.values()} == {"rank 0 (a?)", "rank 1 (a?)"}


def test_several_ranks_in_one_report(tmp_path):
    job = synthetic(tmp_path, torchrun=True, environment=False, late={3: 2 * MS}, late_as="data_load")
    found = read(job.paths, tmp_path / "out.json")
    assert len(job.paths) == 2
    assert len(found.processes) == 4
    assert {e["pid"] for e in found.collectives()} == set(found.processes)
    assert found.starts


@pytest.mark.parametrize("table", ["OSRT_API", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"])
def test_what_was_not_captured_has_no_track(tmp_path, table):
    job = synthetic(tmp_path, ranks=2, steps=9, edit=lambda rank, export: export.drop(table))
    found = read(job.paths, tmp_path / "out.json")
    assert len(found.collectives()) == 18
    assert bool(found.slices("calls")) == (table == "NVTX_EVENTS")
    assert bool(found.slices("nvtx")) == (table != "NVTX_EVENTS")


def test_send_and_receive_are_shown_but_not_joined(tmp_path):
    def edit(rank, export):
        export.nccl("send", 2 * MS, 3 * MS, comm=7, stream=44)

    job = synthetic(tmp_path, ranks=2, steps=9, edit=edit)
    found = read(job.paths, tmp_path / "out.json")
    assert any(n.endswith("send and receive") for n in found.names(1000))
    assert len([e for e in found.collectives() if e["args"]["instance"] is None]) == 2


def test_broken_clock_order_stays_whole(tmp_path):
    """A clock that is set back makes ends come before starts; nothing may become negative."""

    def back(time_ns: int) -> int:
        return time_ns - (2 * MS if time_ns > 52 * MS else 0)

    job = synthetic(
        tmp_path, ranks=4, steps=20, step_ns=10 * MS, options={r: {"clock": back} for r in (2, 3)}
    )
    assert read(job.paths, tmp_path / "out.json").collectives()


def test_it_refuses_to_overwrite(job, tmp_path):
    out = tmp_path / "job.json"
    out.write_text("mine")
    with pytest.raises(RankdiffError, match="exists") as caught:
        trace(job.paths, out)
    assert "--force" in str(caught.value)
    assert out.read_text() == "mine"
    trace(job.paths, out, "--force")
    assert traces.read(out).starts
    assert [p.name for p in tmp_path.iterdir()] == ["job.json"]
    assert out.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_nothing_is_left_of_a_trace_that_failed(job, tmp_path, monkeypatch):
    from rankdiff import tracks

    real, calls = tracks.read_spans, []

    def fails(*args):
        calls.append(args)
        if len(calls) == 3:
            raise RankdiffError("the disk is gone")
        yield from real(*args)

    monkeypatch.setattr(tracks, "read_spans", fails)
    out = tmp_path / "out" / "job.json"
    out.parent.mkdir()
    with pytest.raises(RankdiffError, match="the disk is gone"):
        trace(job.paths, out)
    assert list(out.parent.iterdir()) == []
    out.write_text("mine")
    calls.clear()
    with pytest.raises(RankdiffError, match="the disk is gone"):
        trace(job.paths, out, "--force")
    assert out.read_text() == "mine"
    assert [p.name for p in out.parent.iterdir()] == ["job.json"]


def test_where_it_cannot_be_written(job, tmp_path):
    for out, words in ((tmp_path / "no" / "job.json", "no such folder"), (tmp_path / "a.json", "a folder")):
        if words == "a folder":
            out.mkdir()
        with pytest.raises(RankdiffError, match=words):
            trace(job.paths, out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "-o is missing"),
        (["-o", "job.txt"], "a trace ends in .json"),
        (["-o", "job.json", "--step", "5-3"], "runs backwards"),
        (["-o", "job.json", "--step", "x"], "is not a step"),
        (["-o", "job.json", "--ranks", "x"], "is not a rank"),
    ],
)
def test_usage(job, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, ["trace", str(job.paths[0]), *arguments])
    assert done.exit_code == 2
    assert words in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_step_or_a_rank_that_is_not_there(job, tmp_path):
    with pytest.raises(RankdiffError, match="no steps 20 to 30: the steps are 0 to 9"):
        trace(job.paths, tmp_path / "job.json", "--step", "20-30")
    with pytest.raises(RankdiffError, match="no report of rank 9"):
        trace(job.paths, tmp_path / "job.json", "--ranks", "0,9")
    assert list(tmp_path.iterdir()) == []


def test_large_traces_are_announced(job, tmp_path, monkeypatch):
    monkeypatch.setattr("rankdiff_cli.trace._MANY", 100)
    done = CliRunner().invoke(group, ["trace", *map(str, job.paths), "-o", str(tmp_path / "job.json")])
    assert done.exit_code == 0
    assert "--step" in done.output
    assert "--ranks" in done.output
    assert (tmp_path / "job.json").exists()


def test_the_guess_of_the_size_is_fair(job, whole):
    from rankdiff import tracks, windows

    c = compare([str(p) for p in job.paths]).comparison
    window = windows.whole_window(c)
    guess = tracks.expected_events(c, window, range(4))
    count = sum(len(t.slices) for t in whole.tracks.values()) + len(whole.starts)
    assert count / 3 < guess < 3 * count


def test_a_digest_cannot_be_drawn(job):
    from rankdiff import tracks, windows
    from rankdiff.digest import DigestOptions

    c = compare([str(p) for p in job.paths]).comparison
    found = tracks.read_tracks(c, (), DigestOptions(), windows.whole_window(c), (0, 1))
    with pytest.raises(RankdiffError, match="Give the exports themselves"):
        next(found)


def test_without_the_package_there_is_one_line(job, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "perfetto"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "perfetto", None)
    with pytest.raises(RankdiffError, match=r"rankdiff\[perfetto\]"):
        trace(job.paths, tmp_path / "job.pftrace")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("perfetto") is None, reason="needs the package perfetto")
def test_perfettos_own_format(job, whole, tmp_path):
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    one, two = tmp_path / "job.pftrace", tmp_path / "job.perfetto-trace"
    trace(job.paths, one)
    trace(job.paths, two)
    assert one.read_bytes() == two.read_bytes()
    message = Trace()
    message.ParseFromString(one.read_bytes())
    names, stacks, slices = {}, {}, []
    leaves, comes = {}, {}
    for packet in message.packet:
        for entry in packet.interned_data.event_names:
            names[entry.iid] = entry.name
        event, at = packet.track_event, packet.timestamp
        if event.type == event.TYPE_SLICE_BEGIN:
            stack = stacks.setdefault(event.track_uuid, [])
            slices.append([event.track_uuid, names[event.name_iid], at, None])
            stack.append(slices[-1])
            leaves |= dict.fromkeys(event.flow_ids, at)
            comes |= dict.fromkeys(event.terminating_flow_ids, at)
        elif event.type == event.TYPE_SLICE_END:
            top = stacks[event.track_uuid].pop()
            assert at >= top[2]
            top[3] = at
    assert not any(stacks.values())
    assert leaves.keys() == comes.keys() == whole.starts.keys()
    assert all(comes[number] == leaves[number] + 1 for number in leaves)
    expected = sorted(
        (e["name"], start + (e["name"] == "transfer"), end)
        for t in whole.tracks.values()
        for start, end, e in t.slices
    )
    found = sorted((name, start, end) for _, name, start, end in slices)
    assert [x[0] for x in found] == [x[0] for x in expected]
    assert sum(abs(a[1] - b[1]) for a, b in zip(found, expected, strict=True)) <= len(found)
    processes = [
        p.track_descriptor.process.process_name
        for p in message.packet
        if p.track_descriptor.HasField("process")
    ]
    assert processes == [p["name"] for p in whole.processes.values()]


def test_rooted_and_overlapping_collectives(tmp_path):
    phases = (Phase(overlap=True, count=3, stream=21), Phase(op="broadcast", stream=22))
    job = synthetic(tmp_path, phases=phases, steps=9, jitter_ns=300_000)
    found = read(job.paths, tmp_path / "out.json")
    assert {e["name"] for e in found.collectives()} == {"all_reduce", "broadcast"}
    assert {e["args"]["instance"] for e in found.collectives() if e["name"] == "broadcast"} == {None}


@pytest.mark.parametrize(("name", "matched"), [("data4", 80), ("tpdp4", 240)])
def test_real_captures(captures, tmp_path, name, matched):
    paths = sorted((captures / name).glob("*.sqlite"))
    found = read(paths, tmp_path / "job.json.gz")
    members, waited = met(paths)
    joined = [e for e in found.collectives() if e["args"]["instance"] is not None]
    assert len(joined) == members
    assert len({e["args"]["instance"] for e in joined}) == matched or name == "tpdp4"
    assert len(found.starts) == waited
    late = {"data4": 1002, "tpdp4": 1001}[name]
    assert found.processes[late]["labels"].startswith("late: ")
    assert max((m["pid"] for m in found.marks), key=[m["pid"] for m in found.marks].count) == late
    some = read(paths, tmp_path / "some.json", "--step", "5")
    assert 0 < len(some.collectives()) < len(found.collectives()) / 5


def test_what_cannot_be_compared_can_still_be_seen(captures, tmp_path):
    done = CliRunner().invoke(
        group, ["trace", *map(str, sorted((captures / "graph2").glob("*"))), "-o", str(tmp_path / "g.json")]
    )
    assert done.exit_code == 0
    assert "warning: rank 0, 1: no matched N x N collective" in done.output
    found = traces.read(tmp_path / "g.json")
    assert len(found.processes) == 2
    assert not found.starts
    assert found.slices("compute")


def test_ranks_of_another_run_are_left_out(captures, tmp_path):
    """Its clock is minutes away: with it the trace would be minutes of nothing."""
    mixed = [
        *sorted((captures / "data4").glob("*.sqlite"))[:3],
        captures / "healthy8" / "prof_gpu04_7.sqlite",
    ]
    found = read(mixed, tmp_path / "out.json")
    assert [p["name"] for p in found.processes.values()] == [f"rank {r} (gpu0{r // 2 + 1})" for r in range(3)]
    assert max(end for t in found.tracks.values() for _, end, _ in t.slices) < 2_000 * MS
