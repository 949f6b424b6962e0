-- The paper's numbers next to the store's: one row per row of numbers.csv, in its order.
--
-- $numbers and $models are JSON: the rows of numbers.csv, and the store's models with the paper's that
-- they stand for. A model and its kept layers identify a network, whichever strategy lists it. A trial
-- that several sweeps share counts once. The paper used one device, and ratios across devices mean
-- nothing: for each model, the speeds of the device with the most networks count.
--
-- ours           points; for a change, ours minus K=0, paired by seed. Null: missing, or open
-- sd, n          over trials; for a loss, over the seeds that have all seven tasks; n of a speed: pairs
-- low, high      for a K, by the rule of the view min_layers: with missing cells, it lies between these
-- rows_variance  points²: the noise in ours minus the paper's because both dev sets are finite. A share p
--                of n rows has p(1-p)/n, a correlation r has about (1-r²)²/(n-1). Both sides count as
--                independent samples of rows. In fact they share GLUE's dev set, so this is cautious.
-- seed_variance, seed_freedom
--                points²: the noise of one run over seeds. It is pooled over all networks of the task with
--                two seeds or more; an assumed value counts as five further seeds. The paper has one run,
--                ours is a mean of n: the difference has seed_variance * (1 + 1/n).
-- measured_on    how a speed was measured
WITH numbers AS (
    SELECT unnest(from_json($numbers, '[{
        "position": "INTEGER", "table": "INTEGER", "name": "VARCHAR", "setting": "VARCHAR",
        "column": "VARCHAR", "model": "VARCHAR", "procedure": "VARCHAR", "k": "INTEGER",
        "delta": "INTEGER", "task": "VARCHAR", "quantity": "VARCHAR", "paper": "DOUBLE",
        "corrected": "DOUBLE", "marked": "VARCHAR", "remark": "VARCHAR"
    }]'), recursive := true)
),

models AS (
    SELECT unnest(from_json($models, '[{"model": "VARCHAR", "stands_for": "VARCHAR"}]'), recursive := true)
),

tasks(task, dev_rows, assumed_sd) AS (  -- dev_rows: of GLUE's dev sets; assumed_sd: points, over seeds
    VALUES ('sst2', 872, 0.33), ('mnli', 9815, 0.33), ('qnli', 5463, 0.33), ('qqp', 40430, 0.33),
        ('stsb', 1500, 0.33), ('rte', 277, 1.5), ('mrpc', 408, 1.5)
),

cells_of_paper AS (  -- layers 1 to n are kept: the top ones are dropped
    SELECT
        models.stands_for AS model, cells.procedure, cells.depth - cells.n_kept AS k, tasks.task,
        cells.seed, cells.trial_id, cells.score, cells.change, trials.dev_examples, tasks.dev_rows,
        bool_or(coalesce(trials.train_examples >= trials.limit_train, false)
            OR coalesce(trials.dev_examples >= trials.limit_dev, false)
        ) OVER (PARTITION BY cells.sweep, tasks.task) AS is_cut  -- on a part of the rows
    FROM cells
    JOIN models USING (model)
    JOIN tasks ON tasks.task = regexp_replace(lower(cells.task), '[\s_-]', '', 'g')
    LEFT JOIN trials ON trials.trial_id = cells.trial_id
    WHERE cells.kept_layers = range(1, cells.n_kept + 1) AND cells.n_kept > 0
        AND cells.feed_forward = 'none'
),

runs AS (
    SELECT
        model, procedure, k, task, seed, trial_id, dev_rows, any_value(score) AS score,
        any_value(change) AS change, any_value(nullif(dev_examples, 0)) AS own_rows
    FROM cells_of_paper
    GROUP BY ALL
    HAVING NOT bool_and(is_cut)
),

means AS (
    SELECT
        model, procedure, k, task, dev_rows, min(coalesce(own_rows, dev_rows)) AS own_rows,
        avg(score) AS score, stddev(score) AS sd, count(score) AS n,
        avg(change) AS change, stddev(change) AS change_sd, count(change) AS n_change,
        count(*) AS n_asked
    FROM runs
    GROUP BY ALL
),

networks AS (
    SELECT
        *, least(greatest(score / 100, 0), 1) AS share, (task = 'stsb')::INTEGER AS lost,
        100^2 * CASE WHEN task = 'stsb' THEN (1 - share^2)^2 ELSE share * (1 - share) END AS of_row,
        of_row / greatest(own_rows - lost, 1) AS own_variance,
        own_variance + of_row / greatest(dev_rows - lost, 1) AS variance_of_both
    FROM means
),

spreads AS (
    SELECT
        task, (5 + measured)::DOUBLE AS freedom, (5 * assumed_sd^2 + squares) / freedom AS variance
    FROM (
        SELECT
            task, assumed_sd, coalesce(sum(n - 1) FILTER (n > 1), 0) AS measured,
            coalesce(sum((n - 1) * sd^2) FILTER (n > 1), 0) AS squares
        FROM tasks LEFT JOIN networks USING (task)
        GROUP BY ALL
    )
),

changes AS (  -- each side has two networks; the paper's are assumed to score like ours
    SELECT
        own.model, own.procedure, own.k, own.task, own.change AS ours, own.change_sd AS sd,
        own.n_change AS n, own.variance_of_both + whole.variance_of_both AS rows_variance,
        2 * spreads.variance AS seed_variance, spreads.freedom AS seed_freedom
    FROM networks AS own
    JOIN networks AS whole USING (model, procedure, task)
    JOIN spreads USING (task)
    WHERE whole.k = 0 AND whole.n > 0 AND own.n > 0
),

