-- random_control: compares the score of each strategy with that of K layers dropped at random. One row
-- per sweep, model, procedure, feed_forward, K with draws (`random 0`, `random 1`, ...), tasks, and
-- strategy that drops K layers.
--
-- tasks          all, or stable: without those of `unstable_tasks`, where that makes a difference.
-- random_mean, random_sd  points: mean and sample standard deviation over draws of the draw's mean
--                over tasks. Draws are independent: two may drop the same layers, and both count.
-- n_draws, n_draws_expected  draws that have every task and seed, draws asked for. If n_draws is
--                smaller, random_mean is over these n_draws.
-- strategy, threshold, mean  another strategy that drops K layers (on every task), and its mean over
--                tasks; null where there is none, or where a task is missing.
-- difference     mean - random_mean, in points: above 0, the strategy beats chance.
-- mixed          cells were trained in more than one way and are not comparable (see cells)
-- n_below        draws whose mean is below the strategy's.
-- MATERIALIZED: it is read more than once, and DuckDB would plan its inputs again for each reader.
WITH strategies AS MATERIALIZED (FROM strategy_table WHERE k > 0),

scored AS MATERIALIZED (
    SELECT
        *, 'all' AS tasks, mean_all AS mean,
        regexp_full_match(strategy, 'random [0-9]+') AS drawn
    FROM strategies
    UNION ALL
    SELECT
        *, 'stable' AS tasks, mean_stable AS mean,
        regexp_full_match(strategy, 'random [0-9]+') AS drawn
    FROM strategies
    WHERE n_stable_expected BETWEEN 1 AND n_tasks_expected - 1
),

draws AS (
    SELECT
        sweep, model, procedure, feed_forward, depth, k, tasks,
        avg(mean) AS random_mean,
        stddev_samp(mean) AS random_sd,
        count(mean) AS n_draws,
        count(*) AS n_draws_expected,
        bool_or(mixed) AS mixed,
        list(mean) FILTER (WHERE mean IS NOT NULL) AS means
    FROM scored
    WHERE drawn
    GROUP BY ALL
),

others AS (
    SELECT
        sweep, model, procedure, feed_forward, k, tasks, strategy, threshold, mean, mixed, position
    FROM scored
    WHERE NOT drawn
)

SELECT
    draws.* EXCLUDE (means, mixed),
    draws.mixed OR coalesce(others.mixed, false) AS mixed,
    strategy, threshold, mean,
    mean - random_mean AS difference,
    CASE WHEN mean IS NOT NULL THEN len(list_filter(means, lambda drawn: drawn < mean)) END AS n_below,
    position
FROM draws
LEFT JOIN others USING (sweep, model, procedure, feed_forward, k, tasks)
