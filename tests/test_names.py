"""Names of kernels, ranges and files."""

from __future__ import annotations

import re

import pytest

from rankdiff.reports import names
from tests.oracles import figures as oracle

NCCL = {
    "ncclKernel_AllReduce_RING_LL_Sum_float": "all_reduce",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "all_reduce",
    "ncclDevKernel_AllGather_RING_LL": "all_gather",
    "ncclDevKernel_AllGatherV_RING_LL": "all_gather",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL": "reduce_scatter",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL": "reduce",
    "ncclReduceRingLLKernel_sum_f32": "reduce",
    "ncclDevKernel_Broadcast_RING_LL": "broadcast",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)": "send_recv",
    "ncclSendRecvKernel_copy_i8": "send_recv",
    "ncclDevKernel_Generic": "unknown",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": "unknown",
    "ncclAllReduceTreeLLKernel_sum_f32": "all_reduce",
    "ncclSymDevKernel_AllReduce_AGxLL_R_sum_bf16": "all_reduce",
    "ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLDMC_avg_f16": "reduce_scatter",
    "ncclSymkDevKernel_AllGather_STMC": "all_gather",
    "void ncclKernel_AllReduce_TREE_LL_Sum_half": "all_reduce",
    "mscclKernel_Sum_half_LL_false": "unknown",
}
OTHERS = [
    "ncclDevKernel_nop",
    "multimem_all_reduce_kernel",
    "nccl_test_kernel",
    "myncclKernel_AllReduce",
    "void vllm::cross_device_reduce_1stage<float, 8>",
    "ncclDevFuncTable",
    "one_shot_all_reduce_kernel",
    "",
]


@pytest.mark.parametrize(("name", "op"), NCCL.items())
def test_nccl_kernels(name, op):
    assert names.is_nccl_kernel(name)
    assert oracle.NCCL.match(name)
    assert names.kernel_op(name) == op


@pytest.mark.parametrize("name", OTHERS)
def test_kernels_that_only_look_like_nccl(name):
    assert not names.is_nccl_kernel(name)
    assert not oracle.NCCL.match(name)


def test_lower_case_builds_are_recognised():
    name = "ncclsymkdevkernel_reducescatter_ldmc"
    assert names.is_nccl_kernel(name)
    assert names.kernel_op(name) == "reduce_scatter"


def test_all_kernel_names_of_all_generations(shared):
    known, others = (shared / "nccl_kernel_names.txt").read_text().split("\n\n")
    for name in known.splitlines():
        assert names.is_nccl_kernel(name), name
        told = names.kernel_op(name)
        assert told != "unknown" or "Generic" in name or name.startswith("msccl"), name
    for name in others.splitlines():
        assert not names.is_nccl_kernel(name), name


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclAllReduce", "all_reduce"),
        ("ncclAlltoAll", "all_to_all"),
        ("ncclBcast", "broadcast"),
        ("ncclSend", "send"),
        ("ncclGather", "gather"),
        ("ncclGroupStart", "group_start"),
        ("ncclGroupEnd", "group_end"),
        ("ncclCommInitRank", None),
        ("ncclCommCount", None),
        ("ncclGroupSimulateEnd", None),
        ("nccl:all_reduce, op_id = 7", None),  # PyTorch's range, not NCCL's
        ("AllReduce", None),
    ],
)
def test_nccl_ranges(name, op):
    assert names.nvtx_op(name) == op


@pytest.mark.parametrize(
    ("op", "kind"),
    [("all_reduce", "nxn"), ("broadcast", "rooted"), ("send_recv", "p2p"), ("unknown", "unknown")],
)
def test_op_classes(op, kind):
    assert names.op_class(op) == kind


@pytest.mark.parametrize(
    ("name", "label", "number"),
    [
        ("step 12", "step", 12),
        ("step", "step", None),
        ("iteration_3", "iteration", 3),
        ("ProfilerStep#7", "ProfilerStep", 7),
        ("step=12", "step", 12),
        ("train_step 4", "train_step", 4),
        ("torch:Step[9]", "Step", 9),
        ("batch-0", "batch", 0),
        ("iter", "iter", None),
    ],
)
def test_step_ranges(name, label, number):
    match = re.match(names.DEFAULT_STEP_RANGE, name)
    assert match
    assert names.step_name(match) == (label, number)


@pytest.mark.parametrize(
    "name", ["step_function_x", "batch_norm", "stepper", "my step 3", "iteration_3_end", ""]
)
def test_no_step_ranges(name):
    assert not re.match(names.DEFAULT_STEP_RANGE, name)


def test_step_names_of_a_users_pattern():
    match = re.match(r"epoch \d+ it", "epoch 3 it 12")
    assert match
    assert names.step_name(match) == ("epoch # it", 12)
    named = re.match(r"(?P<name>work) \d+ of (?P<number>\d+)", "work 5 of 9")
    assert named
    assert names.step_name(named) == ("work", 9)


@pytest.mark.parametrize(
    "name",
    [
        "data_load",
        "data_load step=12",
        "DataLoader.next",
        "torch:data_load",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "next_batch",
        "get_data",
        "[DALI][CPU op] decode",
    ],
)
def test_data_ranges(name):
    assert names.DEFAULT_DATA_RANGE == oracle.DATA
    assert re.match(names.DEFAULT_DATA_RANGE, name)


@pytest.mark.parametrize("name", ["preload_data_loader_cfg", "get_database", "forward"])
def test_no_data_ranges(name):
    assert not re.match(names.DEFAULT_DATA_RANGE, name)


@pytest.mark.parametrize(
    ("file", "node", "rank"),
    [
        ("prof_gpu-a100-07_11.sqlite", "gpu-a100-07", 11),
        ("prof_node_with_underscore_3_12.sqlite", "node_with_underscore_3", 12),
        ("prof_n01.cluster.local_2.sqlite", "n01.cluster.local", 2),
        ("prof_nodeA_03.sqlite", "nodeA", 3),
        ("prof_7.sqlite", None, 7),
        ("prof_gpu01.sqlite", "gpu01", None),
        ("prof_gpu01_0.nsys-rep.sqlite", "gpu01", 0),
        ("report1.sqlite", None, None),
        ("prof_20260131.sqlite", "20260131", None),
    ],
)
def test_file_names(file, node, rank):
    assert names.file_identity(file) == (node, rank)


def test_natural_order():
    files = ["prof_10", "prof_2", "prof_1", "prof_a", "prof_1b"]
    assert sorted(files, key=names.natural_key) == ["prof_1", "prof_1b", "prof_2", "prof_10", "prof_a"]
