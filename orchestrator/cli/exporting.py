"""`lp-sweep export` and `lp-sweep prune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from lp_sweep.orchestrator.cli.output import emit, end_in_order, say
from lp_sweep.orchestrator.options import (
    ExportOptions,
    ForceOption,
    JsonOption,
    OfflineOption,
    OutOption,
    strategies,
    takes_options,
)
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.spec.select import by_position

app = typer.Typer()

PushOption = Annotated[
    str | None, Option("--push-to-hub", help="Also send it to this hub repository.")
]
PrivateOption = Annotated[
    bool, Option("--private", envvar="LP_SWEEP_PRIVATE", help="Create the repository as private.")
]


@app.command()
@takes_options
def export(
    options: ExportOptions,
    push_to_hub: PushOption = None,
    private: PrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained network as a verified folder for plain transformers.

    Example: lp-sweep export --best --task rte --within 1 --out smaller
    """
    from lp_sweep.orchestrator.service.export import export_trial

    _check_push(push_to_hub, options.offline, private)
    end_in_order()
    done = export_trial(options)
    score = f"{done.metric} {done.score:.2f}"
    if done.interval:
        score += f" (95% {done.interval[0]:.2f} to {done.interval[1]:.2f} over the dev set)"
    same = f"its {done.verified.examples:,} answers are those in the store"
    say(f"{len(done.kept_layers)} layers, {score}; {same}. How to load it: {done.folder}/README.md")
    told = done._asdict() | {"verified": done.verified._asdict()}
    _finish(told, push_to_hub, private, as_json)


@app.command()
def prune(
    model: Annotated[str, Argument(help="A model folder, or a hub model.")],
    out: OutOption,
    strategy: Annotated[
        str | None, Option("--strategy", autocompletion=strategies, help=f"{by_position()}.")
    ] = None,
    k: Annotated[int | None, Option("--k", help="How many layers to drop.")] = None,
    layers: Annotated[
        str | None, Option("--layers", help="Layers to keep, such as 1,2,5; 1 is the lowest.")
    ] = None,
    revision: Annotated[str | None, Option("--revision", help="Hub commit, branch or tag.")] = None,
    offline: OfflineOption = False,
    force: ForceOption = False,
    push_to_hub: PushOption = None,
    private: PrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a pre-trained model without some of its layers, to fine-tune elsewhere.

    Example: lp-sweep prune bert-base-cased --strategy top --k 6 --out bert-6-layers
    """
    from lp_sweep.orchestrator.service.export import prune_model

    _check_push(push_to_hub, offline, private)
    try:
        kept = [int(part) for part in layers.split(",")] if layers is not None else []
    except ValueError:
        raise SpecError(
            f"--layers {layers!r}: give numbers separated by commas, such as 1,2,5."
        ) from None
    end_in_order()
    done = prune_model(
        model,
        out=out,
        strategy=strategy,
        k=k,
        layers=kept,
        revision=revision,
        offline=offline,
        force=force,
    )
    _finish(done._asdict(), push_to_hub, private, as_json)


def _check_push(repo_id: str | None, offline: bool, private: bool) -> None:
    if private and repo_id is None:
        raise SpecError("--private is for --push-to-hub.")
    if repo_id is not None:
        from lp_sweep.orchestrator.export.folder import check_may_push

        check_may_push(repo_id, offline=offline)


def _finish(told: dict[str, Any], repo_id: str | None, private: bool, as_json: bool) -> None:
    """Pushes the folder if asked to, then prints the folder, or all facts as JSON."""
    if repo_id is not None:
        from lp_sweep.orchestrator.export.folder import push

        told["hub"] = push(Path(told["folder"]), repo_id, private=private)
        say(f"sent to {told['hub']}")
    emit(json.dumps(told) if as_json else told["folder"])
