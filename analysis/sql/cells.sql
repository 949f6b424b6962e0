-- cells: one row per cell of each sweep: one point of what the user asked for. Cells share trials.
--
-- cell          position in the plan, within the sweep.
-- distill       how it learns from a teacher: what follows ` distill ` in `procedure`; none: it does not.
-- depth         layers of the model before pruning; k layers were dropped, n_kept stay.
-- kept_layers   1 is the layer next to the embeddings. Null, like k, until a deferred cell is
-- dropped_layers  resolved.
-- state         done      its trial has a record
--               failed    no record, and an attempt at the trial, or at the profile it waits for,
--                         failed for good (a lost worker, or a preemption, is tried again)
--               deferred  its layers wait for a profile, or a search may ask for it yet
--               not_needed  of a search (`until: min_layers`) that ended without it
--               impossible  by its profile and threshold no layer would stay, or fewer than the
--                           feed-forwards that are to go
--               pending   none of these
-- search        asked, waiting, not_needed: a cell of a search. Null: it is of none.
-- overrides     `key=value` of the run that asked for it; empty: it had none. Null: not known.
-- setup         a hash of recipe, rows and model: what cells that are compared should share (see
--               recipe_differences). Null: not known.
-- metric        what `score` is; positive: the class that f1 scores, where the task names it.
-- score         points (0..100), after the last epoch.
-- feed_forward  of which kept layers the feed-forward is removed: none, top 3, every 2nd, ...
-- score_full    points of K=0: the same sweep, model, procedure, task and seed with all layers (and
-- full_trial_id   feed-forwards) kept, under whichever strategy it was listed; and its trial, once it
--               is done. Where another model is the teacher K=0 learns as well: then it is the K=0
--               that did not, if the sweep lists one.
-- change        score - score_full, in points: negative is a loss.
-- error_type    of the last failed attempt, where the cell failed.
WITH listed AS (
    SELECT * REPLACE (
        coalesce(k, depth - len(kept_layers)) AS k,
        coalesce(feed_forward, 'none') AS feed_forward  -- null: a file of before this column
    ),
        coalesce(nullif(regexp_extract(procedure, ' distill (.*)', 1), ''), 'none') AS distill
    FROM store.sweeps
),

failures AS (
    SELECT trial_id, count(*) AS n_failures, arg_max(error_type, ended_at) AS error_type
    FROM attempts
    WHERE coalesce(final, true)  -- null: a file of before this column
      AND trial_id NOT IN (SELECT profile_id FROM store.profiles WHERE profile_id IS NOT NULL)
    GROUP BY trial_id
),

full_depth AS (
    SELECT
        listed.sweep, listed.model, listed.procedure, listed.distill, listed.task, listed.seed,
        any_value(trials.trial_id) AS trial_id,
        any_value(trials.score) AS score
    FROM listed
    LEFT JOIN trials ON trials.trial_id = listed.trial_id
    WHERE len(listed.kept_layers) = listed.depth AND listed.feed_forward = 'none'
    GROUP BY ALL
),

untaught AS (  -- K=0 is one trial, whatever its procedure, unless another model teaches it
    SELECT sweep, model, task, seed, any_value(trial_id) AS trial_id, any_value(score) AS score
    FROM full_depth
    WHERE NOT contains(distill, ' of ')
    GROUP BY ALL
)

SELECT
    listed.sweep, listed.cell, listed.model, listed.depth, listed.procedure, listed.distill,
    listed.feed_forward, listed.strategy, listed.k, listed.threshold, listed.task, listed.seed,
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
    CASE WHEN untaught.sweep IS NULL THEN own.score ELSE untaught.score END AS score_full,
    CASE WHEN untaught.sweep IS NULL THEN own.trial_id ELSE untaught.trial_id END AS full_trial_id,
    trials.score - score_full AS change,
    100 * trials.majority AS majority,
    trials.params_total,
    trials.train_examples_per_second,
    trials.dev_examples_per_second,
    trials.seconds_total,
    trials.device_name
FROM listed
LEFT JOIN trials ON trials.trial_id = listed.trial_id
LEFT JOIN failures ON failures.trial_id = coalesce(listed.trial_id, listed.profile_id)
LEFT JOIN full_depth AS own
    ON own.sweep = listed.sweep
    AND own.model = listed.model
    AND own.procedure = listed.procedure
    AND own.task = listed.task
    AND own.seed = listed.seed
LEFT JOIN untaught
    ON contains(listed.distill, ' of ')
    AND untaught.sweep = listed.sweep
    AND untaught.model = listed.model
    AND untaught.task = listed.task
    AND untaught.seed = listed.seed
