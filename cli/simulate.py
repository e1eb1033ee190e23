"""`rankdiff simulate`: a synthetic job with planted faults."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from rankdiff_cli.options import OutputPath
from rankdiff_cli.output import write


@click.command(name="simulate")
@click.argument("folder", metavar="DIR", type=OutputPath())
@click.option("--ranks", type=click.IntRange(1, 1024), default=8, show_default=True)
@click.option("--nodes", type=click.IntRange(1, 1024), default=2, show_default=True, help="Filled in blocks.")
@click.option("--steps", type=click.IntRange(2, 100_000), default=20, show_default=True)
@click.option(
    "--step-ms",
    type=click.FloatRange(1, 60_000),
    default=20.0,
    show_default=True,
    help="Compute of a rank in a step; loading and communication come on top.",
)
@click.option("--dp", type=click.IntRange(1), help="Data-parallel size; the default is what is left.")
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Tensor-parallel size.")
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--micro-batches", type=click.IntRange(1, 256), default=1, show_default=True, help="Of a step.")
@click.option("--stage-work", help="Work of each pipeline stage, as a multiple of --step-ms, like 1,1.5.")
@click.option(
    "--jitter",
    default="normal:1%",
    show_default=True,
    help="Family (normal, exponential, pareto) and scale of a rank's compute in a step.",
)
@click.option("--fault", "faults", multiple=True, help="KIND:KEY=VALUE:..., see below; may be repeated.")
@click.option(
    "--clock", "clocks", multiple=True, help="node=n02:offset=3.5ms:drift=8ppm:step=10ms@5s; may be repeated."
)
@click.option("--window", "windows", multiple=True, help="rank=3:skip=4:end=2, in steps; may be repeated.")
@click.option("--no-payloads", is_flag=True, help="As exported without --include-blobs.")
@click.option("--no-osrt", is_flag=True, help="As captured without OS calls.")
@click.option("--no-nvtx", is_flag=True, help="As captured without NVTX.")
@click.option("--schema", type=click.Choice(("2.9", "3.20", "3.24")), default="3.20", show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--force", is_flag=True, help="Replace the simulated job that lies in DIR.")
def command(
    folder: Path,
    ranks: int,
    nodes: int,
    steps: int,
    step_ms: float,
    dp: int | None,
    tp: int,
    pp: int,
    micro_batches: int,
    stage_work: str | None,
    jitter: str,
    faults: tuple[str, ...],
    clocks: tuple[str, ...],
    windows: tuple[str, ...],
    no_payloads: bool,
    no_osrt: bool,
    no_nvtx: bool,
    schema: str,
    seed: int,
    force: bool,
) -> int:
    """Write a synthetic job into DIR, with the truth about it in truth.json.

    One SQLite export per rank, as nsys would have written them. The same options and seed give the same bytes.

    \b
    --fault data_load:rank=5:ms=30        a slow data loader
    --fault gpu_slow:node=n02:factor=1.15 all GPUs of a node
    --fault host:rank=2:every=7:ms=400:range=save_checkpoint
    --fault io|os_wait|alloc|sync|copy|gpu_work:rank=0-3,7:ms=5:first=4:last=9
    --fault gpu_grid:rank=1:factor=1.3    more work, in larger kernels
    --fault network:node=n02:factor=3     transfers between it and others
    --fault rotate:ms=25                  in step k rank k mod n sleeps
    --fault startup, startup:ms=2000      a skewed first step
    --fault lost_events:rank=3:share=0.01 kernels missing
    --fault profiler:rank=2:ms=5          the profiler itself

    Exit status: 0 done; 1 rankdiff could not do it; 2 usage.
    """  # noqa: D301 - click's mark of a block to leave as it is
    from rankdiff import simulation as sim
    from rankdiff.untrusted import clean

    family, share = sim.parse_jitter(jitter)
    settings = sim.Settings(
        ranks=ranks,
        nodes=nodes,
        steps=steps,
        step_ms=step_ms,
        dp=dp or 0,
        tp=tp,
        pp=pp,
        micro_batches=micro_batches,
        stage_work=sim.parse_stage_work(stage_work) if stage_work else (),
        jitter=family,
        jitter_share=share,
        faults=[sim.parse_fault(text) for text in faults],
        clocks=[sim.parse_clock(text) for text in clocks],
        windows=[sim.parse_window(text) for text in windows],
        payloads=not no_payloads,
        osrt=not no_osrt,
        nvtx=not no_nvtx,
        schema=schema,
        seed=seed,
    )
    made = sim.simulate(folder, settings, force=force)
    what = ", ".join(faults) if faults else "no fault"
    # To be pasted into a shell, where a leading - would be an option.
    place = shlex.quote(f"./{folder}" if str(folder).startswith("-") else str(folder))
    write(
        f"{len(made.reports)} reports of {steps} steps on {nodes} node{'s' * (nodes > 1)}, {clean(what)}; "
        f"truth in {clean(str(made.truth_file))}. Try: rankdiff compare {clean(place)}/*.sqlite\n"
    )
    return 0