losses AS (  -- means over different tasks are not comparable: a seed has all seven
    SELECT model, procedure, k, -avg(change) AS ours, stddev(change) AS sd, count(*) AS n
    FROM (
        SELECT model, procedure, k, seed, avg(change) AS change
        FROM (
            SELECT model, procedure, k, seed, task, avg(change) AS change
            FROM runs
            WHERE change IS NOT NULL
            GROUP BY ALL
        )
        GROUP BY ALL
        HAVING count(*) = 7
    )
    GROUP BY ALL
),

noise_of_losses AS (
    SELECT
        model, procedure, k, sum(rows_variance) / 7^2 AS rows_variance,
        sum(seed_variance) / 7^2 AS seed_variance,
        sum(seed_variance)^2 / sum(seed_variance^2 / seed_freedom) AS seed_freedom  -- Satterthwaite
    FROM changes
    GROUP BY ALL
),

at_each_k AS (  -- a K that no sweep lists is open
    SELECT
        whole.model, whole.procedure, whole.task, whole.n AS n_full, ks.k, own.n_change, own.change,
        coalesce(own.n_change, 0) = 0 OR own.n_change < own.n_asked AS is_open
    FROM networks AS whole
    JOIN (SELECT unnest(range(1, 12))::INTEGER AS k) AS ks
        ON ks.k < CASE WHEN whole.model LIKE 'distil%' THEN 6 ELSE 12 END
    LEFT JOIN networks AS own
        ON (own.model, own.procedure, own.task, own.k)
            = (whole.model, whole.procedure, whole.task, ks.k)
    WHERE whole.k = 0 AND whole.n > 0
),

dropped AS (
    SELECT *, greatest(low, coalesce(last_open, 0)) AS high
    FROM (
        SELECT
            model, procedure, task, delta,
            coalesce(max(k) FILTER (holds), 0) AS low, max(k) FILTER (is_open) AS last_open,
            coalesce(arg_max(n_change, k) FILTER (holds), any_value(n_full)) AS n
        FROM (
            SELECT *, NOT is_open AND -change <= delta + 1e-9 AS holds  -- float noise
            FROM at_each_k
            CROSS JOIN (VALUES (1), (2), (3)) AS deltas(delta)
        )
        GROUP BY ALL
    )
),

timed AS (  -- the paper's batch of 32 only: larger batches are for fast GPUs
    SELECT
        speed_table.* EXCLUDE (model), models.stands_for AS model,
        concat_ws(', ', device_name, threads, precision, length) AS way
    FROM speed_table
    JOIN models USING (model)
    WHERE feed_forward = 'none' AND kept_layers = range(1, n_kept + 1) AND coalesce(batch, 32) = 32
),

sizes AS (
    SELECT model, k, params_total, n_trials
    FROM timed
    QUALIFY row_number() OVER (PARTITION BY model, k ORDER BY n_trials DESC, sweep DESC) = 1
),

speeds AS (
    SELECT
        model, k, finetune_speedup, 100 * (1 - 1 / nullif(inference_speedup, 0)) AS percent, pairs,
        format('{}, {}, {} rows of {} tokens', device_name, precision, batch, length) AS measured_on
    FROM (
        SELECT *, count(DISTINCT k) OVER (PARTITION BY model, way) AS n_networks
        FROM timed
        WHERE profile_id IS NOT NULL
    )
    QUALIFY way = first_value(way) OVER (PARTITION BY model ORDER BY n_networks DESC, way)
        AND row_number() OVER (PARTITION BY model, way, k ORDER BY sweep DESC) = 1
),

measured AS (
    SELECT
        'score' AS quantity, model, procedure, k, task, score AS ours, sd, n,
        own_variance AS rows_variance, variance AS seed_variance, freedom AS seed_freedom
    FROM networks JOIN spreads USING (task)
    WHERE n > 0
    UNION ALL BY NAME
    SELECT 'change' AS quantity, * FROM changes WHERE n > 0
    UNION ALL BY NAME
    SELECT 'loss' AS quantity, * FROM losses JOIN noise_of_losses USING (model, procedure, k)
    UNION ALL BY NAME
    SELECT 'max_dropped' AS quantity, *, CASE WHEN low = high THEN low END AS ours FROM dropped
    UNION ALL BY NAME
    SELECT
        'parameters_million' AS quantity, model, 'direct' AS procedure, k,
        params_total / 1e6 AS ours, n_trials AS n
    FROM sizes
    UNION ALL BY NAME
    SELECT
        'finetune_speedup' AS quantity, model, 'direct' AS procedure, k, finetune_speedup AS ours,
        pairs AS n, measured_on
    FROM speeds
    UNION ALL BY NAME
    SELECT
        'inference_percent' AS quantity, model, 'direct' AS procedure, k, percent AS ours,
        pairs AS n, measured_on
    FROM speeds
)

SELECT
    numbers.*, coalesce(corrected, paper) AS right_number,
    measured.* EXCLUDE (quantity, model, procedure, k, task, delta, rows_variance, n, last_open),
    coalesce(measured.n, 0) AS n,
    measured.rows_variance + CASE
        WHEN numbers.quantity <> 'score' THEN 0
        WHEN numbers.task = 'stsb' THEN 100^2 * (1 - (right_number / 100)^2)^2 / (dev_rows - 1)
        ELSE right_number * (100 - right_number) / dev_rows
    END AS rows_variance
FROM numbers
LEFT JOIN measured
    ON (measured.quantity, measured.model, measured.procedure)
        = (numbers.quantity, numbers.model, numbers.procedure)
    AND measured.k IS NOT DISTINCT FROM numbers.k
    AND measured.task IS NOT DISTINCT FROM numbers.task
    AND measured.delta IS NOT DISTINCT FROM numbers.delta
LEFT JOIN tasks ON tasks.task = numbers.task
ORDER BY numbers.position
