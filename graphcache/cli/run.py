"""``graphcache run``: real vLLM engines over a stream of requests, and what each policy made of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcache.cli.output import (
    AsJson,
    StoreOption,
    counted_bars,
    example,
    print_json,
    print_table,
    seconds,
)

if TYPE_CHECKING:
    from graphcache.run import Job, Result
    from graphcache.trace import Trace

POLICIES = ["static-causal", "static-mask", "dynamic-dual"]
GENERATED_LOAD = 0.3
"""A trace that was generated for faster machines would keep this one busy all the time."""


def commands(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "run",
        epilog=example(
            "graphcache run",
            "graphcache run --model ./my-model --policy dynamic-dual --trace requests.csv --load 0.3",
        ),
    )(run)


def run(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A shipped policy's name or a YAML file; may be given several times."
            f" Without it: {', '.join(POLICIES)}."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="An embedding model of decoder type; by default a Qwen3 of 4 layers with random weights.",
        ),
    ] = None,
    trace: Annotated[
        str, typer.Option(help="A trace's file, or the name of one to generate, such as azure-conv.")
    ] = "azure-conv",
    requests: Annotated[int, typer.Option(min=1, help="How many of the trace's requests to serve.")] = 48,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, help="Sequences in one step; static-causal always gets 1.")
    ] = 4,
    max_model_len: Annotated[
        int, typer.Option(min=1, help="The longest prompt in tokens; longer ones are left out and counted.")
    ] = 2048,
    load: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Stretch arrivals until one sequence a step would keep the engine busy that share of time;"
            " 0.3 for a generated trace, a recorded one's own arrivals if left out.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Of the generated trace and of the tokens.")] = 0,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Serve a stream of requests with real vLLM, once per policy, and compare.

    The first run compiles; the next one finds the artifacts in the store.  Waiting for arrivals is
    skipped, not waited for.
    """
    from graphcache.listing import chosen_store
    from graphcache.run import default_model, jobs
    from graphcache.trace import SOURCES

    stream, left_out = _stream(trace, requests, max_model_len, seed)
    directory = chosen_store(store)
    planned = jobs(
        stream,
        policy or POLICIES,
        model=model or default_model(directory.parent / "graphcache-models"),
        store=directory,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        dtype=dtype,
        seed=seed,
        load=GENERATED_LOAD if load is None and trace in SOURCES else load,
    )
    results = _run(planned)
    rows = [result.row() for result in results]
    if as_json:
        print_json({"trace": stream.name, "left_out": left_out, "store": str(directory), "rows": rows})
        return
    _print(stream, left_out, results, rows)


def _stream(trace: str, requests: int, max_model_len: int, seed: int) -> tuple[Trace, int]:
    """Return the requests that fit the model, and how many did not."""
    from graphcache.errors import ConfigError
    from graphcache.trace import SOURCES, Trace, generate, read_trace

    if trace in SOURCES:
        read: object = generate(trace, requests, seed=seed)
    else:
        read = read_trace(trace, seed=seed)
    if not isinstance(read, Trace):
        raise ConfigError.of("trace", trace, "a trace of requests, not of steps")
    first = read.first(requests)
    fits = first.prompt_tokens <= max_model_len
    return first.select(fits), int((~fits).sum())


def _run(planned: list[Job]) -> list[Result]:
    """Run the jobs with a progress bar each; the stretch that the first one found serves all."""
    from dataclasses import replace

    from graphcache.run import run_job

    results: list[Result] = []
    with counted_bars() as progress:
        for job in planned:
            task = progress.add_task(f"{job.policy}: starting vLLM", total=None)

            def report(event: dict[str, Any], job: Job = job, task: Any = task) -> None:
                words, done, of = _told(event)
                progress.update(task, description=f"{job.policy}: {words}", completed=done, total=of)

            if results and job.load is not None:
                job = replace(job, load=None, stretch=results[0].stretch)
            results.append(run_job(job, report))
            count = len(job.prompt_tokens)
            progress.update(task, description=f"{job.policy}: served", completed=count, total=count)
    return results


def _told(event: dict[str, Any]) -> tuple[str, int, int | None]:
    """Return what an engine's event means to a reader, and how far it has come."""
    match event["event"]:
        case "warm":
            return f"graph {event['key']}", event["index"] - 1, event["of"]
        case "done":
            return "serving", event["done"], event["of"]
    return "warm", 0, None


def _print(stream: Trace, left_out: int, results: list[Result], rows: list[dict[str, Any]]) -> None:
    from graphcache.bytesize import format_bytes

    columns = ["policy", "#seqs", "#steps", "#hits", "#loads", "#compiles", "#fallbacks", "#compiling s"]
    columns += ["#running s", "#tokens/s", "#p50 step ms", "#p99 step ms", "#graphs", "#bytes"]
    cells = [
        (
            row["policy"],
            row["max_num_seqs"],
            row["steps"],
            *(row[name] for name in ("hits", "loads", "compiles", "fallbacks")),
            seconds(row["compile_seconds"]),
            seconds(row["run_seconds"]),
            round(row["tokens_per_second"]),
            *(round(1000 * row[f"{name}_step_seconds"]) for name in ("p50", "p99")),
            row["resident_graphs"],
            format_bytes(row["resident_bytes"]),
        )
        for row in rows
    ]
    tokens = int(stream.prompt_tokens.sum())
    notes = [f"{len(stream)} requests, {tokens} tokens; {left_out} longer ones left out", *stream.notes]
    if any(result.stretch != 1.0 for result in results):
        notes.append(f"arrivals stretched {results[0].stretch:.2f} times")
    print_table(stream.name, columns, cells, "; ".join(notes))
