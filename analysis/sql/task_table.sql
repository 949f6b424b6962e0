-- task_table: means over seeds. One row per sweep, model, procedure, feed_forward, strategy, K (or
-- threshold) and task.
--
-- mean, sd           points; sd is the sample standard deviation over seeds, null for one seed.
-- n, n_expected      seeds with a score, seeds asked for. A search counts those that it has needed so
--                    far. If n < n_expected, the mean is over the n seeds with a score.
-- n_asked            seeds that the sweep lists for this task, at any K of any strategy
-- state              done: every seed has a score; partial: some have. Else not needed (a search ended
--                    without it), failed (some seed), deferred, impossible (every seed) or missing.
-- n_failed, n_deferred, n_impossible, n_pending   why the other seeds have no score.
-- change, change_sd  points against K=0 of the same seed, over the n_paired seeds that have both.
-- majority           points of always guessing one label (ranking: of a random order), where the
--                    metric has such a score; kind: the kind of task.
-- k                  layers dropped; for a threshold the number that it dropped, null while deferred.
-- mixed              cells were trained in more than one way and are not comparable (see cells)
-- position           place of its first cell in the plan: sort by it.
WITH listed AS (  -- a cell that is listed twice counts once
    SELECT *, count(DISTINCT seed) OVER (
        PARTITION BY sweep, model, procedure, task
    ) AS n_asked
    FROM cells
    QUALIFY row_number() OVER (
        PARTITION BY sweep, model, procedure, feed_forward, strategy, k, threshold, task, seed
        ORDER BY cell
    ) = 1
)

SELECT
    sweep, model, procedure, feed_forward, strategy, max(k) AS k, threshold, task,
    any_value(metric) AS metric,
    any_value(positive) AS positive,
    any_value(depth) AS depth,
    any_value(kept_layers) AS kept_layers,
    avg(score) AS mean,
    stddev_samp(score) AS sd,
    count(score) AS n,
    count(*) FILTER (WHERE state <> 'not_needed') AS n_expected,
    any_value(n_asked) AS n_asked,
    count(*) FILTER (WHERE state = 'failed') AS n_failed,
    count(*) FILTER (WHERE state = 'deferred') AS n_deferred,
    count(*) FILTER (WHERE state = 'impossible') AS n_impossible,
    count(*) FILTER (WHERE state = 'pending') AS n_pending,
    CASE
        WHEN n_expected = 0 THEN 'not needed'
        WHEN n > 0 THEN CASE WHEN n < n_expected THEN 'partial' ELSE 'done' END
        WHEN n_failed > 0 THEN 'failed'
        WHEN n_deferred = n_expected THEN 'deferred'
        WHEN n_impossible = n_expected THEN 'impossible'
        ELSE 'missing'
    END AS state,
    avg(change) AS change,
    stddev_samp(change) AS change_sd,
    count(change) AS n_paired,
    max(majority) AS majority,
    bool_or(mixed) AS mixed,
    any_value(kind) AS kind,
    min(cell) AS position
FROM listed
GROUP BY
    sweep, model, procedure, feed_forward, strategy, threshold, task,
    CASE WHEN threshold IS NULL THEN k END  -- the k of a threshold is a result, not a setting
