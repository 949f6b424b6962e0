"""Rows of a data set of the Hugging Face hub, at one commit, as an Arrow table.

Never another commit than the one asked for: `datasets` falls back to the latest one cached (or to a
folder of this name) when the hub doesn't answer, and that is refused here. `datasets` is imported
only inside, and the hub is asked only for what the cache doesn't hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.readers import require_columns
from lp_sweep.trials.tasks import TaskSource, is_commit


def read_hub(source: TaskSource, split: str, columns: Sequence[str], *, offline: bool) -> pa.Table:
    """The `columns` of a split of a hub data set; from the cache, without asking, if it is there.

    Raises MissingInputError: not there, another commit, or fewer rows than were once written.
    """
    where = f"{source.dataset}@{source.revision}"
    if not is_commit(source.revision):
        raise MissingInputError(
            f"{where}: a branch moves, and the rows must not. Write `revision:` and a commit of 40 "
            f"hex digits from https://huggingface.co/datasets/{source.dataset}/commits/main, or "
            f"let `lp-sweep prefetch` find it."
        )
    try:
        builder = _cached_builder(source)
        if builder is None:
            builder = _nothing_cached(source) if offline else hub_builder(source)
            _refuse_guess(source, builder)
            builder.download_and_prepare()
        table, wanted = _rows(builder, source.splits[split])
    except MissingInputError:
        raise
    except Exception as error:  # the hub's clients raise dozens of types, from three libraries
        raise MissingInputError(
            f"{where}: can't load {source.config or 'the default configuration'}, split "
            f"{source.splits[split]!r}, {'offline ' if offline else ''}from the Hugging Face hub: "
            f"{type(error).__name__}: {error}. Check the names and the network, load it with "
            f"`lp-sweep prefetch` where there is one, or use local files."
        ) from error
    if table.num_rows != wanted:
        raise MissingInputError(
            f"{where}: the cache in {builder.cache_dir} holds {table.num_rows} rows of split "
            f"{source.splits[split]!r} and should hold {wanted}: it is torn. Delete that folder "
            f"and load it again (`lp-sweep prefetch`)."
        )
    require_columns(where, table.column_names, columns)
    return table.select(list(columns))


def is_cached(source: TaskSource) -> bool:
    """Whether the cache has the data set at its commit; whether it is whole `read_hub` says."""
    return _cached_builder(source) is not None


def hub_builder(source: TaskSource) -> Any:
    """What the hub makes of a data set: its configuration, its files. Downloads only the card."""
    import datasets

    return datasets.load_dataset_builder(source.dataset, source.config, revision=source.revision)


def _rows(builder: Any, split: str) -> tuple[pa.Table, int]:
    """The rows, and how many there should be."""
    table = builder.as_dataset(split=split).with_format("arrow")[:]
    return table, int(builder.info.splits[split].num_examples)


def _cached_builder(source: TaskSource) -> Any:
    """A builder over `<cache>/<namespace>___<name>/<config>/<version>/<commit>`, None without.

    `datasets` itself would take the latest of all commits there.
    """
    from datasets import config
    from datasets.naming import camelcase_to_snakecase
    from datasets.packaged_modules.cache.cache import Cache

    *namespace, name = str(source.dataset).split("/")
    root = Path(config.HF_DATASETS_CACHE).expanduser()
    folder = root / "___".join([*namespace, camelcase_to_snakecase(name)]) / _config(source)
    versions = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for version in versions:
        if (folder / version / str(source.revision) / "dataset_info.json").is_file():
            with _quiet():
                return Cache(
                    repo_id=source.dataset,
                    dataset_name=name,
                    config_name=folder.name,
                    version=version,
                    hash=source.revision,
                )
    return None


def _config(source: TaskSource) -> str:
    """The configuration's name; the default one's is in the data set's card, if it has several."""
    if source.config is not None:
        return source.config
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCard, try_to_load_from_cache

    card = try_to_load_from_cache(
        str(source.dataset), "README.md", revision=source.revision, repo_type="dataset"
    )
    if not isinstance(card, str):
        return "default"
    named = MetadataConfigs.from_dataset_card_data(DatasetCard.load(card).data)
    default = named.get_default_config_name() or (next(iter(named)) if len(named) == 1 else None)
    return str(default or "default")


def _nothing_cached(source: TaskSource) -> Any:
    """What `datasets` says of it: the commit that it holds instead, or which configurations."""
    with _cache_only():
        return hub_builder(source)


def _refuse_guess(source: TaskSource, builder: Any) -> None:
    """A builder over the cache is `datasets`' own guess at what was meant."""
    if builder.hash != source.revision:
        raise MissingInputError(
            f"{source.dataset}@{source.revision}: the hub wasn't asked or didn't answer, and what "
            f"the cache or a folder of this name holds is revision {builder.hash}. Load the "
            f"wanted one while online (`lp-sweep prefetch`)."
        )
    if builder.name == "cache":
        raise MissingInputError(
            f"{source.dataset}@{source.revision}: the cache holds configuration "
            f"{builder.config.name!r}, and whether that is the default one can't be looked up. "
            f"Name it in the task: config: {builder.config.name}."
        )


@contextmanager
def _cache_only() -> Iterator[None]:
    """Keeps `datasets` off the network, and from warning that it is."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        with _quiet():
            yield
    finally:
        config.HF_HUB_OFFLINE = before


@contextmanager
def _quiet() -> Iterator[None]:
    from datasets.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
