"""What the CPU does in a call, by its name: CUDA API calls and OS runtime calls.

A name says what a call is for, not what it waited for. The rules:

* CUDA: `sync` lets the CPU wait for the GPU, `launch` puts work in a stream, `alloc` makes, frees, pins or
  maps memory (and may wait for the GPU, too). No name tells that cudaMemcpyAsync waits where the memory is
  pageable.
* OS: `io` moves bytes, or opens and closes what they move through, be it a file, a pipe or a socket: `read`
  does not say which, and a loader that reads an object store sits in `recv`. `os_wait` lets the thread wait
  for time, a lock, an event or another process; the yield of a spin loop is a wait. `other` is known to be
  neither: the call computes or returns at once, and its time counts as code of the thread.
"""

from __future__ import annotations

import re
from typing import Literal

CudaClass = Literal["launch", "sync", "alloc", "other"]
OsClass = Literal["io", "os_wait", "other"]

# cudaLaunchKernel_ptsz_v7000, cuMemcpyHtoDAsync_v2_ptsz, cudaGetDeviceProperties_v2_v12000: API versions and
# the per-thread default stream, in any order.
_VERSION = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")

# The whole name without version, first match wins. Which copies wait: "API synchronization behavior" in the
# CUDA manuals. Copies with a host side wait; copies between devices and sets return at once, with or without
# `Async`. cudaStreamWaitEvent lets the stream wait, not the CPU; Query and Record return at once.
_CUDA: tuple[tuple[re.Pattern[str], CudaClass], ...] = (
    (
        re.compile(
            r"cu(?:da)?\w+Synchronize"
            r"|cudaMemcpy(?:2D|3D)?(?:(?:To|From)(?:Array|Symbol))?"
            r"|cuMemcpy(?:2D|2DUnaligned|3D|[DA]toH|Hto[DA])?"
        ),
        "sync",
    ),
    (
        re.compile(
            r"cu(?:da)?(?:Graph)?Launch\w*"
            r"|cu(?:da)?(?:Memcpy|MemPrefetch)\w*Async"
            r"|cu(?:da)?Memset\w*"
            r"|cu(?:da)?Memcpy(?:3D)?Peer"
            r"|cudaMemcpy(?:2D)?ArrayToArray|cuMemcpy[DA]to[DA]"
        ),
        "launch",
    ),
    (
        re.compile(
            r"cuda(?:Malloc|Free)\w*"
            r"|cudaHost(?:Alloc|Register|Unregister)"
            r"|cuMem(?:Alloc|Free|Host(?:Alloc|Register|Unregister))\w*"
            r"|cuMem(?:Create|Release|Map|MapArrayAsync|Unmap|SetAccess|AddressReserve|AddressFree)"
            r"|cu(?:da)?MemPool(?:Create|Destroy|TrimTo)"
            r"|cu(?:Array|Array3D|MipmappedArray)(?:Create|Destroy)"
        ),
        "alloc",
    ),
)

# Variants of one call: glibc's internal name, fortified, without lock, for large files.
_OS_VARIANT = re.compile(r"^_+|(?:64)?(?:_chk|_unlocked|_nocancel)$|64$")

