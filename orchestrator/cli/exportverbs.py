"""`export_trial` and `prune_model`: a smaller network as a folder; also for one's own program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lp_sweep.orchestrator.cli.options import DEFAULT_STORE
from lp_sweep.orchestrator.cli.output import say
from lp_sweep.orchestrator.cli.verbs import existing, opened
from lp_sweep.orchestrator.service.request import Request
from lp_sweep.storage.errors import LpSweepError, PreflightError, SpecError, StoreError
from lp_sweep.storage.places import expanded, node_folder
from lp_sweep.storage.store import Store

if TYPE_CHECKING:
    from lp_sweep.orchestrator.export.choice import Asked, Chosen
    from lp_sweep.orchestrator.export.prunedfolder import Pruned
    from lp_sweep.orchestrator.export.trialfolder import Exported
    from lp_sweep.orchestrator.inputs.models import ModelInput
    from lp_sweep.orchestrator.inputs.resolve import Sweep

_DEFAULT_FILE = "sweep.yaml"


def export_trial(
    trial: str | None = None,
    *,
    out: str | Path,
    best: Asked | None = None,
    store: str | None = None,
    sweep: str | None = None,
    setup: int | None = None,
    file: str | None = None,
    data_dir: Path | None = None,
    manifest: Path | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    force: bool = False,
    accept_retrained: bool = False,
    onnx: bool = False,
) -> Exported:
    """The network of `trial` (an identifier or the beginning of one), or the `best` one, in the
    folder `out`, which is there at the end or not at all.

    file: the sweep file (default sweep.yaml, if that is there) that says where a model and data of
    one's own are. Raises LpSweepError.
    """
    if (trial is None) == (best is None):
        raise SpecError("name a trial, or the task of which the best is taken: one of the two.")
    from lp_sweep.orchestrator.export.folder import check_free
    from lp_sweep.orchestrator.export.network import kept_instead
    from lp_sweep.orchestrator.export.places import Where
    from lp_sweep.orchestrator.export.trialfolder import Wanted, export, refuse_reduced

    out = expanded(out)
    check_free(out, force=force)
    if onnx:
        _check_onnx_packages()
    place = existing(store or DEFAULT_STORE)
    record, choice = _chosen(place, trial, best, sweep, setup)
    refuse_reduced(record)
    caution = " ".join(filter(None, (choice.caution, _caution(place, record, best))))
    say(f"{record['trial_id']}: {choice.why}")
    if choice.luck:
        say(choice.luck)
    if caution:
        say(f"warning: {caution}")
    if hint := kept_instead(place, record["trial_id"], choice.seeds):
        say(hint)
    request = Request(file or _DEFAULT_FILE, [], None, data_dir, offline, manifest)
    wanted = Wanted(
        record=record,
        chosen=" ".join(filter(None, (choice.why, choice.luck, caution))),
        out=out,
        where=Where(
            store=place,
            cache_dir=node_folder(cache_dir),
            sweep=_sweep(request, named=file is not None),
            data_dir=data_dir,
            offline=offline,
        ),
        force=force,
        accept_retrained=accept_retrained,
        onnx=onnx,
    )
    return export(wanted, say)


def prune_model(
    model: str,
    *,
    out: str | Path,
    strategy: str | None = None,
    k: int | None = None,
    layers: Sequence[int] = (),
    revision: str | None = None,
    offline: bool = False,
    force: bool = False,
) -> Pruned:
    """A folder or a model of the hub, without the layers that `strategy` drops (or of `layers`
    alone, 1-based), not fine-tuned, in the folder `out`. Raises LpSweepError."""
    from lp_sweep.orchestrator.export.folder import check_free
    from lp_sweep.orchestrator.export.prunedfolder import Cut, chosen_layers, prune
    from lp_sweep.orchestrator.inputs.models import find_model
    from lp_sweep.orchestrator.inputs.pins import Pins

    out = expanded(out)
    check_free(out, force=force)
    pins = Pins(offline=offline)
    found = find_model(model, revision=revision, layers=None, folder=Path.cwd(), pins=pins)
    kept = chosen_layers(found.depth, strategy, k, layers)
    how = f"strategy {strategy}" if strategy else "layers named by hand"
    say(f"{found.name}: {len(kept)} of {found.depth} layers stay, {how}")
    wanted = Cut(
        model=found,
        folder=_files_of(found, revision, offline),
        kept=kept,
        strategy=how,
        out=out,
        force=force,
        offline=offline,
    )
    return prune(wanted, say)


def _check_onnx_packages() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise PreflightError(
            f"ONNX needs packages that are not installed: {', '.join(missing)}. "
            "`pip install 'lp-sweep[onnx]'` installs them."
        )


def _chosen(
    store: Store, trial: str | None, best: Asked | None, sweep: str | None, setup: int | None
) -> tuple[Mapping[str, Any], Chosen]:
    """A record, and why it is that one."""
    from lp_sweep.orchestrator.cli.ledgerview import history
    from lp_sweep.orchestrator.export import choice

    if best is None:
        assert trial is not None
        chosen = choice.Chosen(trial, "Named by its identifier.", {})
    else:
        with opened(store.location, sweep, (best.within,), choice.VIEWS, setup) as catalog:
            chosen = choice.best(catalog, best, choice.stored_answers(store))
    found = history(store, chosen.trial_id)
    if found.id.startswith("p"):
        raise SpecError(f"{found.id} is a measurement and has no network. Name a trial.")
    if found.record is None:
        raise StoreError(
            f"{found.id} has no record: it failed, `lp-sweep logs {found.id}` says why. "
            "`lp-sweep retry` tries it again."
        )
    return found.record, chosen


def _caution(store: Store, record: Mapping[str, Any], best: Asked | None) -> str:
    """Where the network, or the one with all layers, is no better than guessing. Of the latter the
    choice of the best has spoken already."""
    from lp_sweep.analysis.untaught import untaught_network
    from lp_sweep.orchestrator.export.facts import full_record
    from lp_sweep.orchestrator.export.places import spec_of

    full = None if best else full_record(store, spec_of(record), record["depth"])
    return untaught_network(record, full)


def _sweep(request: Request, *, named: bool) -> Sweep | None:
    """A file that nobody named and that is of no use is none: the hub may be all that is needed."""
    from lp_sweep.orchestrator.inputs.resolve import resolve

    if not named and not Path(request.file).is_file():
        return None
    try:
        return resolve(
            request.sweep_file(),
            data_dir=request.data_dir,
            offline=request.offline,
            manifest=request.manifest,
        )
    except LpSweepError as error:
        if named:
            raise
        say(f"note: {request.file} is not looked at: {error}")
        return None


def _files_of(model: ModelInput, revision: str | None, offline: bool) -> Path:
    """The folder of its files, fetched where they are the hub's. Raises PreflightError."""
    if not model.of_hub:
        return Path(model.path)
    from lp_sweep.orchestrator.inputs import hub
    from lp_sweep.orchestrator.inputs.hub import DEFAULT_REVISION
    from lp_sweep.orchestrator.inputs.prefetch import fetch_model
    from lp_sweep.orchestrator.inputs.weights import folder_problems

    if not model.pinned:
        why = model.why_not_pinned
        raise PreflightError(f"model {model.name!r}: its commit is not known: {why}.")
    folder = hub.snapshot("model", model.path, str(model.revision))
    if not offline and folder_problems(folder, depth=model.depth):
        fetch_model(model, revision or DEFAULT_REVISION)
    if problems := folder_problems(folder, depth=model.depth):
        raise PreflightError(
            f"model {model.name!r} at {model.revision} is not in the Hugging Face cache: "
            f"{'; '.join(problems)}. Leave out --offline to fetch it."
        )
    return folder
