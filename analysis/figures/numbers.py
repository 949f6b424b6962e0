"""The numbers of the figures, each a SELECT over the views. Draws nothing.

Networks with fewer layers are those of the procedure `direct`. A mean over tasks is null while one
of the tasks is missing: means over different tasks are not comparable.
"""

from __future__ import annotations

# K=0 is one network, whichever strategies list it
FULL = "all layers"
_MERGED = f"CASE WHEN k = 0 AND threshold IS NULL THEN '{FULL}' ELSE strategy END"
_MOST = 4  # networks, or sets of kept layers, in a figure layer by layer

# The scores after each epoch, of full models and of the answer for the smallest loss.
EPOCHS = f"""
SELECT cells.sweep, cells.model, cells.task, epoch, 100 * value AS score, epochs.metric,
    if(cells.k = 0, '{FULL}', format('{{}} of {{}} layers', cells.n_kept, cells.depth))
        || ', seed ' || cells.seed AS line
FROM cells
JOIN min_layers AS best ON best.sweep = cells.sweep AND best.model = cells.model
    AND best.task = cells.task AND best.procedure = cells.procedure AND best.rank = 1
    AND best.delta = (SELECT min(delta) FROM min_layers)
JOIN trials ON trials.trial_id = cells.trial_id
JOIN epochs ON epochs.trial_id = cells.trial_id AND epochs.metric = trials.metric
    AND epochs.split = trials.epoch_metrics[1].split
WHERE cells.feed_forward = 'none' AND cells.state = 'done'
    AND (cells.k = 0 OR cells.k = best.max_dropped_low AND cells.strategy = best.strategy)
GROUP BY ALL
ORDER BY cells.sweep, cells.model, cells.task, any_value(cells.k), line, epoch
"""

# -- figures of lines. Each query has the columns `panel`, `line`, `x`, `y`, and the ends of a span,
# `low` and `high`. A row without x is a level: it is drawn across the panel

# In points, by strategy and K or threshold.
STRATEGIES = f"""
WITH curves AS (
    SELECT *, {_MERGED} AS line
    FROM strategy_table
    WHERE procedure = 'direct' AND feed_forward = 'none'
    QUALIFY row_number() OVER (
        PARTITION BY sweep, model, line, k, threshold
        ORDER BY n_tasks DESC, n_seeds_all DESC, position
    ) = 1
)
SELECT format('{{}} ({{}} layers)', model, depth)
        || if(count(DISTINCT sweep) OVER () > 1, ', sweep ' || sweep, '') AS panel,
    line, if(line = '{FULL}', NULL, k_mean) AS x, mean_all AS y,
    mean_all - coalesce(sd_all, 0) AS low, mean_all + coalesce(sd_all, 0) AS high
FROM curves
WHERE mean_all IS NOT NULL
ORDER BY sweep, model, line = '{FULL}' DESC, min(position) OVER (PARTITION BY sweep, model, line),
    k_mean, threshold DESC
"""

# A row per task and network with a score, whatever its procedure. `mean` in points; `speedup`
# against all layers, on one device with one batch: those that most networks were measured on.
# `line` merges the draws of `random`. `within`: the allowed losses, of all `losses`, whose answer
# it is; `score_full`: what a loss is against.
NETWORKS = f"""
WITH scored AS (
    SELECT sweep, model, depth, procedure, task, strategy, threshold, k, depth - k AS n_kept,
        metric || coalesce(' of ''' || positive || '''', '') AS metric,
        regexp_replace({_MERGED}, '^random [0-9]+$', 'random') AS line,
        kept_layers, mean, sd, n AS n_seeds, n_asked, change, position
    FROM task_table
    WHERE feed_forward = 'none' AND mean IS NOT NULL AND k IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY sweep, model, procedure, task, {_MERGED}, kept_layers ORDER BY n DESC, position
    ) = 1
),
answers AS (
    SELECT sweep, model, task, procedure, strategy, max_dropped_low AS k,
        list(delta ORDER BY delta) AS within, any_value(score_full) AS score_full
    FROM min_layers
    WHERE rank = 1 AND n_learned_nothing = 0
    GROUP BY ALL
),
measured AS (
    SELECT sweep, model, kept_layers, inference_speedup AS speedup,
        {{'device_name': device_name, 'threads': threads, 'precision': precision, 'length': length,
            'batch': batch}} AS place
    FROM speed_table WHERE feed_forward = 'none' AND inference_speedup IS NOT NULL
),
places AS (
    SELECT sweep, model, place FROM measured GROUP BY sweep, model, place
    QUALIFY row_number() OVER (PARTITION BY sweep, model ORDER BY count(*) DESC, place) = 1
),
sizes AS (
    SELECT sweep, model, kept_layers, any_value(params_total) AS params_total,
        any_value(params_percent) AS params_percent
    FROM speed_table WHERE feed_forward = 'none' GROUP BY ALL
)
SELECT scored.*, unnest(place), params_total, params_percent,
    if(scored.k = 0 AND place IS NOT NULL, coalesce(speedup, 1), speedup) AS speedup,
    coalesce(within, []) AS within,
    (SELECT list(delta ORDER BY delta) FROM store.deltas) AS losses,
    coalesce(min(score_full) OVER of_task, max(mean) FILTER (WHERE scored.k = 0) OVER of_task)
        AS score_full,
    min(scored.position) OVER of_task AS first_position
FROM scored
LEFT JOIN sizes USING (sweep, model, kept_layers)
LEFT JOIN places USING (sweep, model)
LEFT JOIN measured USING (sweep, model, kept_layers, place)
LEFT JOIN answers ON (answers.sweep, answers.model, answers.task, answers.procedure, answers.k)
        = (scored.sweep, scored.model, scored.task, scored.procedure, scored.k)
    AND (scored.k = 0 OR answers.strategy = scored.strategy)
WINDOW of_task AS (PARTITION BY scored.sweep, scored.model, scored.task)
ORDER BY scored.sweep, scored.model, first_position, scored.task, scored.position
"""

