-- strategy_table: means over tasks. One row per sweep, model, procedure, feed_forward, strategy and K
-- (or threshold).
--
-- mean_all, change_all        points: the mean over all tasks of the task's mean over seeds, and of
--                             its change against K=0. Null while a task is missing: see missing_tasks.
-- mean_stable, change_stable  the same without the tasks of `unstable_tasks`.
-- sd_all, sd_stable           points: standard deviation over seeds of the seed's mean over tasks, from
--                             the n_seeds_all (n_seeds_stable) seeds that have every task; null for
--                             fewer than two.
-- n_seeds_asked               seeds that the sweep lists for a task, at any K of any strategy
-- n_tasks, n_tasks_expected   tasks whose every seed is done, tasks of this sweep and model;
--                             n_stable, n_stable_expected likewise.
-- missing_tasks               the other tasks by name, null where there are none.
-- n_not_needed                tasks whose search (`until: min_layers`) ended without this K. They are
--                             not missing, but then there is no mean over all tasks.
-- mixed                       cells of a task were trained in more than one way (see cells)
-- k                           layers dropped; null where a threshold drops a different number on
--                             different tasks. k_mean is the mean over the known ones.
-- MATERIALIZED: it is read more than once, and DuckDB would plan its inputs again for each reader.
WITH task_rows AS MATERIALIZED (
    SELECT *, CASE WHEN threshold IS NULL THEN k END AS setting FROM task_table
),

settings AS (
    SELECT sweep, model, procedure, feed_forward, strategy, setting, threshold, min(position) AS position
    FROM task_rows
    GROUP BY ALL
),

tasks AS (
    SELECT DISTINCT
        sweep, model, procedure, task, depth,
        lower(task) NOT IN (SELECT task FROM unstable_tasks) AS stable
    FROM task_rows
),

grid AS (  -- the tasks that a full comparison needs, and how many are complete
    SELECT
        settings.*, tasks.task, tasks.stable, tasks.depth, task_rows.k,
        task_rows.n_asked, task_rows.mixed,
        coalesce(n_expected = 0, false) AS not_needed,
        CASE WHEN n = n_expected THEN mean END AS task_mean,
        CASE WHEN n_paired = n_expected THEN change END AS task_change
    FROM settings
    JOIN tasks USING (sweep, model, procedure)
    LEFT JOIN task_rows
        ON task_rows.sweep = settings.sweep
        AND task_rows.model = settings.model
        AND task_rows.procedure = settings.procedure
        AND task_rows.feed_forward = settings.feed_forward
        AND task_rows.strategy = settings.strategy
        AND task_rows.setting IS NOT DISTINCT FROM settings.setting
        AND task_rows.threshold IS NOT DISTINCT FROM settings.threshold
        AND task_rows.task = tasks.task
),

over_tasks AS (
    SELECT
        sweep, model, procedure, feed_forward, strategy, setting, threshold,
        CASE WHEN min(k) = max(k) AND count(k) = count(*) THEN min(k) ELSE setting END AS k,
        avg(k) AS k_mean,
        any_value(depth) AS depth,
        CASE WHEN count(task_mean) = count(*) THEN avg(task_mean) END AS mean_all,
        CASE WHEN count(task_change) = count(*) THEN avg(task_change) END AS change_all,
        count(task_mean) AS n_tasks,
        count(*) AS n_tasks_expected,
        max(n_asked) AS n_seeds_asked,
        string_agg(task, ', ' ORDER BY task) FILTER (WHERE task_mean IS NULL AND NOT not_needed)
            AS missing_tasks,
        count(*) FILTER (WHERE not_needed) AS n_not_needed,
        CASE WHEN count(task_mean) FILTER (WHERE stable) = count(*) FILTER (WHERE stable)
            THEN avg(task_mean) FILTER (WHERE stable) END AS mean_stable,
        CASE WHEN count(task_change) FILTER (WHERE stable) = count(*) FILTER (WHERE stable)
            THEN avg(task_change) FILTER (WHERE stable) END AS change_stable,
        count(task_mean) FILTER (WHERE stable) AS n_stable,
        count(*) FILTER (WHERE stable) AS n_stable_expected,
        coalesce(bool_or(mixed), false) AS mixed,
        min(position) AS position
    FROM grid
    GROUP BY sweep, model, procedure, feed_forward, strategy, setting, threshold
),

seed_rows AS (
    SELECT
        sweep, model, procedure, feed_forward, strategy, threshold, seed, task,
        CASE WHEN threshold IS NULL THEN k END AS setting,
        any_value(score) AS score,
        lower(task) NOT IN (SELECT task FROM unstable_tasks) AS stable
    FROM cells
    GROUP BY ALL
),

per_seed AS (
    SELECT
        sweep, model, procedure, feed_forward, strategy, setting, threshold, seed,
        avg(score) AS all_tasks,
        count(score) AS n_all,
        avg(score) FILTER (WHERE stable) AS stable_tasks,
        count(score) FILTER (WHERE stable) AS n_stable_scored
    FROM seed_rows
    GROUP BY ALL
)

SELECT
    over_tasks.* EXCLUDE (setting, position),
    stddev_samp(all_tasks) FILTER (WHERE n_all = n_tasks_expected) AS sd_all,
    stddev_samp(stable_tasks) FILTER (WHERE n_stable_scored = n_stable_expected) AS sd_stable,
    count(*) FILTER (WHERE n_all = n_tasks_expected) AS n_seeds_all,
    count(*) FILTER (WHERE n_stable_scored = n_stable_expected) AS n_seeds_stable,
    over_tasks.position
FROM over_tasks
JOIN per_seed
    ON per_seed.sweep = over_tasks.sweep
    AND per_seed.model = over_tasks.model
    AND per_seed.procedure = over_tasks.procedure
    AND per_seed.feed_forward = over_tasks.feed_forward
    AND per_seed.strategy = over_tasks.strategy
    AND per_seed.setting IS NOT DISTINCT FROM over_tasks.setting
    AND per_seed.threshold IS NOT DISTINCT FROM over_tasks.threshold
GROUP BY ALL
