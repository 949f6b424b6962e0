-- speed_table: one row per sweep, model, procedure, feed_forward, K and device: size and speed.
--
-- These are the timings that the trials took of themselves while they trained and evaluated,
-- whatever else ran on the machine: good for ratios, not a latency benchmark.
--
-- Timings are compared with K=0 of the same task on the same device (and, on a CPU, with the same
-- number of threads), never across devices: median over seeds, then over tasks.
--
-- params_total, params_percent   parameters, and what share of K=0's they are
-- train_examples_per_second, dev_examples_per_second   median over tasks; null where layers were
--                                dropped on the way (iterative): the time is that of no one network
-- train_speedup, dev_speedup     times K=0; null without a timing, or without a K=0 on this device
-- peak_memory_bytes              median over tasks
-- n, n_tasks, n_compared         trials; tasks; tasks with a timing, and K=0's on this device
WITH ran AS (  -- a trial counts once, however many cells share it
    SELECT DISTINCT
        cells.sweep, cells.model, cells.procedure, cells.feed_forward, cells.task, cells.depth,
        cells.depth - cells.n_kept AS k,
        trials.trial_id, trials.device_name,
        CASE WHEN trials.device_type = 'cpu' THEN trials.threads END AS threads,
        trials.params_total, trials.peak_memory_bytes,
        trials.train_examples_per_second AS train_speed,
        trials.dev_examples_per_second AS dev_speed
    FROM cells
    JOIN trials ON trials.trial_id = cells.trial_id
),

per_task AS (
    SELECT
        sweep, model, procedure, feed_forward, task, depth, k, device_name, threads,
        quantile_disc(params_total, 0.5) AS params_total,
        median(peak_memory_bytes) AS peak_memory_bytes,
        median(train_speed) AS train_speed,
        median(dev_speed) AS dev_speed,
        count(*) AS n
    FROM ran
    GROUP BY ALL
),

full_params AS (
    SELECT sweep, model, procedure, task, quantile_disc(params_total, 0.5) AS params_full
    FROM ran
    WHERE k = 0 AND feed_forward = 'none'
    GROUP BY ALL
),

compared AS (
    SELECT
        per_task.*,
        100 * per_task.params_total / params_full AS params_percent,
        per_task.train_speed / same_device.train_speed AS train_speedup,
        per_task.dev_speed / same_device.dev_speed AS dev_speedup
    FROM per_task
    LEFT JOIN full_params USING (sweep, model, procedure, task)
    LEFT JOIN per_task AS same_device
        ON same_device.k = 0
        AND same_device.feed_forward = 'none'
        AND same_device.sweep = per_task.sweep
        AND same_device.model = per_task.model
        AND same_device.procedure = per_task.procedure
        AND same_device.task = per_task.task
        AND same_device.device_name IS NOT DISTINCT FROM per_task.device_name
        AND same_device.threads IS NOT DISTINCT FROM per_task.threads
)

SELECT
    sweep, model, procedure, feed_forward, depth, k, depth - k AS n_kept, device_name, threads,
    quantile_disc(params_total, 0.5) AS params_total,
    median(params_percent) AS params_percent,
    median(train_speed) AS train_examples_per_second,
    median(train_speedup) AS train_speedup,
    median(dev_speed) AS dev_examples_per_second,
    median(dev_speedup) AS dev_speedup,
    median(peak_memory_bytes)::BIGINT AS peak_memory_bytes,
    sum(n)::BIGINT AS n,
    count(*) AS n_tasks,
    count(train_speedup) AS n_compared
FROM compared
GROUP BY ALL