# -- layer by layer

_OF_LAYERS = "format('{} ({} of {} layers)', model, len(kept_layers), depth)"

# `part`: probes, in points of the task's main metric; sentence or tokens, the similarity with the
# pre-trained layer; attention, the CKA of its outputs with the same layer of the full network.
# Means over the tasks that the model's networks of that kind have, and over the seeds that have
# each of them.
_MEANS = """
WITH networks AS (
    SELECT DISTINCT trial_id, feed_forward, n_kept = depth AND feed_forward = 'none' AS is_full
    FROM cells
    WHERE trial_id IS NOT NULL
        AND (procedure = 'direct' OR n_kept = depth AND feed_forward = 'none')
    UNION ALL
    SELECT NULL, 'pre-trained', true
),
metrics AS (
    SELECT lower(task) AS task, min(metric) AS metric FROM trials GROUP BY ALL
),
points AS (
    SELECT feed_forward AS network, is_full, if(measure = 'probes', measure, name) AS part, model,
        depth, lower(layers.task) AS task, seed, kept_layers, layer,
        if(measure = 'probes', 100, 1) * value AS value
    FROM layers
    JOIN networks ON networks.trial_id IS NOT DISTINCT FROM layers.trial_id
    LEFT JOIN metrics ON metrics.task = lower(layers.task)
    WHERE measure = 'probes' AND name = metric OR measure = 'similarity' AND is_full
        OR measure = 'cka' AND name = 'attention' AND layer = other
            AND against IN (SELECT trial_id FROM networks WHERE is_full)
),
by_seed AS (
    SELECT network, is_full, part, model, depth, kept_layers, layer, seed, n_tasks,
        CASE WHEN count(DISTINCT task) FILTER (WHERE value IS NOT NULL) = any_value(n_tasks)
            THEN avg(value) END AS mean
    FROM (
        SELECT *, count(DISTINCT task) OVER (PARTITION BY network, is_full, part, model) AS n_tasks
        FROM points
    )
    GROUP BY ALL
),
means AS (
    SELECT network, is_full, part, model, depth, kept_layers, layer AS x,
        avg(mean) AS y, min(mean) AS low, max(mean) AS high, ', tasks: ' || n_tasks AS tasks
    FROM by_seed
    GROUP BY ALL
)
"""

# The full models, fine-tuned and pre-trained. The kind comes first: a label that begins with `_` is
# left out of a legend.
PROBES = f"""{_MEANS}
SELECT '' AS panel, x, y, low, high,
    if(network = 'none', '{FULL}', network) || ': ' || model || tasks AS line
FROM means
WHERE is_full AND part = 'probes'
ORDER BY model, line, x
"""

# Cosine by layer, a panel for each kind of token.
SIMILARITY = f"""{_MEANS}
SELECT if(part = 'sentence', 'sentence token', 'per-text token mean') AS panel, x, y, low, high,
    '{FULL}: ' || model || tasks AS line
FROM means
WHERE is_full AND part IN ('sentence', 'tokens')
ORDER BY panel DESC, line, x
"""

# A line for each feed-forward setting, of networks with the same layers. The largest sets of kept
# layers of the first model come first.
FEED_FORWARD_LAYERS = f"""{_MEANS},
compared AS (
    FROM means
    WHERE network <> 'pre-trained' AND part IN ('probes', 'attention')
    QUALIFY bool_or(network <> 'none') OVER (PARTITION BY model, kept_layers)
)
SELECT {_OF_LAYERS} || chr(10)
        || if(part = 'probes', 'classifier on the layer (points)', 'attention outputs (CKA)')
        AS panel,
    network || ' removed' || tasks AS line, x, y, low, high
FROM compared
QUALIFY dense_rank() OVER (ORDER BY model, len(kept_layers) DESC, kept_layers) <= {_MOST}
ORDER BY model, len(kept_layers) DESC, kept_layers, part DESC, network <> 'none', network, x
"""

# A panel for each network and for the outputs of layers and of attention: means over profiles, of
# full models next to the pre-trained, or, if there are none, of pruned networks next to the full
# models.
CKA = f"""
WITH points AS (
    SELECT DISTINCT layers.*, against IS NULL AS is_full
    FROM layers JOIN cells ON cells.trial_id = layers.trial_id
    WHERE measure = 'cka' AND cells.feed_forward = 'none'
        AND (against IS NULL AND n_kept = cells.depth OR cells.procedure = 'direct'
            AND against IN (
                SELECT trial_id FROM cells WHERE feed_forward = 'none' AND n_kept = depth
            ))
)
SELECT {_OF_LAYERS} || chr(10) || name
        || ' outputs, x: ' || if(is_full, 'pre-trained', 'full model') AS panel,
    other AS x, layer AS y, CASE WHEN count(value) = count(*) THEN avg(value) END AS value
FROM points
GROUP BY model, depth, kept_layers, is_full, name, layer, other
QUALIFY is_full = bool_or(is_full) OVER () AND {_MOST} >=
    dense_rank() OVER (ORDER BY is_full DESC, len(kept_layers) DESC, model, kept_layers)
ORDER BY model, len(kept_layers) DESC, kept_layers, name DESC, layer, other
"""
