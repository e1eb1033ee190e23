"""Names of CUDA and OS calls: all that Nsight Systems traces by default and all that real exports hold."""

from __future__ import annotations

import re
import sqlite3

import pytest

from rankdiff.reports import call_names

# "OS Runtime Default Function List" of the Nsight Systems user guide, sorted.
TRACED_BY_DEFAULT = """
    _sysctl accept accept4 acct aio_fsync aio_fsync64 aio_suspend aio_suspend64 alarm arch_prctl bind bpf
    brk chroot clock_nanosleep connect copy_file_range creat creat64 dup dup2 dup3 epoll_ctl epoll_pwait
    epoll_wait fallocate fallocate64 fclose fcloseall fcntl fdatasync fflush fflush_unlocked fgetc
    fgetc_unlocked fgets fgets_unlocked fgetwc fgetwc_unlocked fgetws fgetws_unlocked flock flockfile
    fopen fopen64 fork forkpty fputc fputc_unlocked fputs fputs_unlocked fputwc fputwc_unlocked fputws
    fputws_unlocked fread fread_unlocked freopen freopen64 fsync ftruncate ftrylockfile futex fwrite
    fwrite_unlocked getc getc_unlocked getdelim getline getw getwc getwc_unlocked ioctl ioperm iopl kill
    killpg listen lockf lockf64 membarrier mkfifo mkfifoat mlock mlock2 mlockall mmap mmap64 mount
    move_pages mprotect mq_notify mq_open mq_receive mq_send mq_timedreceive mq_timedsend mremap msgctl
    msgget msgrcv msgsnd msync munmap nanosleep nfsservctl open open64 openat openat64 pause pipe pipe2
    pivot_root poll popen posix_fallocate posix_fallocate64 posix_spawn posix_spawnp ppoll prctl pread
    pread64 preadv preadv2 preadv64 process_vm_readv process_vm_writev pselect6 pthread_barrier_wait
    pthread_cancel pthread_cond_broadcast pthread_cond_signal pthread_cond_timedwait pthread_cond_wait
    pthread_create pthread_join pthread_kill pthread_mutex_lock pthread_mutex_timedlock
    pthread_mutex_trylock pthread_rwlock_rdlock pthread_rwlock_timedrdlock pthread_rwlock_timedwrlock
    pthread_rwlock_tryrdlock pthread_rwlock_trywrlock pthread_rwlock_wrlock pthread_spin_lock
    pthread_spin_trylock pthread_timedjoin_np pthread_tryjoin_np pthread_yield ptrace putc putc_unlocked
    putwc putwc_unlocked pwrite pwrite64 pwritev pwritev2 pwritev64 read readv reboot recv recvfrom
    recvmmsg recvmsg rt_sigaction rt_sigqueueinfo rt_sigsuspend rt_sigtimedwait sched_yield seccomp select
    sem_timedwait sem_trywait sem_wait semctl semget semop semtimedop send sendfile sendfile64 sendmmsg
    sendmsg sendto shmat shmctl shmdt shmget shutdown sigaction sigsuspend sigtimedwait sigwait
    sigwaitinfo sleep socket socketpair splice swapoff swapon sync sync_file_range syncfs system tee
    tgkill tgsigqueueinfo tkill truncate umount2 unshare uselib usleep vfork vhangup vmsplice wait wait3
    wait4 waitid waitpid write writev
"""


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
        ("cuMemcpyDtoH_v2_ptds", "cuMemcpyDtoH"),
        ("cudaGetDeviceProperties_v2_v12000", "cudaGetDeviceProperties"),
        ("cuMemAlloc_v2", "cuMemAlloc"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC"),
        ("cuArray3DCreate", "cuArray3DCreate"),
        ("", ""),
    ],
)
def test_strip_version(name, bare):
    assert call_names.strip_version(name) == bare


