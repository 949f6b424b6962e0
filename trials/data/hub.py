"""Rows of a Hugging Face data set at one commit, from the cache where it has them.

`datasets` falls back to the latest commit in the cache, or to a folder of the same name, when the
hub doesn't answer. That is refused here: only rows of the requested commit are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.readers import plain_table, require_columns
from lp_sweep.trials.data.tasks import TaskSource, is_commit


def read_hub(
    source: TaskSource,
    split: str,
    columns: Sequence[str],
    *,
    offline: bool,
    most: int | None = None,
) -> pa.Table:
    """Reads these columns of the first `most` rows of a split, or of all. Asks the hub only for
    what the cache doesn't have.

    Raises MissingInputError for a revision that is no commit, rows that can't be loaded, and a
    cache that has lost rows.
    """
    where = f"{source.dataset}@{source.revision}"
    if not is_commit(source.revision):
        raise MissingInputError(
            f"{where}: a branch can change, the rows must not. Write `revision:` and a commit of "
            f"40 hex digits from https://huggingface.co/datasets/{source.dataset}/commits/main, or "
            f"let `lp-sweep prefetch` find it."
        )
    try:
        builder = _cached_builder(source)
        if builder is None and offline:
            named = "" if source.config else ", or name its configuration in the task (`config:`)"
            raise MissingInputError(
                f"{where}: the Hugging Face cache does not have {_config(source)!r} at that "
                f"commit. Load it while online (`lp-sweep prefetch`){named}."
            )
        if builder is None:
            builder = hub_builder(source)
            builder.download_and_prepare()
        rows = builder.as_dataset(split=source.splits[split]).with_format("arrow")
        wanted = int(builder.info.splits[source.splits[split]].num_examples)
        table = plain_table(rows[:most])
    except MissingInputError:
        raise
    except Exception as error:  # the hub's clients raise dozens of types, from three libraries
        raise MissingInputError(
            f"{where}: can't load {source.config or 'the default configuration'}, split "
            f"{source.splits[split]!r}, from the Hugging Face hub: "
            f"{type(error).__name__}: {error}. Check the names and the network, load it with "
            f"`lp-sweep prefetch` where there is one, or use local files."
        ) from error
    if rows.num_rows != wanted:
        raise MissingInputError(
            f"{where}: the cache in {builder.cache_dir} has {rows.num_rows} of {wanted} rows of "
            f"split {source.splits[split]!r}. Delete that folder and load it again "
            f"(`lp-sweep prefetch`)."
        )
    require_columns(where, table.column_names, columns)
    return table.select(list(columns))


def is_cached(source: TaskSource) -> bool:
    """Whether the cache has the data set at its commit; `read_hub` checks that it is complete."""
    return _cached_builder(source) is not None


def hub_builder(source: TaskSource) -> Any:
    """The `datasets` builder: configuration and files as the hub has them. Downloads only the
    card. Raises MissingInputError if it is not that of the hub."""
    import datasets

    name, commit = source.dataset, source.revision
    builder = datasets.load_dataset_builder(name, source.config, revision=commit)
    if builder.name == "cache" or builder.hash != commit:  # the hub did not answer
        raise MissingInputError(
            f"{name}@{commit}: the hub did not answer, and the cache or a folder of this name has "
            f"revision {builder.hash}. Load the right one while online (`lp-sweep prefetch`)."
        )
    return builder


def _cached_builder(source: TaskSource) -> Any:
    """A builder over `<cache>/<namespace>___<name>/<config>/<version>/<commit>`, or None.
    `datasets` itself would use the latest commit there."""
    from datasets import config
    from datasets.naming import camelcase_to_snakecase
    from datasets.packaged_modules.cache.cache import Cache

    *namespace, name = str(source.dataset).split("/")
    root = Path(config.HF_DATASETS_CACHE).expanduser()
    folder = root / "___".join([*namespace, camelcase_to_snakecase(name)]) / _config(source)
    versions = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for version in versions:
        if (folder / version / str(source.revision) / "dataset_info.json").is_file():
            return Cache(
                repo_id=source.dataset,
                dataset_name=name,
                config_name=folder.name,
                version=version,
                hash=source.revision,
            )
    return None


def _config(source: TaskSource) -> str:
    """The configuration's name. The card of a data set with several names the default one."""
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
