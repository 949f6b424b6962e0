"""Seeded bugs: one wrong line each, in code that decides a result.

A bug is found by its text, not by its file, so that code can be moved. `changes`: the right text
and the wrong text, with alternatives for older and newer trees. `tests`: the test files that should
catch it.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Bug(NamedTuple):
    name: str
    area: str
    changes: dict[str, str]
    tests: tuple[str, ...]


def _bug(name: str, area: str, old: str, new: str, *tests: str, also: Any = None) -> Bug:
    return Bug(name, area, {old: new, **(also or {})}, tests)


_FINAL = "WHEN trials.trial_id IS NOT NULL THEN 'done'"
_FAILED = "WHEN failures.trial_id IS NOT NULL THEN 'failed'"
BUGS = [
    # -- selection
    _bug(
        "top drops one layer too low",
        "selection",
        "lambda depth, k: tuple(range(depth - k + 1, depth + 1))",
        "lambda depth, k: tuple(range(depth - k, depth))",
        "test_select.py",
    ),
    _bug(
        "symmetric is off by one",
        "selection",
        "return tuple(range(each_side + 1, each_side + k + 1))",
        "return tuple(range(each_side, each_side + k))",
        "test_select.py",
    ),
    _bug(
        "odd-alternate is even-alternate",
        "selection",
        "lambda depth, k: _every_other(depth - 1, k)",
        "lambda depth, k: _every_other(depth, k)",
        "test_select.py",
    ),
    _bug(
        "every draw of random is the same",
        "selection",
        'f"{draw}:{layer}".encode()',
        'f"{layer}".encode()',
        "test_select.py",
        "test_select.py",
    ),
    _bug(
        "a cosine at the threshold is dropped",
        "selection",
        "if cosine > threshold))",
        "if cosine >= threshold))",
        "test_select.py",
    ),
    _bug(
        "block influence drops the layers that change most",
        "selection",
        "key=lambda layer: (-found.layers[layer], -layer)",
        "key=lambda layer: (found.layers[layer], -layer)",
        "test_select.py",
        "test_select.py",
        "test_influence.py",
    ),
    _bug(
        "greedy drops one layer too few",
        "selection",
        "if 0 < step <= k)",
        "if 0 < step < k)",
        "test_select.py",
        "test_select.py",
    ),
    # -- pruning
    _bug(
        "the config keeps the old depth",
        "pruning",
        "setattr(config, depth_field, len(kept))",
        "setattr(config, depth_field, depth)",
        "test_prune.py",
    ),
    _bug(
        "the layers next to the kept ones stay",
        "pruning",
        "set(range(depth)) - {layer - 1 for layer in kept}",
        "set(range(depth)) - {layer % depth for layer in kept}",
        "test_prune.py",
    ),
    _bug(
        "layers are not counted in the first network",
        "pruning",
        "config.lp_sweep_kept_layers = [origin[layer - 1] for layer in kept]",
        "config.lp_sweep_kept_layers = list(kept)",
        "test_prune.py",
    ),
    _bug(
        "lists of settings per layer are not cut",
        "pruning",
        "isinstance(value, list | tuple) and len(value) == depth",
        "isinstance(value, tuple) and len(value) == depth",
        "test_prune.py",
    ),
    _bug(
        "a checkpoint's trained head is kept",
        "pruning",
        "loaded.fresh | trained_head(loaded.model)",
        "loaded.fresh",
        "test_keep.py",
        "test_prune.py",
        also={"loaded.fresh | _trained_head(loaded.model)": "loaded.fresh"},
    ),
    # -- identity
    _bug(
        "defaults are hashed",
        "identity",
        "        if held != default:\n            yield name, held",
        "        yield name, held",
        "test_identity.py",
    ),
    _bug(
        "every seed has one identifier",
        "identity",
        'whole.update(f"{seed}{tail}".encode())',
        'whole.update(f"{spec.seed}{tail}".encode())',
        "test_identity.py",
        "test_plan.py",
        also={
            "replace(self._specs[key], seed=asked.seed)": "replace(self._specs[key], seed=42)",
            '{before}"seed":{seed},{after}': '{before}"seed":{spec.seed},{after}',
        },
    ),
    _bug(
        "1 and 1.0 are two identifiers",
        "identity",
        "if isinstance(value, float) and value.is_integer():",
        "if isinstance(value, bytes):",
        "test_identity.py",
    ),
    _bug(
        "the order of layers is identity",
        "identity",
        "return tuple(sorted(set(layers)))",
        "return tuple(layers)",
        "test_identity.py",
    ),
    _bug(
        "a setup forgets the recipe",
        "identity",
        '        "recipe": canonical(recipe),\n',
        "",
        "test_identity.py",
        "test_setups.py",
        also={'        ("recipe", recipe),\n': ""},
    ),
    # -- store
    _bug(
        "a file is published before it is on the disk",
        "store",
        "os.fsync(stream.fileno())  # before the rename",
        "pass  # before the rename",
        "test_store_folder.py",
        "test_fault_injection.py",
    ),
    _bug(
        "hidden files are listed",
        "store",
        'if info.name[0] != "." and (others',
        "if (others",
        "test_store_contract.py",
        "test_store_folder.py",
        also={'(info for info in infos if info.name[0] != ".")': "(infos)"},
    ),
    _bug(
        "a store that is gone is an empty one",
        "store",
        '        if not self.root.is_dir():\n            raise UnreachableError(f"the folder',
        '        if self.root.is_file():\n            raise UnreachableError(f"the folder',
        "test_store_folder.py",
        also={"if not _is_folder(self.root):": "if self.root.is_file():"},
    ),
    _bug(
        "a pack is not read back",
        "store",
        "if store.content(path) != content:",
        "if store.content(path) is None:",
        "test_upkeep.py",
        also={"return store.content(path) == content": "return store.content(path) is not None"},
    ),
    _bug(
        "records are deleted for a damaged pack",
        "store",
        "if both and _is_sound(store, table, path):",
        "if both:",
        "test_upkeep.py",
        also={  # only files whose rows are in a pack are deleted
            'f"{name}{SUFFIX}"), ids))': 'f"{name}{SUFFIX}"), names))',
        },
    ),
    _bug(
        "a changed file is read",
        "store",
        "if signed(content) != content:",
        "if not content:",
        "test_store_contract.py",
    ),
    _bug(
        "a pack holds a record twice",
        "store",
        "        seen |= ids\n    return pa.concat_tables",
        "    return pa.concat_tables",
        "test_upkeep.py",
        also={"            seen |= names\n": "            seen |= set()\n"},
    ),
    _bug(
        "a misnamed file is packed",
        "store",
        "if ids == [name] or (not ids and table in _MAY_BE_EMPTY):",
        "if ids or table in _MAY_BE_EMPTY:",
        "test_upkeep.py",
    ),
    _bug(
        "a newer version's record is read",
        "store",
        "    if int(version) > SCHEMA_VERSION:",
        "    if int(version) > SCHEMA_VERSION + 100:",
        "test_store_folder.py",
        "test_catalog.py",
        "test_upkeep.py",
    ),
    # -- queue
    _bug(
        "the shortest comes first",
        "queue",
        "Ready(rank, -seconds, id_)",
        "Ready(rank, seconds, id_)",
        "test_plan.py",
        "test_workqueue.py",
        also={
            "(self._rank(id_), -self._seconds[id_]": "(self._rank(id_), self._seconds[id_]",
            "if early else -self._seconds[id_]": "if early else self._seconds[id_]",
        },
    ),
    _bug(
        "one try too few",
        "queue",
        "self._tries[id_, error_type] <= policy(error_type).retries",
        "self._tries[id_, error_type] < policy(error_type).retries",
        "test_workqueue.py",
    ),
    _bug(
        "profiles wait like trials",
        "queue",
        "            return Rank.PROFILE",
        "            return Rank.TRIAL",
        "test_plan.py",
        "test_workqueue.py",
    ),
    _bug(
        "a speed is measured beside trials",
        "queue",
        "return not self.live and not self.others.holding",
        "return not self.others.holding",
        "test_workqueue.py",
        "test_speed_plan.py",
        also={
            "return not self.live and not self.holding": "return not self.holding",
            "not (self.live or self.holding if id_ in alone": "not (self.holding if id_ in alone",
        },
    ),
    _bug(
        "what another run recorded is trained again",
        "queue",
        "if ours and not self._settled_by_now(ready.id):",
        "if ours:",
        "test_workqueue.py",
        "test_slots.py",
        "test_sources.py",
        also={
            "ours = not (self.claims.shared and self._settled_elsewhere(id_))": "ours = True",
            "if self.claims.shared:  # otherwise": "if False:  # otherwise",
        },
    ),
    _bug(
        "one of two networks is enough to begin",
        "queue",
        "            if not self._waits[id_]:\n                del self._waits[id_]",
        "            if True:\n                del self._waits[id_]",
        "test_waiting.py",
        "test_sources.py",
        "test_workqueue.py",
        also={
            "        if not absent:\n": "        if not absent or any("
            "self.state.get(n) == 'done' for n in absent):\n",
        },
    ),
    _bug(
        "work goes on from a network that failed",
        "queue",
        "            self._fail_what_needs(id_)\n        self._growth",
        "        self._growth",
        "test_sources.py",
        "test_waiting.py",
        "test_workqueue.py",
        also={"if need in sources or self.state": "if self.state"},
    ),
    # -- metrics
    _bug(
        "F1 is of class 1 whatever the task names",
        "metrics",
        "(each == positive).astype",
        "(each == 1).astype",
        "test_metrics.py",
        also={"targets = (targets == positive).astype": "targets = (targets == 1).astype"},
    ),
    _bug(
        "macro F1 weighs by size",
        "metrics",
        '_of_classes("f1_score", average="macro"',
        '_of_classes("f1_score", average="weighted"',
        "test_metrics.py",
    ),
    _bug(
        "the majority is the rarest class",
        "metrics",
        "int(np.bincount(train_labels).argmax())",
        "int(np.bincount(train_labels).argmin())",
        "test_metrics.py",
        also={"int(np.bincount(there).argmax())": "int(np.bincount(there).argmin())"},
    ),
    _bug(
        "one finite output is enough",
        "metrics",
        "if not np.isfinite(logits).all():",
        "if not np.isfinite(logits).any():",
        "test_metrics.py",
        "test_run.py",
    ),
    # -- SQL
    _bug(
        "a loss of exactly delta does not do",
        "SQL",
        "coalesce(loss_in_unit <= delta + 1e-9, false)",
        "coalesce(loss_in_unit < delta - 1e-9, false)",
        "test_min_layers.py",
    ),
    _bug(
        "the answer is the smallest K that holds",
        "SQL",
        "coalesce(max(k) FILTER (WHERE holds), 0) AS max_dropped_low",
        "coalesce(min(k) FILTER (WHERE holds), 0) AS max_dropped_low",
        "test_min_layers.py",
    ),
    _bug(
        "a trial that once failed has failed",
        "SQL",
        f"        {_FINAL}\n        {_FAILED}",
        f"        {_FAILED}\n        {_FINAL}",
        "test_catalog.py",
        "test_tables.py",
    ),
    _bug(
        "status counts a trial for each of its cells",
        "SQL",
        "count(*) AS cells, count(DISTINCT trial_id) AS trials,",
        "count(*) AS cells, count(trial_id) AS trials,",
        "test_states.py",
    ),
    _bug(
        "a lost worker is a failure",
        "SQL",
        "WHERE coalesce(final, true)  --",
        "WHERE true  --",
        "test_catalog.py",
        "test_tables.py",
    ),
    _bug(
        "seeds are compared with another seed",
        "SQL",
        "    AND full_depth.seed = listed.seed",
        "",
        "test_catalog.py",
        "test_min_layers.py",
        "test_tables.py",
        also={"    AND own.seed = listed.seed": ""},
    ),
    # -- statistics
    _bug(
        "the spread of seeds is not that of their mean",
        "statistics",
        "spread = float(values.var(ddof=1)) / seeds",
        "spread = float(values.var(ddof=1))",
        "test_statistics.py",
        "test_resampling.py",
        "test_selection.py",
    ),
    _bug(
        "a loss is a gain",
        "statistics",
        "np.hstack([-np.eye(seeds), np.eye(seeds)])",
        "np.hstack([np.eye(seeds), -np.eye(seeds)])",
        "test_statistics.py",
        "test_resampling.py",
    ),
    _bug(
        "Bonferroni for Holm",
        "statistics",
        "np.maximum.accumulate(np.sort(ps) * np.arange(len(ps), 0, -1))",
        "np.sort(ps) * len(ps)",
        "test_resampling.py",
        "test_statistics.py",
    ),
    _bug(
        "a perfect network is certain",
        "statistics",
        "return 2 * (100 / max(1, weighty)) ** 2",
        "return 0.0",
        "test_resampling.py",
        "test_statistics.py",
        "test_selection.py",
        also={"return ((100 - least_of(metric)) / max(1, weighty)) ** 2": "return 0.0"},
    ),
    _bug(
        "few seeds are as sure as many",
        "statistics",
        "return share * student + (1 - share) * normal",
        "return normal",
        "test_resampling.py",
        "test_statistics.py",
        also={
            "of_seeds = -stdtrit(freedom, tail) if freedom": (
                "of_seeds = -stdtrit(rows_freedom, tail) if freedom"
            )
        },
    ),
    # -- what a rewrite may lose
    _bug(
        "a distillation is lost from a cell",
        "plan",
        "distill=self._distillation(procedure, model, task),",
        "distill=None,",
        "test_distill_plan.py",
    ),
    _bug(
        "a batch that does not fit is never halved",
        "worker",
        "and way.halvings < _most_halvings(job):",
        "and way.halvings < 0:",
        "test_out_of_memory.py",
        "test_measures.py",
        "test_checkpoint.py",
        "test_run.py",
        also={"and way.halvings < self._most:": "and way.halvings < 0:"},
    ),
    _bug(
        "a claim is taken over too early",
        "store",
        "return unchanged < _STALE_SECONDS",
        "return unchanged < BEAT_SECONDS",
        "test_workqueue.py",
        "test_history.py",
    ),
    _bug(
        "losses under another model's teacher are counted from it",
        "sql",
        "    ON listed.teacher IS NOT NULL\n",
        "    ON false\n",
        "test_tables.py",
        "test_export_choice.py",
        "test_selection.py",
    ),
    _bug(
        "a waiting record replaces a stored one",
        "store",
        "if store.find(table, name) is None:  # a record is never rewritten",
        "if True:  # a record is never rewritten",
        "test_spool.py",
    ),
    _bug(
        "half of a long secret stays",
        "secrets",
        "return sorted(values, key=len, reverse=True)",
        "return sorted(values, key=len)",
        "test_secrets.py",
    ),
    _bug(
        "a student's two losses are added",
        "training",
        "return labels_loss(logits, target) * (1 - settings.alpha) + imitation",
        "return labels_loss(logits, target) + imitation",
        "test_distill.py",
    ),
    _bug(
        "any network is the exported one",
        "export",
        "if not found.largest_difference <= found.tolerance:",
        "if not found.largest_difference <= 1e9:",
        "test_export_verify.py",
    ),
]
