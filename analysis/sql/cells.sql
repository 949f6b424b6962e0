-- cells: one row per cell of each sweep: one point of what the user asked for. Cells share trials.
--
-- cell          position in the plan, within the sweep.
-- bridge        what takes the place of dropped layers: linear, or none.
-- distill       how it learns from a teacher; none: no teacher. teacher: another model, if that teaches.
-- depth         layers of the model before pruning; k layers were dropped, n_kept stay.
-- kept_layers   1 is the layer next to the embeddings. Null, like k, while a deferred cell waits for
-- dropped_layers  its profile.
-- state         done      its trial has a record
--               failed    no record, and an attempt at the trial, or at the profile it waits for,
--                         failed for good (after a lost worker or node it is tried again)
--               deferred  it waits for a profile, or a search may still ask for it
--               not_needed  a search (`until: min_layers`) ended without it
--               impossible  its profile and threshold keep no layer, or fewer layers than the
--                           feed-forwards to remove
--               pending   none of these
-- search        asked, waiting, not_needed: the cell belongs to a search. Null: it does not.
-- overrides     `key=value` of the run that asked for it; empty: there were none. Null: not known.
-- setup         a hash of recipe, rows and model, which compared cells should share (see
--               recipe_differences). Null: not known.
-- metric        the metric of `score`; positive: the class that f1 scores, where the task names it.
-- kind          the kind of task, where the record has it.
-- dev_blind     why the dev rows can't show what a network learned; null: they can.
-- score         points (0..100), after the last epoch.
-- feed_forward  the kept layers that lose their feed-forward: none, top 3, every 2nd, ...
-- score_full    points of K=0: the same sweep, model, procedure, task and seed with all layers (and
-- full_trial_id   feed-forwards) kept, whichever strategy lists it; and the trial of K=0, once it is
--               done. With another model as the teacher, K=0 learns from it as well. Then these are
--               of the K=0 without a teacher, if the sweep lists one.
-- change        score - score_full, in points: negative is a loss.
-- mixed         the done cells of this sweep, model, procedure and task were trained in more than one
--               way (another `setup` or precision): their scores are not comparable.
-- error_type    the type of the last failed attempt, where the cell failed.
WITH listed AS (
    SELECT * REPLACE (
        coalesce(k, depth - len(kept_layers)) AS k,
        coalesce(feed_forward, 'none') AS feed_forward,
        coalesce(bridge, 'none') AS bridge,
        coalesce(distill, 'none') AS distill
    )
    FROM store.sweeps
),

failures AS (
    SELECT trial_id, count(*) AS n_failures, arg_max(error_type, ended_at) AS error_type
    FROM attempts
    WHERE coalesce(final, true)  -- null: the file is older than this column
      AND trial_id NOT IN (SELECT profile_id FROM store.profiles WHERE profile_id IS NOT NULL)
    GROUP BY trial_id
),

full_depth AS (
    SELECT
        listed.sweep, listed.model, listed.procedure, listed.teacher, listed.task, listed.seed,
        any_value(trials.trial_id) AS trial_id,
        any_value(trials.score) AS score
    FROM listed
    LEFT JOIN trials
        ON trials.trial_id = listed.trial_id
        AND trials.kept_layers = listed.kept_layers
    WHERE len(listed.kept_layers) = listed.depth AND listed.feed_forward = 'none'
    GROUP BY ALL
),

without_teacher AS (  -- K=0 is one trial, whatever its procedure, unless another model teaches it
    SELECT sweep, model, task, seed, any_value(trial_id) AS trial_id, any_value(score) AS score
    FROM full_depth
    WHERE teacher IS NULL
    GROUP BY ALL
)

SELECT
    listed.sweep, listed.cell, listed.model, listed.depth, listed.procedure, listed.bridge, listed.distill,
    listed.teacher, listed.feed_forward, listed.strategy, listed.k, listed.threshold, listed.task, listed.seed,
    listed.kept_layers, listed.dropped_layers, len(listed.kept_layers) AS n_kept,
    listed.trial_id, listed.profile_id, listed.search, listed.overrides, listed.setup,
    CASE
        WHEN trials.trial_id IS NOT NULL THEN 'done'
        WHEN failures.trial_id IS NOT NULL THEN 'failed'
        WHEN len(listed.kept_layers) = 0 THEN 'impossible'
        WHEN listed.search = 'not_needed' THEN 'not_needed'
        WHEN listed.trial_id IS NULL OR listed.search = 'waiting' THEN 'deferred'
        ELSE 'pending'
    END AS state,
    CASE WHEN trials.trial_id IS NULL THEN failures.error_type END AS error_type,
    trials.metric,
    trials.positive,
    trials.score,
    CASE WHEN without_teacher.sweep IS NULL THEN own.score ELSE without_teacher.score END AS score_full,
    CASE WHEN without_teacher.sweep IS NULL THEN own.trial_id ELSE without_teacher.trial_id END AS full_trial_id,
    trials.score - score_full AS change,
    100 * trials.majority AS majority,
    CASE WHEN json_exists(TRY_CAST(trials.spec AS JSON), '$.task')
        THEN coalesce(json_extract_string(TRY_CAST(trials.spec AS JSON), '$.task.kind'), 'classification')
    END AS kind,
    trials.dev_blind,
    trials.params_total,
    trials.train_examples_per_second,
    trials.dev_examples_per_second,
    trials.seconds_total,
    trials.device_name,
    coalesce(min(listed.setup) FILTER (trials.trial_id IS NOT NULL) OVER way
        < max(listed.setup) FILTER (trials.trial_id IS NOT NULL) OVER way, false)
    OR coalesce(min(trials.precision_used) OVER way < max(trials.precision_used) OVER way, false) AS mixed
FROM listed
LEFT JOIN trials
    ON trials.trial_id = listed.trial_id
    AND trials.kept_layers = listed.kept_layers
LEFT JOIN failures ON failures.trial_id = coalesce(listed.trial_id, listed.profile_id)
LEFT JOIN full_depth AS own
    ON own.sweep = listed.sweep
    AND own.model = listed.model
    AND own.procedure = listed.procedure
    AND own.task = listed.task
    AND own.seed = listed.seed
LEFT JOIN without_teacher
    ON listed.teacher IS NOT NULL
    AND without_teacher.sweep = listed.sweep
    AND without_teacher.model = listed.model
    AND without_teacher.task = listed.task
    AND without_teacher.seed = listed.seed
WINDOW way AS (PARTITION BY listed.sweep, listed.model, listed.procedure, listed.task)