@pytest.mark.parametrize(
    ("expected", "names"),
    [
        (
            "launch",
            """cudaLaunchKernel cudaLaunchKernel_ptsz_v7000 cudaLaunchKernelExC_v11060 cudaLaunch_v3020
            cudaLaunchCooperativeKernel_v9000 cuLaunchKernel cuLaunchKernelEx_ptsz
            cuLaunchCooperativeKernel cudaGraphLaunch_v10000 cuGraphLaunch_ptsz
            cudaMemcpyAsync_v3020 cudaMemcpy2DAsync cudaMemcpyToSymbolAsync
            cudaMemcpyPeerAsync cudaMemcpyBatchAsync_v12080 cuMemcpyHtoDAsync_v2
            cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyAtoA_v2
            cudaMemcpyPeer cuMemcpy3DPeer cudaMemcpyArrayToArray cudaMemset_v3020
            cudaMemset2D cudaMemsetAsync_v3020 cuMemsetD8_v2 cuMemsetD32Async
            cudaMemPrefetchAsync_v8000 cuMemPrefetchAsync_v2""",
        ),
        (
            "sync",
            """cudaDeviceSynchronize_v3020 cudaStreamSynchronize_ptsz cudaEventSynchronize_v3020
            cudaThreadSynchronize cuCtxSynchronize cuCtxSynchronize_v2 cuStreamSynchronize
            cuEventSynchronize cudaMemcpy_v3020 cudaMemcpy_ptds_v7000 cudaMemcpy2D
            cudaMemcpy3D cudaMemcpyToSymbol cudaMemcpyFromSymbol cudaMemcpyToArray
            cudaMemcpy2DFromArray cuMemcpy cuMemcpy2D_v2 cuMemcpy2DUnaligned_v2
            cuMemcpyDtoH_v2 cuMemcpyHtoD_v2_ptds cuMemcpyAtoH_v2 cuMemcpyHtoA_v2""",
        ),
        (
            "alloc",
            """cudaMalloc cudaMalloc_v3020 cudaMallocAsync_v11020 cudaMallocManaged cudaMallocHost
            cudaMallocPitch cudaMalloc3DArray cudaFree_v3020 cudaFreeAsync_ptsz_v11020
            cudaFreeHost cudaHostAlloc_v3020 cudaHostRegister_v4000 cudaHostUnregister_v4000
            cuMemAlloc_v2 cuMemAllocAsync cuMemAllocHost_v2 cuMemAllocManaged
            cuMemAllocPitch_v2 cuMemFree_v2 cuMemFreeAsync cuMemFreeHost cuMemHostAlloc
            cuMemHostRegister_v2 cuMemHostUnregister cuMemCreate cuMemRelease cuMemMap
            cuMemUnmap cuMemSetAccess cuMemAddressReserve cuMemAddressFree cuMemPoolTrimTo
            cudaMemPoolTrimTo cuArrayCreate_v2 cuMipmappedArrayDestroy""",
        ),
        (
            "other",
            """cudaStreamWaitEvent_v3020 cuStreamWaitEvent_ptsz cudaEventQuery_v3020 cudaStreamQuery
            cudaEventRecord_v3020 cudaGetDevice_v3020 cuKernelGetName cuInit
            cudaGraphInstantiate_v10000 cudaGraphAddMemcpyNode cudaGraphKernelNodeSetParams
            cudaMemGetInfo cuMemHostGetDevicePointer_v2 cudaHostGetDevicePointer
            cuMemGetAllocationGranularity cuArrayGetDescriptor_v2 cudaMemAdvise
            cuModuleLoadData cudaSomethingNew_v99000 my_cudaMalloc""",
        ),
    ],
)
def test_cuda_class(expected, names):
    assert {name for name in names.split() if call_names.cuda_class(name) != expected} == set()


@pytest.mark.parametrize(
    ("expected", "names"),
    [
        (
            "io",
            """read pread64 readv preadv2 preadv64v2 write writev open open64 openat close fsync fdatasync
            lseek64 stat64 fstat64 __fxstat64 io_uring_enter io_getevents aio_suspend64
            msync fgets fgets_unlocked fread fwrite sendfile64 recv recvmsg send sendto
            connect accept4 __read_chk""",
        ),
        (
            "os_wait",
            """poll ppoll select pselect6 epoll_wait epoll_pwait sem_wait sem_timedwait sem_clockwait
            pthread_cond_wait pthread_cond_timedwait pthread_cond_clockwait
            pthread_mutex_lock pthread_rwlock_rdlock pthread_rwlock_wrlock pthread_spin_lock
            futex nanosleep clock_nanosleep usleep sleep sched_yield wait waitpid waitid
            pause sigwait sigwaitinfo pthread_join pthread_barrier_wait flock lockf64
            flockfile system mq_receive semop""",
        ),
        (
            "other",
            """pthread_cond_signal pthread_cond_broadcast pthread_create pthread_mutex_trylock sem_trywait
            ioctl mmap mmap64 munmap fcntl fcntl64 socket bind listen fork epoll_ctl
            ftrylockfile""",
        ),
    ],
)
def test_os_class(expected, names):
    assert {name for name in names.split() if call_names.os_class(name) != expected} == set()


@pytest.mark.parametrize("name", ["", "_", "64", "my_read", "readme", "poll_chk_", "cudaMalloc"])
def test_unknown_os_names_are_not_guessed(name):
    assert call_names.os_class(name) is None


def test_every_default_function_is_known():
    assert [name for name in TRACED_BY_DEFAULT.split() if call_names.os_class(name) is None] == []


def test_no_name_has_two_classes():
    tables = (call_names._IO, call_names._OS_WAIT, call_names._OTHER)
    names = [name for table in tables for name in table.split()]
    assert sorted(names) == sorted(set(names))


def distinct_names(folder, table, where):
    names = set()
    for path in sorted(folder.rglob("*.sqlite")):
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        try:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                query = f"SELECT value FROM StringIds WHERE id IN (SELECT nameId FROM {table} WHERE {where})"
                names.update(name for (name,) in connection.execute(query))
        finally:
            connection.close()
    return names


@pytest.mark.parametrize("source", ["captures", "public"])
def test_names_in_real_exports(source, request):
    folder = request.getfixturevalue(source)
    os_names = distinct_names(folder, "OSRT_API", "eventClass = 27")  # 31 and 32 are markers
    cuda_names = distinct_names(folder, "CUPTI_ACTIVITY_KIND_RUNTIME", "true")
    assert os_names
    assert cuda_names
    assert {name for name in os_names if call_names.os_class(name) is None} == set()
    # Whatever looks like one of the three classes is in one.
    telling = re.compile(r"Synchronize|Memcpy|Memset|Launch|Malloc|Free|HostAlloc|HostRegister")
    left_over = {name for name in cuda_names if call_names.cuda_class(name) == "other"}
    assert {name for name in left_over if telling.search(name)} == set()
