"""The numbers of the layer-by-layer figures, each a SELECT over the views. Draws nothing.

Networks with fewer layers are those of the procedure `direct`. A mean over tasks is null while one
of the tasks is missing: means over different tasks are not comparable.
"""

from __future__ import annotations

import pyarrow as pa

from lp_sweep.storage.catalog import Catalog

_CONTRIBUTION = """
WITH swept AS (
    SELECT DISTINCT profile_id, threshold FROM cells
    WHERE strategy = 'contribution' AND threshold IS NOT NULL
)
SELECT model, task, profile_id, layer, value, threshold,
    CASE WHEN threshold IS NOT NULL THEN NOT coalesce(value > threshold, false) END AS kept
FROM layers LEFT JOIN swept USING (profile_id)
WHERE measure = 'contribution'
ORDER BY model, task, profile_id, threshold DESC, layer
"""


def contribution(catalog: Catalog) -> pa.Table:
    """A row per profile, layer and threshold of the cells that depend on the profile (null: none
    does)."""
    return catalog.query(_CONTRIBUTION)


# Networks that a cell asked for, without the first stages of other procedures. K=0 is the same
# trial in each procedure.
_NETWORKS = """
networks AS (
    SELECT DISTINCT trial_id, n_kept = depth AS whole
    FROM cells
    WHERE feed_forward = 'none' AND trial_id IS NOT NULL
        AND (n_kept = depth OR procedure = 'direct')
)"""

# points: network, part, model, depth, task, seed, kept_layers, layer, value -> means over tasks.
# `n_tasks`: tasks on which a model's networks of that kind are measured; `n_tasks_asked`: tasks in
# the cells.
_LAYER_MEANS = """,
runs AS (
    SELECT * EXCLUDE (value), CASE WHEN count(value) = count(*) THEN avg(value) END AS value
    FROM points GROUP BY ALL
),
expected AS (
    SELECT network, part, model, count(DISTINCT task) AS n_tasks FROM points GROUP BY ALL
),
asked AS (SELECT model, count(DISTINCT lower(task)) AS n_tasks_asked FROM cells GROUP BY ALL),
by_task AS (
    SELECT network, part, model, depth, kept_layers, layer, task,
        CASE WHEN count(value) = count(*) THEN avg(value) END AS mean
    FROM runs GROUP BY ALL
),
by_seed AS (
    SELECT network, part, model, kept_layers, layer, seed, avg(value) AS mean, count(value) AS n
    FROM runs GROUP BY ALL
),
over_seeds AS (
    SELECT network, part, model, kept_layers, layer, stddev_samp(mean) AS sd, min(mean) AS low,
        max(mean) AS high, count(*) AS n_seeds
    FROM by_seed JOIN expected USING (network, part, model)
    WHERE n = n_tasks AND seed IS NOT NULL
    GROUP BY ALL
),
over_tasks AS (
    SELECT network, part, model, depth, kept_layers, layer, n_tasks,
        CASE WHEN count(mean) = any_value(n_tasks) THEN avg(mean) END AS mean,
        string_agg(task, ', ' ORDER BY task) FILTER (WHERE mean IS NOT NULL) AS tasks
    FROM by_task JOIN expected USING (network, part, model)
    GROUP BY ALL
)
SELECT network, part, model, depth, over_tasks.kept_layers, layer, mean, sd, low, high,
    coalesce(n_seeds, 0) AS n_seeds, n_tasks, n_tasks_asked, tasks
FROM over_tasks
LEFT JOIN over_seeds USING (network, part, model, layer, kept_layers)
LEFT JOIN asked USING (model)
ORDER BY model, network, len(over_tasks.kept_layers) DESC, over_tasks.kept_layers, part, layer
"""

# probes in points of the task's main metric; if no trial names it, accuracy, else pearson
_MEASURED_PROBES = """
metrics AS (
    SELECT lower(task) AS task, min(metric) AS metric FROM trials GROUP BY ALL
),
named AS (
    SELECT *, CASE
        WHEN bool_or(name = 'accuracy') OVER (PARTITION BY profile_id) THEN 'accuracy'
        ELSE 'pearson' END AS usual
    FROM layers WHERE measure = 'probes'
),
measured AS (
    SELECT named.* REPLACE (lower(named.task) AS task, 100 * value AS value)
    FROM named LEFT JOIN metrics ON metrics.task = lower(named.task)
    WHERE name = coalesce(metric, usual)
)"""