# The functions that Nsight Systems traces by default ("OS Runtime Default Function List" in its user guide),
# those seen in exports beside it (fstat64, stat64, fcntl64, sem_clockwait), and their closest relatives.
_IO = """
    open openat openat2 creat close copy_file_range fallocate fdatasync fsync ftruncate truncate lseek msync
    pread preadv preadv2 preadv64v2 read readv readahead
    pwrite pwritev pwritev2 pwritev64v2 write writev
    sendfile splice tee vmsplice sync sync_file_range syncfs
    stat fstat lstat fstatat statx xstat fxstat lxstat fxstatat statfs fstatfs
    access faccessat getdents opendir readdir closedir rename renameat unlink unlinkat mkdir mkdirat rmdir
    accept accept4 connect recv recvfrom recvmmsg recvmsg send sendmmsg sendmsg sendto
    aio_fsync aio_read aio_write aio_suspend lio_listio io_submit io_getevents io_pgetevents
    io_uring_enter
    fopen freopen fclose fcloseall fflush fread fwrite fgetc fgets fgetwc fgetws fputc fputs fputwc fputws
    getc getdelim getline getw getwc putc putw putwc fseek fseeko
    mkfifo mkfifoat posix_fallocate
"""
_OS_WAIT = """
    clock_nanosleep nanosleep sleep usleep pause sched_yield pthread_yield thrd_sleep thrd_yield
    epoll_wait epoll_pwait epoll_pwait2 poll ppoll pselect pselect6 select
    futex pthread_barrier_wait pthread_cond_clockwait pthread_cond_timedwait pthread_cond_wait
    pthread_mutex_clocklock pthread_mutex_lock pthread_mutex_timedlock pthread_spin_lock
    pthread_rwlock_clockrdlock pthread_rwlock_clockwrlock pthread_rwlock_rdlock pthread_rwlock_timedrdlock
    pthread_rwlock_timedwrlock pthread_rwlock_wrlock
    pthread_clockjoin_np pthread_join pthread_timedjoin_np
    sem_clockwait sem_timedwait sem_wait semop semtimedop
    flock flockfile lockf
    mq_receive mq_send mq_timedreceive mq_timedsend msgrcv msgsnd
    rt_sigsuspend rt_sigtimedwait sigsuspend sigtimedwait sigwait sigwaitinfo
    wait wait3 wait4 waitid waitpid pclose system
"""
# mmap only makes the mapping: the reads behind it are page faults, which no call shows. ioctl is mostly the
# CUDA driver's, inside a CUDA call that counts before it. fcntl locks files too, but mostly sets flags.
_OTHER = """
    acct alarm arch_prctl bpf chroot ioperm iopl mount nfsservctl pivot_root prctl ptrace reboot seccomp
    swapoff swapon sysctl umount umount2 unshare uselib vhangup
    brk madvise membarrier mlock mlock2 mlockall mmap move_pages mprotect mremap munlock munmap
    process_vm_readv process_vm_writev shmat shmctl shmdt shmget
    bind dup dup2 dup3 epoll_create epoll_create1 epoll_ctl eventfd fcntl ioctl io_uring_setup listen
    pipe pipe2 shutdown socket socketpair
    clone fork forkpty vfork popen posix_spawn posix_spawnp
    kill killpg mq_notify mq_open msgctl msgget rt_sigaction rt_sigqueueinfo semctl semget sigaction
    tgkill tgsigqueueinfo tkill
    ftrylockfile pthread_cancel pthread_cond_broadcast pthread_cond_signal pthread_create pthread_kill
    pthread_mutex_trylock pthread_mutex_unlock pthread_rwlock_tryrdlock pthread_rwlock_trywrlock
    pthread_rwlock_unlock pthread_spin_trylock pthread_tryjoin_np sem_post sem_trywait
"""
_OS: dict[str, OsClass] = {
    **dict.fromkeys(_IO.split(), "io"),
    **dict.fromkeys(_OS_WAIT.split(), "os_wait"),
    **dict.fromkeys(_OTHER.split(), "other"),
}


def strip_version(name: str) -> str:
    """Name of a CUDA API call without API version and stream variant.

    Parameters
    ----------
    name : str
        As recorded: the runtime's carry the CUDA version that brought the call (``cudaMalloc_v3020``), the
        driver's a revision (``cuMemAlloc_v2``), both perhaps ``_ptsz`` or ``_ptds``.

    Returns
    -------
    str
        ``cudaMalloc``, ``cuMemAlloc``; a name without such endings as it is.
    """
    return _VERSION.sub("", name)


def cuda_class(name: str) -> CudaClass:
    """What the CPU does in a CUDA API call of that name, of the runtime or the driver, in any version.

    Parameters
    ----------
    name : str
        As recorded, with or without version.

    Returns
    -------
    {'launch', 'sync', 'alloc', 'other'}
        `other` for every name that is none of the three, unknown ones included.
    """
    bare = strip_version(name)
    for pattern, found in _CUDA:
        if pattern.fullmatch(bare):
            return found
    return "other"


def os_class(name: str) -> OsClass | None:
    """What the CPU does in an OS runtime call of that name.

    Parameters
    ----------
    name : str
        As recorded, ``pread64`` and ``fgets_unlocked`` as well as ``pread`` and ``fgets``.

    Returns
    -------
    {'io', 'os_wait', 'other'} or None
        None for a name that the table does not have: to be reported, not to be guessed.
    """
    return _OS.get(name) or _OS.get(_OS_VARIANT.sub("", name))