_PROBES = f"""
WITH {_NETWORKS},
{_MEASURED_PROBES},
points AS (
    SELECT
        CASE WHEN measured.trial_id IS NULL THEN 'pretrained' WHEN whole THEN 'full'
            ELSE 'pruned' END AS network,
        'score' AS part,
        model, depth, task, seed, kept_layers, layer, value
    FROM measured LEFT JOIN networks USING (trial_id)
    WHERE measured.trial_id IS NULL OR whole IS NOT NULL
)
{_LAYER_MEANS}"""

_SIMILARITY = f"""
WITH {_NETWORKS},
points AS (
    SELECT 'full' AS network, name AS part, model, depth, lower(task) AS task, seed, kept_layers,
        layer, value
    FROM layers JOIN networks USING (trial_id)
    WHERE measure = 'similarity' AND whole
)
{_LAYER_MEANS}"""

_CKA = f"""
WITH {_NETWORKS},
points AS (
    SELECT model, depth, kept_layers, against IS NULL AS with_pretrained, name AS part, layer,
        other, value, profile_id, task, coalesce(whole, false) AS whole,
        bool_or(coalesce(whole, false)) OVER () AS any_whole
    FROM layers LEFT JOIN networks USING (trial_id)
    WHERE measure = 'cka' AND whole IS NOT NULL
        AND (against IS NULL OR against IN (SELECT trial_id FROM networks WHERE networks.whole))
)
FROM (
    SELECT model, depth, kept_layers, with_pretrained, part, layer, other,
        CASE WHEN count(value) = count(*) THEN avg(value) END AS value,
        count(DISTINCT profile_id) AS n_profiles, count(DISTINCT task) AS n_tasks
    FROM points
    WHERE whole = any_whole
    GROUP BY ALL
)
QUALIFY dense_rank() OVER (ORDER BY len(kept_layers) DESC, model, kept_layers, with_pretrained)
    <= $most
ORDER BY model, len(kept_layers) DESC, kept_layers, with_pretrained, part DESC, layer, other
"""

# networks with the same layers, with and without feed-forwards; `network` is the setting
_REDUCED = f"""
FROM (
WITH {_MEASURED_PROBES},
settings AS (
    SELECT DISTINCT trial_id, feed_forward, n_kept = depth AND feed_forward = 'none' AS whole
    FROM cells
    WHERE procedure = 'direct' AND trial_id IS NOT NULL
),
numbers AS (
    SELECT trial_id, 'probes' AS part, model, depth, task, seed, kept_layers, layer, value
    FROM measured
    UNION ALL
    SELECT trial_id, 'attention', model, depth, lower(task), seed, kept_layers, layer, value
    FROM layers
    WHERE measure = 'cka' AND name = 'attention' AND layer = other
        AND against IN (SELECT trial_id FROM settings WHERE whole)
),
points AS (
    SELECT feed_forward AS network, numbers.* EXCLUDE (trial_id)
    FROM numbers JOIN settings USING (trial_id)
    QUALIFY bool_or(feed_forward <> 'none') OVER (PARTITION BY model, kept_layers)
)
{_LAYER_MEANS})
QUALIFY dense_rank() OVER (ORDER BY model, len(kept_layers) DESC, kept_layers) <= $most
ORDER BY model, len(kept_layers) DESC, kept_layers, network <> 'none', network, part, layer
"""


def probes(catalog: Catalog) -> pa.Table:
    """Figure 4: points by `network` (full, pretrained, pruned), kept layers and layer."""
    return catalog.query(_PROBES)


def similarity(catalog: Catalog) -> pa.Table:
    """Figure 5: cosine by layer; `part` is sentence or tokens."""
    return catalog.query(_SIMILARITY)


def cka(catalog: Catalog, most: int = 4) -> pa.Table:
    """CKA by `part` (layer, attention), layer and other layer: means over profiles. Takes at most
    `most` whole fine-tuned networks, or, if there are none, the deepest pruned ones."""
    return catalog.query(_CKA, {"most": most})


def feed_forward_layers(catalog: Catalog, most: int = 4) -> pa.Table:
    """Numbers by feed-forward setting (`network`), kept layers and layer. `part` is probes, in
    points, or attention, the CKA of attention outputs with the same layer of the full network.

    Takes at most `most` sets of kept layers: first the largest of the first model.
    """
    return catalog.query(_REDUCED, {"most": most})
